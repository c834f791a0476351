"""RISE: the mean of random soft masks, weighted by the class's probability under each (Petsiuk et al., 2018)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.inside.gradients import Target, chosen_classes


@torch.no_grad()
def rise(
    model: nn.Module,
    x: Tensor,
    target: Target = None,
    *,
    masks: int = 1024,
    cells: int = 7,
    share: float = 0.5,
    seed: int = 0,
    batch_size: int = 64,
) -> Tensor:
    """Compute how much each pixel's presence raises a class's probability: one image `[1 c H W]` → `[1 H W]`.

    Masks are random grids of `cells` × `cells`, of which a `share` is kept, enlarged smoothly and shifted at random;
    the image is multiplied by them after preprocessing, as in the paper. Their mean under a constant model is 1.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(48, 2))
    >>> rise(model, torch.randn(1, 3, 4, 4), masks=8, cells=2).shape
    torch.Size([1, 4, 4])
    """
    if len(x) != 1:
        raise ValueError(f"expected one image [1 c H W], got {tuple(x.shape)}")
    chosen = chosen_classes(model(x), target)
    generator = torch.Generator().manual_seed(seed)
    total = torch.zeros(x.shape[-2:], device=x.device)
    weight = torch.zeros((), device=x.device)
    for start in range(0, masks, batch_size):
        soft = random_masks(min(batch_size, masks - start), x, cells, share, generator)  # [k 1 H W]
        probability = model(x * soft.to(x)).float().softmax(dim=-1)[:, chosen[0]]
        total += torch.einsum("k, k h w -> h w", probability, soft[:, 0])
        weight += probability.sum()
    return (total / (share * weight.clamp_min(1e-12)))[None]


def random_masks(count: int, x: Tensor, cells: int, share: float, generator: torch.Generator) -> Tensor:
    """Draw RISE's soft masks between 0 and 1 for images like `x`: `[count 1 H W]`."""
    height, width = x.shape[-2:]
    steps = -(-height // cells), -(-width // cells)  # pixels of a cell, rounded up
    grid = (torch.rand(count, 1, cells + 1, cells + 1, generator=generator) < share).float()
    large = F.interpolate(grid.to(x.device), size=[(cells + 1) * step for step in steps], mode="bilinear")
    shifts = [torch.randint(0, step, (count,), generator=generator).to(x.device) for step in steps]
    rows = (shifts[0][:, None] + torch.arange(height, device=x.device))[:, None, :, None]  # [count 1 H 1]
    columns = (shifts[1][:, None] + torch.arange(width, device=x.device))[:, None, None]  # [count 1 1 W]
    numbers = torch.arange(count, device=x.device)[:, None, None, None]
    return large[numbers, 0, rows, columns]
