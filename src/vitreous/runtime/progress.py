"""Progress of slow work, live on a terminal or in a log: how far it is, how much time is left, when a line is due."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Self, TypeVar

from vitreous.runtime.wording import duration

if TYPE_CHECKING:
    from rich.console import Console

Item = TypeVar("Item")
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


class Estimate:
    """Show how far slow work has come and how long it will take: live on a terminal, else by a line now and then."""

    def __init__(self, console: Console, what: str) -> None:
        self.console, self.what = console, what
        self.status = console.status(what)
        self.since = self.called = time.monotonic()
        self.pace, self.done = LogPace(), 0

    def __enter__(self) -> Self:
        self.status.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.status.stop()

    def begin(self, what: str) -> None:
        """Begin the next part of slow work, whose progress and time left are counted from here."""
        self.what, self.since, self.done = what, time.monotonic(), 0
        self.status.update(what)

    def __call__(self, done: int, total: int) -> None:
        """Show the progress of slow work: `done` of `total` steps, and how much time is left."""
        if done <= self.done:  # once more from the start
            self.since = self.called
        self.done, self.called = done, time.monotonic()
        if done < total:
            self.say(f"{done:,} of {total:,}, {time_left(self.called - self.since, done, total)}")

    def track(self, items: Iterable[Item], total: int) -> Iterator[Item]:
        """Yield items, and show the progress as each is done: how many of `total`, and the time left."""
        for done, item in enumerate(items, 1):
            self(done, total)
            yield item

    def say(self, text: str) -> None:
        """Show progress as a live line on a terminal, or as a line of a log if the last is some seconds old."""
        self.status.update(f"{self.what}: {text}")
        if not self.console.is_terminal and self.pace.is_due():
            self.console.print(f"{self.what}: {text}", style="dim", markup=False)
