"""Faithfulness of heat maps: deletion and insertion curves, SaCo, baselines, sanity check, rank correlation.

Deletion and insertion curves (Petsiuk et al., 2018), the salience-guided faithfulness coefficient (SaCo; Wu et al.,
2024), two baseline maps (random, centre), and the sanity check that a map should change when the weights do (Adebayo et
al., 2018).

Shapes:  m maps · b images · c colours · H W pixels · s steps · g groups
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from vitreous.inside.gradients import Target, chosen_classes
from vitreous.inside.hiding import REMOVED, HiddenPatches
from vitreous.models.dense_head import RegionHead, at_region
from vitreous.models.vit import ViT

if TYPE_CHECKING:
    from vitreous.models.resnet import ResNet

BATCH = 54
"""Masked images that run at once: those of one map with 28 steps."""
FLAT = 1e-6
"""A map whose values differ by at most this share of its largest absolute value is constant; the rest is rounding."""


@torch.no_grad()
def curves(
    model: nn.Module,
    x: Tensor,
    maps: Tensor,
    target: Target = None,
    *,
    steps: int = 28,
    baseline: str | Tensor = "blur",
    batch_size: int = BATCH,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> tuple[Tensor, Tensor]:
    """Compute deletion and insertion curves: a class's probability while a map's patches go or come, `[… s+1]` each.

    `x` is one image `[1 c H W]`, `maps` any number of its maps `[… rows columns]`. The highest patches come first,
    equal ones row by row. Deleted patches show `baseline`: the blurred image, its mean colour, black, or a tensor; or
    "removed" leaves their tokens out. A batch holds images of one map, so that its curves are the same to the last bit
    whichever other maps are measured too. `progress` gets how many masked images have run, and of how many.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(48, 2))
    >>> deletion, insertion = curves(model, torch.randn(1, 3, 4, 4), torch.rand(5, 2, 2), steps=4, baseline="mean")
    >>> deletion.shape, torch.equal(deletion[:, 0], insertion[:, -1])
    (torch.Size([5, 5]), True)
    """
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    shape, grid = maps.shape[:-2], maps.shape[-2:]
    hidden = HiddenPatches(model, x, grid, batch_size=batch_size)
    everything = torch.ones(1, *grid, dtype=torch.bool)
    ends = hidden(torch.cat([everything, ~everything]), baseline)
    chosen = int(chosen_classes(ends[:1], target))
    whole, nothing = ends.softmax(dim=-1)[:, chosen]
    rank = ranks(maps.reshape(-1, *grid).to(x.device))  # [m rows columns]
    counts = [round(step * grid.numel() / steps) for step in range(1, steps)]
    first = rank[:, None] < torch.tensor(counts, device=x.device)[:, None, None]  # [m s-1 rows columns]
    kept = torch.cat([~first, first], dim=1)  # after deletion, then after insertion
    together = [kept.flatten(0, 1)] if isinstance(baseline, str) and baseline == REMOVED else list(kept)
    found: list[Tensor] = []
    for own in together:  # masks that leave tokens out are sorted by their number, those of all maps at once
        done, total = sum(len(part) for part in found), len(kept) * kept.shape[1]
        logits = hidden(own, baseline, partial(_advance, progress, done, total))
        found.append(logits.softmax(dim=-1)[:, chosen])
    middle = torch.cat(found).view(*shape, 2, steps - 1)
    full, none = (end.expand(*shape, 1) for end in (whole, nothing))
    deletion = torch.cat([full, middle[..., 0, :], none], dim=-1)
    return deletion, torch.cat([none, middle[..., 1, :], full], dim=-1)


def _advance(progress: Callable[[int, int], object], before: int, total: int, done: int, _: int) -> None:
    progress(before + done, total)


def area(curve: Tensor) -> Tensor:
    """Compute the area under deletion and insertion curves over 0…1, by trapezoids: `[… s+1]` → `[…]`.

    Small is good for deletion, large for insertion.

    >>> area(torch.tensor([1.0, 0.5, 0.0]))
    tensor(0.5000)
    """
    return torch.trapezoid(curve, dx=1 / (curve.shape[-1] - 1))


def ranks(maps: Tensor) -> Tensor:
    """Rank a map's patches for deletion and insertion curves, `[m rows columns]`: 0 is the highest."""
    check_finite(maps)
    order = maps.flatten(1).argsort(dim=1, descending=True, stable=True)
    return order.argsort(dim=1).view(maps.shape)


def check_finite(maps: Tensor) -> None:
    """Raise if heat maps have NaN or infinite values, which no measure of faithfulness can order."""
    if bad := int((~maps.isfinite()).sum()):
        raise ValueError(f"{bad} of {maps.numel()} values of heat maps are NaN or infinite: they cannot be scored")


def is_flat(maps: Tensor) -> Tensor:
    """Return which heat maps are constant but for rounding, at any scale, and so not faithful: `[m …]` → `[m]`.

    >>> is_flat(torch.tensor([[1e-20, 2e-20], [0.3, 0.3000001], [0.0, 0.0]]))
    tensor([False,  True,  True])
    """
    low, high = maps.flatten(1).aminmax(dim=1)
    return high - low <= FLAT * torch.maximum(low.abs(), high.abs())


def random_map(grid: tuple[int, int], seed: int = 0) -> Tensor:
    """Make a random heat map `[rows columns]`, as a baseline of faithfulness.

    >>> torch.equal(random_map((2, 3), seed=1), random_map((2, 3), seed=1))
    True
    """
    return torch.rand(grid, generator=torch.Generator().manual_seed(seed))


def centre_map(grid: tuple[int, int], spread: float = 0.25) -> Tensor:
    """Make a baseline of faithfulness, a Gaussian around the centre, `[rows columns]`: objects are central.

    `spread` is its standard deviation as a share of each side.
    """
    rows, columns = (((torch.arange(side) + 0.5) / side - 0.5) / spread for side in grid)
    return torch.exp(-(rows[:, None].square() + columns.square()) / 2)


def reinitialised(model: "ViT | ResNet", seed: int = 0) -> "ViT | ResNet":
    """Re-initialise a model for the sanity check: the same config, new random weights, the random state unchanged.

    A new ViT's head is zero, which has no explanation: here it is drawn like the other layers.
    """
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)  # only the CPU's: `torch.manual_seed` reseeds GPUs too
        fresh = type(model)(model.config)  # type: ignore[arg-type]
        for head in (getattr(fresh, "head", None), getattr(fresh, "head_dist", None)):
            if head is not None and head.weight is not None:
                nn.init.trunc_normal_(head.weight, std=0.02)
    if isinstance(head := getattr(model, "head", None), RegionHead):
        fresh = at_region(fresh, head.mask)
    fresh.card = model.card
    return fresh.to(next(model.parameters())).train(model.training)


def rank_correlation(first: Tensor, second: Tensor) -> Tensor:
    """Correlate the ranks of heat maps (Spearman), for faithfulness: two `[… rows columns]` → `[…]`; 0 if constant.

    >>> rank_correlation(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[1.0, 20.0, 300.0]]))
    tensor(1.)
    """
    check_finite(first)
    check_finite(second)
    centred = []
    for values in (first.flatten(-2), second.flatten(-2)):
        below = (values[..., None] > values[..., None, :]).sum(dim=-1)
        equal = (values[..., None] == values[..., None, :]).sum(dim=-1)
        rank = below + equal / 2  # ties share the mean of their ranks
        centred.append(rank - rank.mean(dim=-1, keepdim=True))
    a, b = centred
    scale = (a.square().sum(dim=-1) * b.square().sum(dim=-1)).sqrt()
    return torch.where(scale > 0, (a * b).sum(dim=-1) / scale, 0.0)


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

    A map's patches are put into groups by their values, each group is removed alone, and every pair of groups is asked
    whether the one of higher values lowers the class's probability more. Deletion curves test only the order; SaCo also
    weights it by the map's values. There are as many groups as patches if that is fewer.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(48, 2))
    >>> saco(model, torch.randn(1, 3, 4, 4), torch.rand(5, 2, 2), groups=4).shape
    torch.Size([5])
    """
    maps = maps.to(x.device)
    rank, patches = ranks(maps), maps[0].numel()
    groups = min(groups, patches)  # none is empty
    number = rank * groups // patches  # the group of each patch, 0 of the highest values: [m rows columns]
    member = number[:, None] == torch.arange(groups, device=x.device)[:, None, None]  # [m g rows columns]
    hidden = HiddenPatches(model, x, maps.shape[-2:], batch_size=batch_size)
    kept = torch.cat([torch.ones_like(member[0, :1]), (~member).flatten(0, 1)])  # the whole image first
    found = hidden(kept, baseline).softmax(dim=-1)
    whole, left = found[:, int(chosen_classes(found[:1], target))].split([1, len(kept) - 1])
    effects = whole - left.view(len(maps), groups)
    values = (maps[:, None].float() * member).sum(dim=(-2, -1)) / member.sum(dim=(-2, -1))
    return agreement(torch.where(is_flat(maps)[:, None], 0.0, values), effects)


def agreement(values: Tensor, effects: Tensor) -> Tensor:
    """Compute SaCo's share of pairs whose effects are ordered as their values, less the rest: `[m g]` twice → `[m]`.

    Each pair counts by the difference of its values.

    >>> agreement(torch.tensor([[3.0, 1.0, 0.0]]), torch.tensor([[0.5, 0.1, 0.2]]))  # 2 and 3 agree, 1 does not
    tensor([0.6667])
    """
    weights = (values[:, :, None] - values[:, None]).clamp_min(0)  # each pair once, the higher value first
    agrees = (effects[:, :, None] >= effects[:, None]).to(weights) * 2 - 1
    total = weights.sum(dim=(1, 2))
    return torch.where(total > 0, (weights * agrees).sum(dim=(1, 2)) / total, 0.0)
