"""SaCo: do patches of higher values matter more? The salience-guided faithfulness coefficient (Wu et al., 2024).

"On the Faithfulness of Vision Transformer Explanations": a map's patches are put into groups by their values, each
group is removed alone, and every pair of groups is asked whether the one of higher values lowers the class's
probability more. Deletion curves test only the order; SaCo also weights it by the map's values.
"""

import torch
from torch import Tensor, nn

from vitreous.inside.faithfulness import BATCH, ranks
from vitreous.inside.gradients import Target, chosen_classes
from vitreous.inside.hiding import HiddenPatches

GROUPS = 10


@torch.no_grad()
def saco(
    model: nn.Module,
    x: Tensor,
    maps: Tensor,
    target: Target = None,
    *,
    groups: int = GROUPS,
    baseline: str | Tensor = "mean",
    batch_size: int = BATCH,
) -> Tensor:
    """Compute SaCo of one image's maps, `[m rows columns]` → `[m]` from -1 to 1; a constant map has 0.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(48, 2))
    >>> saco(model, torch.randn(1, 3, 4, 4), torch.rand(5, 2, 2), groups=4).shape
    torch.Size([5])
    """
    maps = maps.to(x.device)
    rank, patches = ranks(maps), maps[0].numel()
    number = rank * groups // patches  # the group of each patch, 0 of the highest values: [m rows columns]
    member = number[:, None] == torch.arange(groups, device=x.device)[:, None, None]  # [m g rows columns]
    hidden = HiddenPatches(model, x, maps.shape[-2:], batch_size=batch_size)
    kept = torch.cat([torch.ones_like(member[0, :1]), (~member).flatten(0, 1)])  # the whole image first
    found = hidden(kept, baseline).softmax(dim=-1)
    whole, left = found[:, int(chosen_classes(found[:1], target))].split([1, len(kept) - 1])
    effects = whole - left.view(len(maps), groups)
    values = (maps[:, None].float() * member).sum(dim=(-2, -1)) / member.sum(dim=(-2, -1)).clamp_min(1)
    return agreement(values, effects)


def agreement(values: Tensor, effects: Tensor) -> Tensor:
    """Compute SaCo's share of pairs whose effects are ordered as their values, less the rest: `[m g]` twice → `[m]`.

    Each pair counts by the difference of its values.

    >>> agreement(torch.tensor([[3.0, 1.0, 0.0]]), torch.tensor([[0.5, 0.1, 0.2]]))  # 2 and 3 agree, 1 does not
    tensor([0.6667])
    """
    weights = (values[:, :, None] - values[:, None]).clamp_min(0)  # each pair once, the higher value first
    agrees = (effects[:, :, None] >= effects[:, None]).to(weights) * 2 - 1
    total = weights.sum(dim=(1, 2))
    return torch.where(total > 0, (weights * agrees).sum(dim=(1, 2)) / total.clamp_min(1e-12), 0.0)
