"""What may be concluded: intervals over seeds, an exact paired test over images, and when the two agree.

Two things are left to chance in a comparison. Another seed gives other weights: the interval over seeds (Student's t)
tells how far that goes. Other test images give another accuracy: the test over images tells about that. A verdict
is drawn only where both say the same.

Shapes:  s seeds · n images
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

LEVEL = 0.95
"""How sure an interval is, and with it 1 - `LEVEL` is what a test must fall below."""


def seed_interval(values: ArrayLike, level: float = LEVEL) -> tuple[float, float | None]:
    """The mean over seeds and the half width of its interval (Student's t); None for the width of one seed alone.

    >>> mean, half = seed_interval([0.90, 0.92, 0.94])
    >>> round(mean, 4), round(half, 4)
    (0.92, 0.0497)
    """
    from scipy.stats import t

    values = np.asarray(values, dtype=float)
    mean, count = float(values.mean()), len(values)
    if count < 2:
        return mean, None
    return mean, float(t.ppf((1 + level) / 2, count - 1) * values.std(ddof=1) / np.sqrt(count))


def images_test(one: ArrayLike, other: ArrayLike) -> float:
    """The exact paired test over images, two-sided: right answers `[s n]` of two models → p.

    Were the models alike, each image's difference (how many seeds of one are right, less those of the other) could as
    well have the other sign. The sum over images of all such choices of sign has a distribution that is worked out
    whole, without drawing a sample. With one seed this is McNemar's exact test.

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
    chances = np.ones(1)  # chances[i]: that the differences for the first model add up to i
    for size in range(1, sizes.max(initial=0) + 1):
        if count := int((sizes == size).sum()):
            spaced = np.zeros(size * count + 1)
            spaced[::size] = binom.pmf(np.arange(count + 1), count, 0.5)
            chances = convolve(chances, spaced, method="direct")  # an FFT would drown small chances in rounding
    total, seen = int(sizes.sum()), abs(int(differences.sum()))
    sums = 2 * np.arange(total + 1) - total
    return float(min(1.0, chances[np.abs(sums) >= seen].sum()))


def holm(chances: Sequence[float]) -> list[float]:
    """p-values of several tests, raised so that one mistake among all of them is as unlikely as in one (Holm, 1979).

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    raised, least = [1.0] * len(chances), 0.0
    for rank, i in enumerate(sorted(range(len(chances)), key=lambda i: chances[i])):
        least = max(least, min(1.0, (len(chances) - rank) * chances[i]))
        raised[i] = least
    return raised


@dataclass(frozen=True)
class Pair:
    """Two models against each other; differences are the first's accuracy less the second's."""

    one: str
    other: str
    difference: float
    half: float | None
    """Half width of the interval of the difference over seeds; the same seed means the same order of images."""
    chance: float
    """p of the test over images."""
    seed_chance: float
    """p of the paired t test over seeds; 1 for one seed alone."""
    raised: float
    """The larger of the two, corrected for all pairs of the study (Holm): what a verdict hangs on."""
    verdict: str
    """The better model's name, or the empty word."""
    reason: str
    """The verdict in words, or why there is none."""


def judge(right: dict[str, np.ndarray], starts: dict[str, str]) -> list[Pair]:
    """Every pair of models: right answers by name `[s n]`, and how each began (`from scratch`, `fine-tuned`)."""
    names = list(right)
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    by_seed = [right[a].mean(axis=1) - right[b].mean(axis=1) for a, b in pairs]  # [s] each
    images = [images_test(right[a], right[b]) for a, b in pairs]
    seeds = [seeds_test(differences) for differences in by_seed]
    raised = holm([max(both) for both in zip(images, seeds, strict=True)])
    return [
        _judged(pair, differences, chances, starts[pair[0]] != starts[pair[1]])
        for pair, differences, chances in zip(pairs, by_seed, zip(images, seeds, raised, strict=True), strict=True)
    ]


def seeds_test(differences: ArrayLike) -> float:
    """p of the paired t test: that the mean of `[s]` differences over seeds is zero.

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
    return float(2 * t.sf(abs(mean) / spread * np.sqrt(len(values)), len(values) - 1))


def _judged(pair: tuple[str, str], by_seed: np.ndarray, chances: tuple[float, float, float], unlike: bool) -> Pair:
    one, other = pair
    difference, half = seed_interval(by_seed)
    better, worse = (one, other) if difference > 0 else (other, one)
    verdict = ""
    points = f"{100 * abs(difference):.2f} points"
    if unlike:
        reason = "different starts: no verdict"
    elif half is None:
        reason = "one seed: no verdict, for how far seeds differ is not known"
    elif abs(difference) <= half:
        reason = f"no verdict: {points} apart, and the interval over seeds holds zero"
    elif chances[0] >= 1 - LEVEL:
        reason = f"no verdict: {points} apart, and the test over images does not confirm it"
    elif chances[2] >= 1 - LEVEL:
        reason = f"no verdict: {points} apart, which among so many pairs may be chance"
    else:
        verdict, reason = (
            better,
            f"{better} is better than {worse} by {points} with this budget, over seeds and over images",
        )
    return Pair(one, other, difference, half, *chances, verdict, reason)
