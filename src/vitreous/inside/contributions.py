"""Fit contributions of patches to scores of masked images: a Gaussian regression with a prior map, and its errors.

A score, the log-odds of a class, is taken as an offset plus the contributions of the patches that are kept, plus
noise, which is larger where the probability is near 0 or 1. Contributions have a Gaussian prior: a multiple of a
prior map, and a part that varies more where the prior map is high and is similar in neighbouring patches. Its scale,
its reach and the noise are those that make the scores likeliest (restricted maximum likelihood), so that few passes
stay near the prior map and many follow the passes. The posterior gives an error for each patch, whose part from noise
is corrected by the residuals of the scores that decide about it: the noise need not be what the model takes it for.

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
LEAST_LEFT = 1e-3
"""Least share of a score's fit that others decide."""


def fit_contributions(masks: Tensor, scores: Tensor, kinds: Sequence[Hashable], prior: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the mean and the standard deviation of contributions `[n]` from masks `[m n]` and log-odds `[m]`.

    `kinds` names groups of masks that have an offset each; `prior` is a map `[rows columns]`.
    """
    groups = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
    members = torch.eye(len(groups), dtype=masks.dtype)[[groups[kind] for kind in kinds]]  # [m p]
    known = prior.flatten()
    helpful = bool(known.std() > 0) and len(masks) > len(groups) + 2
    fits, expected = [], scores
    for _ in range(2):  # weights by the scores themselves prefer noise towards 0; the second time they are by the fit
        probabilities = expected.sigmoid()
        weights = (probabilities * (1 - probabilities)).clamp_min(LEAST_WEIGHT).sqrt()
        seen, offsets = weights[:, None] * masks, weights[:, None] * members
        fixed = torch.cat([offsets, (seen @ known)[:, None]], dim=1) if helpful else offsets
        found = _fit(fixed, seen, weights * scores, prior, known if helpful else None)
        if found is None:  # the prior map is wrong: it is left out, not turned around
            found = _fit(offsets, seen, weights * scores, prior, None)
            assert found is not None
        fits.append(found)
        expected = found[2] / weights
    # the first mean ranks patches better; of the variances either may be far too small with few scores, but rarely both
    (mean, variance, _), (_, other, _) = fits
    return mean, torch.maximum(variance, other).clamp_min(0).sqrt()


def _fit(
    fixed: Tensor, seen: Tensor, scored: Tensor, prior: Tensor, known: Tensor | None
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Fit contributions of patches: their mean and variance `[n]`, and the scores `[m]`; None if `known` has no weight.

    `known` is the prior map, if it is the last of the fixed effects. The variance of the noise is replaced by that of
    each score's own residual (a sandwich estimate), divided by 1 − its share in its own fit: its expectation is then
    the noise's variance if the model is right (MacKinnon & White, 1985, HC2).
    """
    mean, covariance, smoother, noise, within = _likeliest(fixed, seen, scored, prior)
    solve = torch.linalg.pinv(fixed)  # [p m]
    effects = solve @ (scored - seen @ mean)
    fitted = fixed @ effects + seen @ mean
    if known is not None:
        if effects[-1] <= 0:
            return None
        moved = torch.eye(len(known), dtype=seen.dtype) - known[:, None] * (solve[-1] @ seen)
        covariance = moved @ covariance @ moved.T
        smoother = moved @ smoother + known[:, None] * solve[-1]
        mean = mean + effects[-1] * known
    variance = covariance.diagonal()
    if known is not None:
        variance = variance + known.square() * noise * solve[-1].square().sum()
    own = (scored - fitted).square() / (1 - within).clamp_min(LEAST_LEFT)  # [m]
    return mean, variance + smoother.square() @ (own - noise), fitted


def _likeliest(
    fixed: Tensor, seen: Tensor, scored: Tensor, prior: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compute the posterior of contributions under the likeliest reach and noise, whatever the fixed effects.

    Its mean `[n]`, its covariance `[n n]`, what it makes of scores `[n m]`, the variance of the noise, and how much
    each score decides about its own fit `[m]`.
    """
    basis = torch.linalg.qr(fixed).Q
    left, design = (each - basis @ (basis.T @ each) for each in (scored, seen))
    free = max(len(seen) - fixed.shape[1], 1)
    highest, best = -torch.inf, (left, left, left, left, left)
    apart, spread = distances(prior.shape), _spread(prior)
    for reach in REACHES:
        near_and_far = (torch.exp(-apart / (reach / 2)) + torch.exp(-apart / (reach * 2))) / 2
        root = spread[:, None] * torch.linalg.cholesky(near_and_far)  # [n n]
        values, vectors = _axes(design @ root)
        along = vectors.T @ (root.T @ (design.T @ left))
        explained = (along.square() / (values + NOISES[:, None])).sum(dim=1)  # of each noise
        variances = (left.square().sum() - explained).clamp_min(1e-300) / free
        likely = -0.5 * (free * variances.log() + (values / NOISES[:, None]).log1p().sum(dim=1))
        if float(likely.max()) > highest:
            highest, turned = float(likely.max()), root @ vectors
            smoother = (turned / (values + NOISES[likely.argmax()])) @ (turned.T @ design.T)  # [n m]
            # the covariance is averaged over the noise: where the scores say nothing, its likeliest value is infinite
            scale = likely.softmax(dim=0) * variances / NOISES
            shrunk = (turned * (scale[:, None] * values / (values + NOISES[:, None])).sum(dim=0)) @ turned.T
            within = basis.square().sum(dim=1) + (design * smoother.T).sum(dim=1)
            noise = (likely.softmax(dim=0) * variances).sum()
            best = smoother @ left, root @ root.T * scale.sum() - shrunk, smoother, noise, within
    return best


def _axes(design: Tensor) -> tuple[Tensor, Tensor]:
    """Compute, to fit contributions, squared singular values above 0 of masks `[m n]`, and right vectors `[n r]`."""
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
    """Compute the distances over which contributions of patches are alike, `[n n]`, in fourteenths of a side."""
    rows, columns = (torch.arange(side, dtype=torch.float64) for side in grid)
    places = torch.cartesian_prod(rows, columns) * (14 / max(grid))
    return torch.cdist(places, places)
