"""Time several calls in turns, so that a slow moment affects all alike; medians, spread, warnings of noise and load."""

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

NOISY = 0.10
"""A larger spread gives a warning of noise."""
BUSY = 0.25
"""Load of other processes, as a share of the cores, that gives a warning of a busy machine."""
TURN = 0.05
"""Minimum seconds of a turn: shorter calls are repeated."""
MIN_ROUNDS = 3
"""Rounds that run even if the time is used up."""

Call = Callable[[], object]


@dataclass(frozen=True)
class TimingSummary:
    """Median and spread of a list of benchmark timings."""

    median: float
    """Seconds."""
    spread: float
    """Interquartile range relative to the median."""
    rounds: int


def summarise(times: Sequence[float]) -> TimingSummary:
    """Compute the median and the interquartile range of timings.

    >>> summarise([1.0, 2.0, 3.0, 4.0, 100.0])
    TimingSummary(median=3.0, spread=0.6666666666666666, rounds=5)
    """
    middle = statistics.median(times)
    if len(times) < 2:
        return TimingSummary(middle, 0.0, len(times))
    lower, _, upper = statistics.quantiles(times, n=4, method="inclusive")
    return TimingSummary(middle, (upper - lower) / middle, len(times))


def interleave(
    calls: Mapping[str, Call],
    *,
    seconds: float,
    rounds: int,
    synchronize: Call = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
    note: Callable[[int], object] = lambda done: None,
) -> dict[str, list[float]]:
    """Time calls in rounds: every call has one turn in a round, and each round starts with another one.

    A turn starts with a call that does not count, since caches hold another's weights and another's threads may still
    spin. `synchronize` waits for the device. It ends after `rounds`, or after `seconds` but at least three rounds.
    """
    names = list(calls)
    repeats = {}
    for name, call in calls.items():  # the first call warms up, the second says how often a turn repeats it
        _timed(call, 1, synchronize, clock)
        repeats[name] = max(1, round(TURN / max(_timed(call, 1, synchronize, clock), 1e-6)))
    times: dict[str, list[float]] = {name: [] for name in names}
    start = clock()
    for turn in range(max(rounds, MIN_ROUNDS)):
        for name in rotated(names, turn):
            calls[name]()
            times[name].append(_timed(calls[name], repeats[name], synchronize, clock))
        note(turn + 1)
        if turn + 1 >= MIN_ROUNDS and clock() - start >= seconds:
            break
    return times


def rotated(names: Sequence[str], turn: int) -> list[str]:
    """Order the calls of a round of timing: each starts with another, and odd rounds are reversed.

    >>> ["".join(rotated("abc", turn)) for turn in range(6)]
    ['abc', 'cba', 'bca', 'acb', 'cab', 'bac']
    """
    first = turn // 2 % max(len(names), 1)
    order = [*names[first:], *names[:first]]
    return order if turn % 2 == 0 else order[::-1]


def noise(spreads: Mapping[str, float], load: float | None, cores: int) -> list[str]:
    """List what makes timings unreliable, as warnings: a wide spread, and a busy machine.

    >>> noise({"timm": 0.02, "vitreous": 0.04}, load=0.1, cores=2)
    []
    """
    warnings = []
    if wide := {name: spread for name, spread in spreads.items() if spread > NOISY}:
        worst = max(wide, key=lambda name: wide[name])
        others = f" and {len(wide) - 1} more" if len(wide) > 1 else ""
        warnings.append(
            f"noisy: the interquartile range of {worst} is {wide[worst]:.0%} of the median{others}; "
            "use more --seconds or a quieter machine"
        )
    if load is not None and load > BUSY * cores:
        warnings.append(
            f"busy: the load average was {load:.1f} on {cores} cores before the start: other processes use them"
        )
    return warnings


def load_average() -> float | None:
    """Return the load that disturbs the timing: its average over the last minute; None if the system has none."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return None


def _timed(call: Call, repeats: int, synchronize: Call, clock: Callable[[], float]) -> float:
    """Measure the mean seconds of a call over a turn, synchronizing after each."""
    synchronize()
    start = clock()
    for _ in range(repeats):
        call()
        synchronize()
    return (clock() - start) / repeats
