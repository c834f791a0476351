"""Fit contributions of patches to scores of masked images: a Gaussian regression with a prior map, and its errors.

A score, the log-odds of a class, is taken as an offset plus the contributions of the patches that are kept, plus
noise, which is larger where the probability is near 0 or 1. Contributions have a Gaussian prior: a multiple of a
prior map, and a part that varies more where the prior map is high and is similar in neighbouring patches. Its scale,
its reach and the noise are those that make the scores likeliest (restricted maximum likelihood), so that few passes
stay near the prior map and many follow the passes. The posterior gives an error for each patch.

Shapes:  m masks · n patches · p fixed effects (offsets, and the prior map)
"""

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

REACHES = (0.5, 1.0, 2.0, 4.0)
"""Distances over which contributions may be similar."""
NOISES = 10.0 ** (torch.arange(-16, 11, dtype=torch.float64) / 2)
"""Variances of the noise over that of the contributions."""
FLOOR = 0.1
"""Variance of contributions where the prior map is 0, in units of that where it has its mean."""
LEAST_WEIGHT = 0.02
"""Least weight of a score. Log-odds weigh p (1 − p), as in a logistic regression: near 0 and 1 they change freely."""


def fit_contributions(masks: Tensor, scores: Tensor, kinds: Sequence[Hashable], prior: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the mean and the standard deviation of contributions `[n]` from masks `[m n]` and log-odds `[m]`.

    `kinds` names groups of masks that have an offset each; `prior` is a map `[rows columns]`.
    """
    groups = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
    probabilities = scores.sigmoid()
    weights = (probabilities * (1 - probabilities)).clamp_min(LEAST_WEIGHT).sqrt()
    offsets = weights[:, None] * torch.eye(len(groups), dtype=masks.dtype)[[groups[kind] for kind in kinds]]
    seen, scored, known = weights[:, None] * masks, weights * scores, prior.flatten()
    if known.std() > 0 and len(masks) > len(groups) + 2:
        fixed = torch.cat([offsets, (seen @ known)[:, None]], dim=1)  # [m p]
        mean, covariance = _likeliest(fixed, seen, scored, prior)
        solve = torch.linalg.pinv(fixed)[-1]  # [m]
        multiple = solve @ (scored - seen @ mean)
        if multiple > 0:  # else the prior map is wrong: it is left out, not turned around
            moved = torch.eye(len(known), dtype=masks.dtype) - known[:, None] * (solve @ seen)
            covariance = moved @ covariance @ moved.T
            return mean + multiple * known, covariance.diagonal().clamp_min(0).sqrt()
    mean, covariance = _likeliest(offsets, seen, scored, prior)
    return mean, covariance.diagonal().clamp_min(0).sqrt()


def _likeliest(fixed: Tensor, seen: Tensor, scored: Tensor, prior: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the posterior mean and covariance under the likeliest reach and noise, whatever the fixed effects."""
    basis = torch.linalg.qr(fixed).Q
    left, design = (each - basis @ (basis.T @ each) for each in (scored, seen))
    free = max(len(seen) - fixed.shape[1], 1)
    best = (-torch.inf, left, left)
    apart, spread = distances(prior.shape), _spread(prior)
    for reach in REACHES:
        near_and_far = (torch.exp(-apart / (reach / 2)) + torch.exp(-apart / (reach * 2))) / 2
        root = spread[:, None] * torch.linalg.cholesky(near_and_far)  # [n n]
        values, vectors = _axes(design @ root)
        along = vectors.T @ (root.T @ (design.T @ left))
        explained = (along.square() / (values + NOISES[:, None])).sum(dim=1)  # of each noise
        variances = (left.square().sum() - explained).clamp_min(1e-300) / free
        likely = -0.5 * (free * variances.log() + (values / NOISES[:, None]).log1p().sum(dim=1))
        if float(likely.max()) > best[0]:
            turned = root @ vectors
            likeliest = turned @ (along / (values + NOISES[likely.argmax()]))
            # the covariance is averaged over the noise: where the scores say nothing, its likeliest value is infinite
            scale = likely.softmax(dim=0) * variances / NOISES
            shrunk = (turned * (scale[:, None] * values / (values + NOISES[:, None])).sum(dim=0)) @ turned.T
            best = float(likely.max()), likeliest, root @ root.T * scale.sum() - shrunk
    return best[1:]


def _axes(design: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the squared singular values of `[m n]` that are not 0, and their right vectors `[n r]`."""
    masks, patches = design.shape
    values, vectors = torch.linalg.eigh(design @ design.T if masks < patches else design.T @ design)
    here = values > 1e-12 * values.max()
    values, vectors = values[here], vectors[:, here]
    return values, design.T @ vectors / values.sqrt() if masks < patches else vectors


def _spread(prior: Tensor) -> Tensor:
    """Compute the standard deviations of contributions that a prior map suggests: `[n]`, 1 in the mean square."""
    height = prior.flatten().clamp_min(0)
    if not height.max() > 0:
        return torch.ones_like(height)
    variance = height / height.mean() + FLOOR
    return (variance / variance.mean()).sqrt()


def distances(grid: Sequence[int]) -> Tensor:
    """Compute the distances between patches `[n n]`, in fourteenths of the longer side: patches, in a grid of 14×14."""
    rows, columns = (torch.arange(side, dtype=torch.float64) for side in grid)
    places = torch.cartesian_prod(rows, columns) * (14 / max(grid))
    return torch.cdist(places, places)
