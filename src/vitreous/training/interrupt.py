"""Being asked to stop (Ctrl-C, a scheduler's SIGTERM) as a flag that the loop looks at between updates."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Stopped(BaseException):  # no error, and as little to be swallowed on its way as KeyboardInterrupt
    """The run was asked to stop, and everything is saved."""

    def __init__(self, number: int, said: str) -> None:
        super().__init__(said)
        self.number = number


class Flag:
    """Which signal came, 0 for none yet."""

    number = 0
    watched = False
    """Whether the loop looks at us by now. Before, in minutes of decoding perhaps, a signal ends the run at once."""


def stop_if(number: int, epoch: int, step: int, steps: int) -> None:
    """End the run, which the caller has just saved, where a signal of this number came."""
    if number:
        raise Stopped(number, f"stopped and saved in epoch {epoch + 1} after {step} of {steps} updates")


@contextmanager
def asked_to_stop(*, patient: bool = False) -> Iterator[Flag]:
    """Catch the first SIGINT or SIGTERM; a second one ends the process at once, as it would without us.

    Not so where the process is `patient`: Ctrl-C reaches the ranks of a run twice, from the terminal and again through
    `torchrun`, which ends whoever takes too long.
    """
    flag = Flag()
    before: dict[int, Any] = {}

    def note(number: int, frame: object) -> None:
        flag.number = number
        for each, handler in before.items():
            signal.signal(each, signal.SIG_IGN if patient else handler)
        if not flag.watched:
            raise Stopped(number, "stopped while getting ready")

    if threading.current_thread() is threading.main_thread():  # Python lets no other thread do this
        before |= {each: signal.signal(each, note) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield flag
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
