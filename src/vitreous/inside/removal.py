"""Removal: each patch's contribution to a class, estimated from forward passes with patches hidden.

At first random blobs of patches are hidden. A quarter of the passes, and at least 64, go into them; the others follow
the map found so far: its highest patches are kept, or hidden, with some noise, so that the passes go where a ranking
of the patches is decided. `contributions` turns the scores into a map with errors.

Shapes:  m masks · n patches · k classes
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitreous.inside.contributions import distances, fit_contributions

COSTS = {"quick": 64, "middle": 256, "thorough": 1024}
"""Forward passes by name."""
ROUNDS = 4
"""How often the map is fitted anew while masks follow it."""
RANDOM_SHARES, FOLLOWING_SHARES = (0.35, 0.5, 0.65), (0.2, 0.35, 0.5, 0.65, 0.8)
"""Shares of the patches that a mask keeps: few sizes, since masks of one size run in one batch without their tokens."""
RANDOM_BLOBS, FOLLOWING_BLOBS = 1.5, 0.8
"""Radius of the blobs that masks are made of, in patches of a grid of 14×14."""
NOISE = 0.5
"""Noise on the ranking of a map that masks follow, in standard deviations."""
STABLE = 0.99
"""The share of the map's variance that is not error, from which on its ranking counts as stable."""

Predict = Callable[[Tensor, str], Tensor]
"""Masks, bool `[m rows columns]`, True where a patch is kept, and an operator → log-odds `[m]`, or `[m k]`."""


@dataclass(frozen=True)
class RemovalMap:
    """Contributions of patches, estimated by hiding them, and how sure they are."""

    map: Tensor
    """How much keeping a patch raises the log-odds, rather than hiding it: `[rows columns]`, or `[k rows columns]`."""
    error: Tensor
    """The standard error of each, right on average over patches. A few strong ones among none come out too low."""
    passes: int
    """Forward passes used."""
    stable: bool
    """Whether it stopped because more passes would hardly change the ranking."""


def removal(
    predict: Predict,
    prior: Tensor,
    *,
    passes: int = COSTS["middle"],
    operators: Sequence[str] = ("blur",),
    stable: float = STABLE,
    seed: int = 0,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> RemovalMap:
    """Estimate by removal of patches how much each raises a class's log-odds: a prior map → a map and its error.

    Maps are `[rows columns]`. `predict` runs masked images (`HiddenPatches` and `log_odds`, for a model). The first of
    the `operators` hides the random masks and two in three of the others, if there are two. It stops early when the
    ranking is `stable`. Priors `[k rows columns]` of several classes, and their log-odds `[m k]`, give a map of each
    from the same passes; masks follow the first.

    >>> weights = torch.tensor([[3.0, 1.0], [0.0, -2.0]])
    >>> found = removal(lambda kept, operator: (kept * weights).sum(dim=(1, 2)), torch.zeros(2, 2), passes=64)
    >>> torch.allclose(found.map, weights, atol=1e-3), found.stable
    (True, True)
    """
    priors = prior.detach().double().cpu().reshape(-1, *prior.shape[-2:])  # [k rows columns]
    start = priors[0]
    if passes < 2 or start.numel() < 2:
        raise ValueError(f"removal needs at least 2 passes and 2 patches, got {passes} and {start.numel()}")
    generator = torch.Generator().manual_seed(seed)
    turns = [operators[0], operators[0], *operators[1:]] if len(operators) > 1 else list(operators)
    masks, scores = start.new_empty(0, start.numel()), start.new_empty(0, len(priors))
    kinds: list[Hashable] = []  # an offset each: log-odds do not add up, least where a map's top is kept or hidden
    found, sure = (start, start), False
    for done, end in _rounds(passes):
        if done:
            new = draw_masks(start.shape, end - done, FOLLOWING_SHARES, FOLLOWING_BLOBS, generator, found[0])
            chosen = [turns[i // 2 % len(turns)] for i in range(len(new))]  # both masks of a pair by one operator
            kinds += [
                (name, i % 2, size) for i, (name, size) in enumerate(zip(chosen, new.sum(1).tolist(), strict=True))
            ]
        else:
            new = draw_masks(start.shape, end, RANDOM_SHARES, RANDOM_BLOBS, generator)
            chosen = [operators[0]] * len(new)
            kinds += chosen
        got = start.new_empty(len(new), len(priors))
        for operator in dict.fromkeys(chosen):
            rows = [i for i, name in enumerate(chosen) if name == operator]
            given = predict(new[rows].view(-1, *start.shape), operator).detach().double().cpu()
            got[rows] = given.view(len(rows), len(priors))
        masks, scores = torch.cat([masks, new.double()]), torch.cat([scores, got])
        progress(end, passes)
        found = fit_contributions(masks, scores[:, 0], kinds, start)
        if sure := reliability(*found) >= stable:
            break
    others = [fit_contributions(masks, scores[:, i], kinds, priors[i]) for i in range(1, len(priors))]
    values, error = (torch.stack(each).view(prior.shape).float() for each in zip(found, *others, strict=True))
    return RemovalMap(values, error, len(masks), sure)


def count_passes(cost: int | str) -> int:
    """Read how many passes `removal` may take: a number, or a name of `COSTS`.

    >>> count_passes("thorough"), count_passes("100")
    (1024, 100)
    """
    if isinstance(cost, str) and not cost.isdecimal():
        if cost not in COSTS:
            raise ValueError(f"passes must be {', '.join(COSTS)} or a number of at least 2, got {cost!r}")
        return COSTS[cost]
    if int(cost) < 2:
        raise ValueError(f"passes must be {', '.join(COSTS)} or a number of at least 2, got {cost}")
    return int(cost)


def _rounds(passes: int) -> list[tuple[int, int]]:
    """Split the passes of removal into random ones, then rounds that follow the map: where each begins and ends."""
    random = min(max(COSTS["quick"], passes // 4), passes)
    ends = [random + 2 * round((passes - random) * turn / ROUNDS / 2) for turn in range(ROUNDS)] + [passes]
    return [(begin, end) for begin, end in zip([0, *ends], ends, strict=False) if end > begin]


def draw_masks(
    grid: Sequence[int],
    count: int,
    shares: Sequence[float],
    radius: float,
    generator: torch.Generator,
    follow: Tensor | None = None,
) -> Tensor:
    """Draw the masks of removal: blobs in pairs, of which one keeps what the other hides, bool `[m n]`.

    The first of a pair keeps the highest patches of the map `follow` `[n]`, with noise, if there is one.
    """
    apart = distances(grid)
    patches, pairs = len(apart), (count + 1) // 2
    similar = torch.exp(-(apart / radius).square() / 2) + 1e-4 * torch.eye(patches, dtype=apart.dtype)
    height = torch.randn(pairs, patches, generator=generator, dtype=apart.dtype) @ torch.linalg.cholesky(similar).T
    if follow is not None:
        ranks = follow.argsort().argsort().to(height)
        height = torch.special.ndtri((ranks + 0.5) / patches) + NOISE * height
    sizes = torch.tensor([min(max(round(share * patches), 1), patches - 1) for share in shares])
    chosen = sizes[torch.randint(len(sizes), (pairs, 1), generator=generator)]
    first = height.argsort(dim=1, descending=True).argsort(dim=1) < chosen
    return torch.stack([first, ~first], dim=1).flatten(0, 1)[:count]


def reliability(values: Tensor, error: Tensor) -> float:
    """Compute how reliable a removal map is: the share of its variance that is not error, 1 is exact."""
    variance = (values - values.mean()).square().mean()
    return float(variance / (variance + error.square().mean())) if variance > 0 else 0.0
