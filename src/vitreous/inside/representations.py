"""Token representations: principal components as colours, norms, the similarity of patches and of layers (CKA).

From the middle layers on, some models have a few tokens dozens of times as long as the rest. Those would dominate
variance and CKA: pass `principal_colours` and `layer_similarity` tokens after a norm (`tokens`, `norm1`), and
`token_norms` those before it (`output`).

Shapes:  l layers · b images · t tokens · d width · n examples
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from vitreous.models.token_layout import TokenLayout


@torch.no_grad()
def principal_colours(tokens: Tensor, layout: TokenLayout) -> Tensor:
    """Map the patches' first three principal components to red, green, blue: `[b t d]` → `[b rows columns 3]` in 0…1.

    Components are computed over all images, so that a colour means the same in each (as in DINOv2's figures); each is
    stretched to 0…1. A component has no sign of its own: here its largest weight is positive.

    >>> principal_colours(torch.randn(2, 13, 8), TokenLayout(grid=(3, 4))).shape
    torch.Size([2, 3, 4, 3])
    """
    if tokens.shape[-1] < 3:
        raise ValueError(f"three colours need tokens of width 3 or more, got {tokens.shape[-1]}")
    patches = layout.to_grid(tokens.to(torch.promote_types(tokens.dtype, torch.float32)), dim=1)  # [b rows columns d]
    flat = patches.flatten(0, 2)
    flat = flat - flat.mean(dim=0)
    _, directions = torch.linalg.eigh(flat.mT @ flat)  # columns, the largest variance last
    colours = flat @ with_sign(directions.mT[-3:].flip(0)).mT  # [brc 3]
    low, high = colours.amin(dim=0), colours.amax(dim=0)
    visible = high - low > 1e-4 * (high - low).amax()  # a component without variance is rounding: grey
    result: Tensor = torch.where(visible, (colours - low) / (high - low), 0.5).unflatten(0, patches.shape[:3])
    return result


def with_sign(components: Tensor) -> Tensor:
    """Give principal components of token representations `[count d]` a sign: the largest weight becomes positive.

    >>> with_sign(torch.tensor([[0.6, -0.8], [0.8, 0.6]]))
    tensor([[-0.6000,  0.8000],
            [ 0.8000,  0.6000]])
    """
    largest = components.gather(1, components.abs().argmax(dim=1, keepdim=True))
    return components * torch.where(largest < 0, -1.0, 1.0).to(components)


def token_norms(tokens: Tensor, layout: TokenLayout) -> Tensor:
    """Represent each patch token by its norm: `[… t d]` → `[… rows columns]`.

    A few very long ones are a known artifact (Darcet et al., 2024, "Vision Transformers Need Registers").

    >>> token_norms(torch.ones(1, 5, 4), TokenLayout(grid=(2, 2)))
    tensor([[[2., 2.],
             [2., 2.]]])
    """
    return layout.to_grid(tokens.norm(dim=-1))


@torch.no_grad()
def patch_similarity(tokens: Tensor, layout: TokenLayout) -> Tensor:
    """Compare the representations of patches: the cosine of every token with every other, `[… t d]` → `[… n n]`.

    >>> patch_similarity(torch.eye(5), TokenLayout(grid=(2, 2)))[0]
    tensor([1., 0., 0., 0.])
    """
    patches = layout.to_grid(tokens.to(torch.promote_types(tokens.dtype, torch.float32)), dim=-2).flatten(-3, -2)
    unit = torch.nn.functional.normalize(patches, dim=-1)
    return unit @ unit.mT


@torch.no_grad()
def layer_similarity(outputs: Tensor | Sequence[Tensor], *, unbiased: bool = True) -> Tensor:
    """Compare the representations of layers by linear CKA (Kornblith et al., 2019): `[l b t d]` or a list → `[l l]`.

    Every token of every image is an example. 1 means equal up to rotation and scale. The default is the unbiased
    estimate (Song et al., 2012; Nguyen et al., 2021), which is near 0 for unrelated layers. The paper's own estimate is
    biased: with fewer examples than the width even noise comes out similar.

    >>> x = torch.randn(1, 2, 50, 8)
    >>> layer_similarity(torch.cat([x, 3 * x])).round(decimals=4)
    tensor([[1., 1.],
            [1., 1.]], dtype=torch.float64)
    """
    features = [_centred(layer) for layer in outputs]  # [n d] each
    if unbiased and len(features[0]) < 4:
        raise ValueError(f"the unbiased estimate needs at least 4 tokens, got {len(features[0])}")
    dependence = torch.eye(len(features), dtype=torch.float64, device=features[0].device)
    for i, first in enumerate(features):
        for j, second in enumerate(features[: i + 1]):
            dependence[i, j] = dependence[j, i] = _hsic(first, second, unbiased)
    scale = dependence.diagonal().sqrt()
    return dependence / (scale[:, None] * scale)


def _centred(layer: Tensor) -> Tensor:
    """Centre tokens for CKA, `[b t d]` as examples `[n d]`, in double precision: the estimate is a small difference."""
    layer = layer.cpu() if layer.device.type == "mps" else layer  # Apple's GPUs have no double precision
    flat = layer.flatten(0, -2).double()
    return flat - flat.mean(dim=0)


def _hsic(x: Tensor, y: Tensor, unbiased: bool) -> Tensor:
    """Compute the Hilbert-Schmidt independence criterion of centred features `[n d]`, up to a factor that CKA cancels.

    The unbiased one uses K = x xᵀ and L = y yᵀ without their diagonals; neither matrix is formed.
    """
    together = (x.mT @ y).square().sum()  # tr(K L)
    if not unbiased:
        return together
    n, own_x, own_y = len(x), x.square().sum(dim=1), y.square().sum(dim=1)  # the diagonals
    # x is centred, so K's rows sum to zero with the diagonal, and to -own_x without
    together = together - own_x @ own_y + own_x.sum() * own_y.sum() / ((n - 1) * (n - 2))
    return together - 2 / (n - 2) * (own_x @ own_y)
