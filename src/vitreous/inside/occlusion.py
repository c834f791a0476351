"""Occlusion: how much a class's logit falls when one patch is hidden (Zeiler & Fergus, 2014)."""

import torch
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
    """Compute the fall of a class's logit without each patch: one image `[1 c H W]` → `[1 rows columns]`.

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
