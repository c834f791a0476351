"""Removal: each patch's contribution to a class, estimated from forward passes with random patches hidden.

The score of a masked image is taken as a sum of contributions of the patches that are kept, plus noise. Contributions
have a Gaussian prior: a multiple of a prior map (relevance), and a part that is similar in neighbouring patches. Its
scale, its reach over the grid and the noise are those that make the scores likeliest (restricted maximum likelihood),
so that few passes stay near the prior map and many follow the passes. The posterior gives an error for each patch.

Shapes:  m masks · n patches · p fixed effects (one for each operator, and the prior map)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

COSTS = {"quick": 64, "default": 256, "thorough": 1024}
"""Forward passes by name."""
SHARES = (0.35, 0.5, 0.65)
"""Shares of the patches that a mask keeps: few sizes, since masks of one size run in one batch without their tokens."""
REACHES = (0.5, 1.0, 2.0, 4.0)
"""Distances, in patches, over which contributions may be similar."""
NOISES = tuple(10.0 ** (step / 2) for step in range(-16, 9))
"""Variances of the noise over that of the contributions."""
STABLE = 0.99
"""The share of the map's variance that is not error, from which on its ranking counts as stable."""

Predict = Callable[[Tensor, str], Tensor]
"""Masks, bool `[m rows columns]`, True where a patch is kept, and an operator → the class's score `[m]`."""


@dataclass(frozen=True)
class RemovalMap:
    """Contributions of patches, and how sure they are."""

    map: Tensor
    """How much keeping a patch raises the score, rather than hiding it: `[rows columns]`."""
    error: Tensor
    """The standard error of each: `[rows columns]`."""
    passes: int
    """Forward passes used."""
    stable: bool
    """Whether it stopped because more passes would hardly change the ranking."""


def removal(
    predict: Predict,
    prior: Tensor,
    *,
    passes: int = COSTS["default"],
    operators: Sequence[str] = ("blur",),
    stable: float = STABLE,
    seed: int = 0,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> RemovalMap:
    """Estimate how much each patch raises a class's score: a prior map `[rows columns]` → a map and its error.

    `predict` runs masked images (`HiddenPatches` and `log_odds`, for a model); the masks are split over the
    `operators`. It stops before all `passes` when the ranking is `stable`.

    >>> weights = torch.tensor([[3.0, 1.0], [0.0, -2.0]])
    >>> found = removal(lambda kept, operator: (kept * weights).sum(dim=(1, 2)), torch.zeros(2, 2), passes=64)
    >>> torch.allclose(found.map, weights, atol=1e-3), found.stable
    (True, True)
    """
    if passes < 2:
        raise ValueError(f"removal needs at least 2 passes, got {passes}")
    grid = prior.shape
    start = prior.detach().double().cpu().flatten()
    generator = torch.Generator().manual_seed(seed)
    masks = start.new_empty(0, len(start))
    names: list[str] = []
    scores = start.new_empty(0)
    found = start, torch.zeros_like(start)
    sure = False
    while len(masks) < passes and not sure:
        count = min(max(len(masks), min(COSTS["quick"], passes)), passes - len(masks))
        new = draw_masks(len(start), count, generator)
        chosen = [operators[i // 2 % len(operators)] for i in range(count)]  # both masks of a pair by one operator
        values = start.new_empty(count)
        for operator in dict.fromkeys(chosen):
            rows = [i for i, name in enumerate(chosen) if name == operator]
            values[rows] = predict(new[rows].view(-1, *grid), operator).detach().double().cpu()
        masks, names, scores = torch.cat([masks, new.double()]), names + chosen, torch.cat([scores, values])
        progress(len(masks), passes)
        found = fit(masks, scores, names, start, grid)
        sure = reliability(*found) >= stable
    values, error = (each.view(grid).float() for each in found)
    return RemovalMap(values, error, len(masks), sure)


def draw_masks(patches: int, count: int, generator: torch.Generator) -> Tensor:
    """Draw masks of a few sizes, in pairs of which one keeps what the other hides: bool `[m n]`."""
    pairs = (count + 1) // 2
    sizes = torch.tensor([round(share * patches) for share in SHARES])
    chosen = sizes[torch.randint(len(sizes), (pairs, 1), generator=generator)]
    first = torch.rand(pairs, patches, generator=generator).argsort(dim=1) < chosen
    return torch.stack([first, ~first], dim=1).flatten(0, 1)[:count]


def reliability(values: Tensor, error: Tensor) -> float:
    """Compute the share of a map's variance that is not error: 1 is exact."""
    variance = (values - values.mean()).square().mean()
    return float(variance / (variance + error.square().mean())) if variance > 0 else 0.0


def fit(
    masks: Tensor, scores: Tensor, operators: Sequence[str], prior: Tensor, grid: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Compute the posterior mean and standard deviation of contributions `[n]` from masks `[m n]` and scores `[m]`."""
    offsets = [[float(name == each) for each in dict.fromkeys(operators)] for name in operators]
    fixed = torch.tensor(offsets, dtype=masks.dtype)
    known = prior - prior.mean()
    if known.abs().max() > 0 and len(masks) > fixed.shape[1] + 2:
        fixed = torch.cat([fixed, (masks @ prior)[:, None]], dim=1)
    basis = torch.linalg.qr(fixed).Q  # [m p]

    def without(values: Tensor) -> Tensor:
        rest: Tensor = values - basis @ (basis.T @ values)
        return rest

    left, free = without(scores), len(masks) - fixed.shape[1]
    best: tuple[float, Tensor, Tensor] | None = None
    for reach in REACHES:
        root = torch.linalg.cholesky(similarity(grid, reach).to(masks))  # [n n]
        values, vectors = torch.linalg.eigh(root.T @ (masks.T @ without(masks)) @ root)
        values = values.clamp_min(0)
        along = vectors.T @ (root.T @ (masks.T @ left))
        for noise in NOISES:
            unexplained = (left.square().sum() - (along.square() / (values + noise)).sum()).clamp_min(1e-300)
            variance = unexplained / free
            likely = -0.5 * (free * variance.log() + (values / noise).log1p().sum())
            if best is None or likely > best[0]:
                spread = root @ vectors
                mean = spread @ (along / (values + noise))
                covariance = (spread * (variance / (values + noise))) @ spread.T
                best = float(likely), mean, covariance
    assert best is not None
    _, mean, covariance = best
    if fixed.shape[1] > len(set(operators)):  # the prior map's multiple, and its error
        solve = torch.linalg.pinv(fixed)[-1]  # [m]
        mean = mean + prior * (solve @ (scores - masks @ mean))
        moved = torch.eye(len(prior), dtype=masks.dtype) - prior[:, None] * (solve @ masks)
        covariance = moved @ covariance @ moved.T
    return mean, covariance.diagonal().clamp_min(0).sqrt()


def similarity(grid: Sequence[int], reach: float) -> Tensor:
    """Compute how similar contributions are assumed: exp(−distance / reach) between patches, `[n n]`."""
    rows, columns = (torch.arange(side, dtype=torch.float64) for side in grid)
    places = torch.cartesian_prod(rows, columns)
    return torch.exp(-torch.cdist(places, places) / reach)
