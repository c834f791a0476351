"""Times of several calls, taken in turn: a slow moment of the machine hits all alike, and medians leave it out."""

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

NOISY = 0.10
"""A spread over this is said to be noise."""
BUSY = 0.25
"""Work of others, as a share of the cores, from which the machine is said to be busy."""
TURN = 0.05
"""Seconds that a turn lasts at least: shorter calls are repeated."""
FEWEST = 3
"""Rounds that are run even when the time is up."""

Call = Callable[[], object]


@dataclass(frozen=True)
class Summary:
    """What is left of a list of times."""

    median: float
    """Seconds."""
    spread: float
    """The middle half of the times, from its lower to its upper end, as a share of the median."""
    rounds: int


def summarise(times: Sequence[float]) -> Summary:
    """The median, and how far the middle half lies apart.

    >>> summarise([1.0, 2.0, 3.0, 4.0, 100.0])
    Summary(median=3.0, spread=0.6666666666666666, rounds=5)
    """
    middle = statistics.median(times)
    if len(times) < 2:
        return Summary(middle, 0.0, len(times))
    lower, _, upper = statistics.quantiles(times, n=4, method="inclusive")
    return Summary(middle, (upper - lower) / middle, len(times))


def interleave(
    calls: Mapping[str, Call],
    *,
    seconds: float,
    rounds: int,
    settle: Call = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
    tell: Callable[[int], object] = lambda done: None,
) -> dict[str, list[float]]:
    """Seconds of each call, round by round: every call has one turn a round, and each round another goes first.

    A turn begins with a call that does not count: it finds caches full of another's weights, and threads of another
    that have not come to rest.
    `settle` waits for the device. It ends after `rounds` or when `seconds` are used up, though not before three rounds.
    """
    names = list(calls)
    repeats = {}
    for name, call in calls.items():  # the first call warms up, the second says how often a turn repeats it
        _timed(call, 1, settle, clock)
        repeats[name] = max(1, round(TURN / max(_timed(call, 1, settle, clock), 1e-6)))
    times: dict[str, list[float]] = {name: [] for name in names}
    start = clock()
    for turn in range(max(rounds, FEWEST)):
        for name in rotated(names, turn):
            calls[name]()
            times[name].append(_timed(calls[name], repeats[name], settle, clock))
        tell(turn + 1)
        if turn + 1 >= FEWEST and clock() - start >= seconds:
            break
    return times


def rotated(names: Sequence[str], turn: int) -> list[str]:
    """The order of a round: another goes first, and odd rounds run backwards, so that neighbours change too.

    >>> ["".join(rotated("abc", turn)) for turn in range(6)]
    ['abc', 'cba', 'bca', 'acb', 'cab', 'bac']
    """
    first = turn // 2 % max(len(names), 1)
    order = [*names[first:], *names[:first]]
    return order if turn % 2 == 0 else order[::-1]


def noise(spreads: Mapping[str, float], load: float | None, cores: int) -> list[str]:
    """What speaks against the numbers: times that scatter, and others who use the machine.

    >>> noise({"timm": 0.02, "vitreous": 0.04}, load=0.1, cores=2)
    []
    """
    said = []
    if wide := {name: spread for name, spread in spreads.items() if spread > NOISY}:
        worst = max(wide, key=lambda name: wide[name])
        others = f" and {len(wide) - 1} more" if len(wide) > 1 else ""
        said.append(
            f"noisy: the middle half of the times of {worst} spreads over {wide[worst]:.0%} of the median{others}; "
            "give it more --seconds or a quieter machine"
        )
    if load is not None and load > BUSY * cores:
        said.append(f"busy: the load average was {load:.1f} on {cores} cores before this began: others use them")
    return said


def load_average() -> float | None:
    """How many processes wanted a core over the last minute; None where the system does not tell."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return None


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _timed(call: Call, repeats: int, settle: Call, clock: Callable[[], float]) -> float:
    """Seconds of one call: the mean over a turn. The device settles after each, as for somebody who waits."""
    settle()
    start = clock()
    for _ in range(repeats):
        call()
        settle()
    return (clock() - start) / repeats
