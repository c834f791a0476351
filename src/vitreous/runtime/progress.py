"""Progress of slow work in a log: when the next line is due, and how much time is left, in words."""

import math
import time

from vitreous.runtime.wording import duration

FIRST, INTERVAL = 5.0, 15.0
"""Seconds until the first line of a log, and between two at least."""


class LogPace:
    """Decide when a log gets its next line of progress: after 5 s, then every 15 s, more rarely in long work."""

    def __init__(self) -> None:
        self.since = time.monotonic()
        self.due = self.since + FIRST

    def is_due(self) -> bool:
        """Return whether it is time for a line; if so, the next one is due later."""
        if time.monotonic() < self.due:
            return False
        self.wait()
        return True

    def wait(self) -> None:
        """Let the next line wait, because one was just printed."""
        now = time.monotonic()
        self.due = now + max(INTERVAL, (now - self.since) / 10)


def time_left(seconds: float, done: int, total: int) -> str:
    """Estimate in words how long the rest of some work takes, if `done` of `total` took `seconds`.

    >>> time_left(10, 50, 400)
    'about 1 min 10 s left'
    """
    left = math.ceil(seconds / done * (total - done))
    return f"about {left} s left" if left < 60 else f"about {duration(left)} left"
