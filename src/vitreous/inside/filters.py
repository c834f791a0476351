"""Filters of the first layer (the patch embedding, or a ResNet's first convolution) as images.

A ViT has hundreds of filters that show little one by one, so their principal components are shown (the paper's figure
7, left).

Shapes:  d filters · c colours · p q height and width of a filter
"""

import torch
from torch import Tensor

from vitreous.inside.representations import with_sign


@torch.no_grad()
def principal_filters(weight: Tensor, count: int = 28) -> tuple[Tensor, Tensor]:
    """Compute the first principal components of filters `[d c p q]`: images `[count p q c]`, and shares of variance.

    Each image is stretched to 0…1 separately. A component has no sign of its own: here its largest weight is positive.
    Fewer are returned if the filters have fewer components.

    >>> images, shares = principal_filters(torch.randn(64, 3, 8, 8), count=5)
    >>> images.shape, shares.shape
    (torch.Size([5, 8, 8, 3]), torch.Size([5]))
    """
    filters = weight.to(torch.promote_types(weight.dtype, torch.float32)).flatten(1)  # [d cpq]
    filters = filters - filters.mean(dim=0)
    _, spread, components = torch.linalg.svd(filters, full_matrices=False)
    count = min(count, len(filters) - 1, filters.shape[1])  # centring removes one
    shares = spread.square() / spread.square().sum()
    return _images(with_sign(components[:count]).unflatten(1, weight.shape[1:])), shares[:count]


@torch.no_grad()
def first_filters(weight: Tensor) -> Tensor:
    """Convert filters `[d c p q]` (a ResNet's `conv1.weight`) to images `[d p q c]`, each stretched to 0…1.

    >>> first_filters(torch.randn(64, 3, 7, 7)).shape
    torch.Size([64, 7, 7, 3])
    """
    return _images(weight.to(torch.promote_types(weight.dtype, torch.float32)))


def _images(filters: Tensor) -> Tensor:
    """Turn filters `[count c p q]` to images `[count p q c]`, each stretched to 0…1; a filter of one value is grey."""
    low, high = filters.amin(dim=(1, 2, 3), keepdim=True), filters.amax(dim=(1, 2, 3), keepdim=True)
    stretched = torch.where(high > low, (filters - low) / (high - low), 0.5)
    return stretched.permute(0, 2, 3, 1)
