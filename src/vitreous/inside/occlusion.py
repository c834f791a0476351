"""Occlusion: what a class loses without patches: one at a time, under random masks (RISE), or greedily, the best first.

- `occlusion` (Zeiler & Fergus, 2014): how much the logit falls when one patch is hidden.
- `rise` (RISE; Petsiuk et al., 2018): the mean of random soft masks, weighted by the probability under each.
- `greedy_order`: a nearly best order of patches for deletion and insertion, found by trying every patch at every step.
  No map can be expected to do better on the same curves: it shows how far the others are from the possible.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.inside.gradients import Target, chosen_classes
from vitreous.inside.hiding import HiddenPatches


@torch.no_grad()
def occlusion(
    model: nn.Module,
    x: Tensor,
    target: Target = None,
    *,
    grid: tuple[int, int],
    baseline: str | Tensor = "mean",
    batch_size: int = 64,
) -> Tensor:
    """Compute occlusion: the fall of a class's logit without each patch, one image `[1 c H W]` → `[1 rows columns]`.

    `baseline` is what a hidden patch shows, as in `faithfulness.curves`.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))
    >>> x = torch.randn(1, 3, 2, 2)
    >>> falls = occlusion(model, x, 1, grid=(2, 2), baseline=torch.zeros(1))
    >>> torch.allclose(falls.flatten(), (x.flatten() * model[1].weight[1]).view(3, 4).sum(dim=0), atol=1e-6)
    True
    """
    patches = grid[0] * grid[1]
    kept = torch.cat([torch.zeros(1, patches), torch.eye(patches)]).view(-1, *grid) == 0  # the whole image first
    logits = HiddenPatches(model, x, grid, batch_size=batch_size)(kept, baseline)
    found = logits[:, int(chosen_classes(logits[:1], target))]
    return (found[0] - found[1:]).view(1, *grid)


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
    """Compute RISE: how much each pixel's presence under random masks raises a class, `[1 c H W]` → `[1 H W]`.

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


@torch.no_grad()
def greedy_order(
    model: nn.Module,
    x: Tensor,
    grid: tuple[int, int],
    target: Target = None,
    *,
    steps: int = 28,
    baseline: str | Tensor = "blur",
    batch_size: int = 256,
) -> Tensor:
    """Order one image's patches by greedy occlusion, the best first: `[1 c H W]` → `[rows columns]`, highest first.

    At each of the curve's steps, those patches are taken whose insertion raises the class's probability most, and
    whose deletion lowers it most, each tried alone. For 196 patches and 28 steps that is about 5,700 forward passes.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(48, 2))
    >>> greedy_order(model, torch.randn(1, 3, 4, 4), (2, 2), steps=4, baseline="mean").sort().values.shape
    torch.Size([2, 2])
    """
    patches = grid[0] * grid[1]
    hidden = HiddenPatches(model, x, grid, batch_size=batch_size)
    chosen = int(chosen_classes(model(x), target))
    taken = torch.zeros(patches, dtype=torch.bool, device=x.device)
    value = torch.zeros(patches, device=x.device)
    done = 0
    for step in range(1, steps + 1):
        count = round(step * patches / steps) - done
        left = torch.topk((~taken).float(), patches - done).indices.sort().values  # those not taken, without waiting
        inserted = taken.expand(len(left), -1).clone()
        inserted[torch.arange(len(left), device=x.device), left] = True
        kept = torch.cat([inserted, ~inserted]).view(-1, *grid)
        found = hidden(kept, baseline).softmax(dim=-1)[:, chosen]
        gains = found[: len(left)] - found[len(left) :]
        best = left[gains.topk(count).indices]
        taken[best] = True
        value[best] = float(steps - step + 1)
        done += count
    return value.view(grid)
