"""Compute what a study shows: intervals over seeds, paired tests over images, Holm's correction, verdicts.

Two things are random in a comparison. Another seed gives other weights: the interval over seeds (Student's t) measures
that. Other test images give another accuracy: the test over images measures that. A verdict needs both to agree.

Shapes:  s seeds · n images · r choices of images
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

LEVEL = 0.95
"""Confidence of the intervals; a test is significant below 1 - `LEVEL`."""
ENOUGH_SEEDS = 3
"""Seeds from which on an interval over seeds is stated: of two, Student's t is wider than any difference."""
MOST_SEEDS = 100
"""Seeds up to which a study is advised to go on."""
EXCHANGES, AT_ONCE = 1999, 50
"""Random choices of images in `exchange_test`, and how many of them are computed at once."""
DIFFERENT_STARTS = "different starts: no verdict"


def seed_interval(values: ArrayLike) -> tuple[float, float | None]:
    """Compute the statistics of seeds: their mean and its interval's half width (Student's t); none for one or two.

    >>> mean, half = seed_interval([0.90, 0.92, 0.94])
    >>> round(mean, 4), round(half, 4)
    (0.92, 0.0497)
    """
    from scipy.stats import t

    values = np.asarray(values, dtype=float)
    mean, count = float(values.mean()), len(values)
    if count < ENOUGH_SEEDS:
        return mean, None
    return mean, float(t.ppf((1 + LEVEL) / 2, count - 1) * values.std(ddof=1) / np.sqrt(count))


def images_test(one: ArrayLike, other: ArrayLike) -> float:
    """Test two models over images, exact, paired and two-sided: correct answers `[s n]` of both → p.

    If the models were alike, each image's difference (how many seeds of one are correct, less those of the other)
    could as well have the other sign. The distribution of the sum over all choices of sign is computed exactly,
    without sampling. With one seed this is McNemar's exact test. (`scipy.stats.permutation_test` is exact only for
    a handful of images.)

    >>> round(images_test([[1, 1, 1, 1, 1, 0]], [[0, 0, 0, 0, 0, 0]]), 6)  # five images, all for the first: 2 / 2⁵
    0.0625
    """
    from scipy.signal import convolve
    from scipy.stats import binom

    one, other = (np.atleast_2d(np.asarray(each, dtype=bool)) for each in (one, other))
    if one.shape != other.shape:
        raise ValueError(f"both models must answer the same images with as many seeds, got {one.shape}, {other.shape}")
    differences = one.sum(axis=0, dtype=int) - other.sum(axis=0, dtype=int)  # [n], from -s to s
    sizes = np.abs(differences)
    density = np.ones(1)  # density[i]: probability that the differences for the first model add up to i
    for size in range(1, sizes.max(initial=0) + 1):
        if count := int((sizes == size).sum()):
            spaced = np.zeros(size * count + 1)
            spaced[::size] = binom.pmf(np.arange(count + 1), count, 0.5)
            density = convolve(density, spaced, method="direct")  # an FFT would drown small values in rounding
    total, seen = int(sizes.sum()), abs(int(differences.sum()))
    sums = 2 * np.arange(total + 1) - total
    return float(min(1.0, density[np.abs(sums) >= seen].sum()))


def exchange_test(differences: Callable[[NDArray[np.bool_]], NDArray[np.float64]], images: int) -> float:
    """Test two models over images by a score of any kind, paired and two-sided: → p.

    If the models were alike, each image's answers could as well be the other model's. `differences` computes the
    score's difference with the answers of chosen images exchanged: `[r n]` → `[r]`. So many random choices are made,
    the same in each call, and p is the share of them with at least the difference that was seen, which is one of them.

    >>> gains = np.array([0.5, 0.25, 0.75, 0.5, 1.0, 0.25, 0.5, 0.125, 0.5, 0.25])  # every image speaks for the first
    >>> exchange_test(lambda exchanged: np.where(exchanged, -gains, gains).mean(axis=1), 10)
    0.003
    """
    random = np.random.default_rng(0)
    (seen,) = np.abs(differences(np.zeros((1, images), dtype=bool)))
    count = 1
    for begin in range(0, EXCHANGES, AT_ONCE):
        chosen = random.random((min(AT_ONCE, EXCHANGES - begin), images)) < 0.5
        count += int((np.abs(differences(chosen)) >= seen - 1e-12).sum())
    return count / (EXCHANGES + 1)


def seeds_test(differences: ArrayLike) -> float:
    """Test two models over seeds by a paired t test: `[s]` differences → p that their mean is zero; 1 for one seed.

    >>> round(seeds_test([0.01, 0.02, 0.03]), 4), seeds_test([0.1])
    (0.0742, 1.0)
    """
    from scipy.stats import t

    values = np.asarray(differences, dtype=float)
    if len(values) < 2:
        return 1.0
    mean, spread = float(values.mean()), float(values.std(ddof=1))
    if not spread:
        return float(mean == 0)
    # not `ttest_1samp`, which warns of differences that are equal but for rounding
    return float(2 * t.sf(abs(mean) / spread * np.sqrt(len(values)), len(values) - 1))


def seeds_needed(differences: ArrayLike) -> int | None:
    """Count the seeds that would exclude zero from a study's interval if they differed as these do; None above 100.

    >>> seeds_needed([0.01, 0.02, 0.03]), seeds_needed([0.01, -0.01, 0.001])
    (4, None)
    """
    from scipy.stats import t

    values = np.asarray(differences, dtype=float)
    mean, spread = abs(float(values.mean())), float(values.std(ddof=1))
    counts = np.arange(max(len(values), ENOUGH_SEEDS), MOST_SEEDS + 1)
    enough = counts[t.ppf((1 + LEVEL) / 2, counts - 1) * spread / np.sqrt(counts) < mean]
    return int(enough[0]) if len(enough) else None


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct the p-values of several tests, so that one mistake among all is as unlikely as in one (Holm, 1979).

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    corrected, floor = [1.0] * len(p_values), 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        floor = max(floor, min(1.0, (len(p_values) - rank) * p_values[i]))
        corrected[i] = floor
    return corrected


@dataclass(frozen=True)
class Pair:
    """Two models of a study against each other; differences are the first's score less the second's."""

    one: str
    other: str
    difference: float
    half_width: float | None
    """Of the difference's interval over seeds; the same seed means the same order of images."""
    p_images: float
    """p of the test over images."""
    p_seeds: float
    """p of the paired t test over seeds; 1 for a single seed."""
    p_corrected: float
    """The larger of the two, corrected for all pairs of the study (Holm); the verdict depends on it."""
    verdict: str
    """The better model's name, or an empty string."""
    reason: str
    """The verdict in words, or why there is none."""


def compare_pairs(correct: Mapping[str, NDArray[np.bool_]], starts: Mapping[str, str]) -> list[Pair]:
    """Compute the statistics of every pair of models: correct answers by name `[s n]`; `starts` says how each began.

    Models that began differently (`from scratch`, `fine-tuned`) get no verdict.
    """
    scores = {name: each.mean(axis=1) for name, each in correct.items()}
    return judge_pairs(scores, lambda one, other: images_test(correct[one], correct[other]), starts)


def judge_pairs(
    scores: Mapping[str, NDArray[np.float64]],
    test: Callable[[str, str], float],
    starts: Mapping[str, str],
    spell: Callable[[float], str] = lambda size: f"{100 * size:.2f} points",
) -> list[Pair]:
    """Compute the statistics of every pair of models from their scores `[s]` and a test over images: names → p.

    `spell` writes the size of a difference.
    """
    names = list(scores)
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    by_seed = [scores[a] - scores[b] for a, b in pairs]  # [s] each
    images = [test(a, b) for a, b in pairs]
    seeds = [seeds_test(differences) for differences in by_seed]
    corrected = holm([max(both) for both in zip(images, seeds, strict=True)])
    return [
        _compare_pair(pair, differences, p_values, starts[pair[0]] == starts[pair[1]], spell)
        for pair, differences, p_values in zip(pairs, by_seed, zip(images, seeds, corrected, strict=True), strict=True)
    ]


def _compare_pair(
    pair: tuple[str, str],
    by_seed: NDArray[np.float64],
    p_values: tuple[float, float, float],
    same_start: bool,
    spell: Callable[[float], str],
) -> Pair:
    """Compute the statistics of two models: difference, interval, tests and verdict."""
    one, other = pair
    difference, half = seed_interval(by_seed)
    better, worse = (one, other) if difference > 0 else (other, one)
    verdict = ""
    points = spell(abs(difference))
    if not same_start:
        reason = DIFFERENT_STARTS
    elif half is None:
        count = "one seed" if len(by_seed) == 1 else "two seeds"
        reason = f"{count}: no verdict, because the spread over seeds is unknown; {ENOUGH_SEEDS} seeds would do"
    elif abs(difference) <= half:
        needed = seeds_needed(by_seed)
        advice = f"{needed} seeds like these would do" if needed else f"{MOST_SEEDS} seeds like these would not do"
        reason = f"no verdict: {points} apart, and the interval over seeds holds zero; {advice}"
    elif p_values[0] >= 1 - LEVEL:
        reason = f"no verdict: {points} apart, and the test over images does not confirm it"
    elif p_values[2] >= 1 - LEVEL:
        reason = f"no verdict: {points} apart, which may be chance among so many pairs"
    else:
        verdict = better
        reason = f"{better} is better than {worse} by {points} with this budget, over seeds and over images"
    return Pair(one, other, difference, half, *p_values, verdict, reason)
