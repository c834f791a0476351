"""A process that starts and ends quickly: Python's search for unreachable objects waits until torch is there.

While torch is imported, hundreds of thousands of objects come to be and none goes; looking through them again and
again, and once more at the end of the process, takes a quarter of the time that a short command takes.
"""

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

INTERRUPTED = 130
"""Exit code of a process that Ctrl-C ended, as shells have it."""


def quick(command: Callable[..., Any]) -> Callable[..., Any]:
    """The same command, which imports torch first, in the quick way; where torch is there already, the command as it is."""
    if "torch" in sys.modules:
        return command

    @wraps(command)
    def start(*words: Any, **flags: Any) -> Any:
        gc.disable()
        try:
            with ended_by_interrupts():
                import torch  # noqa: F401
        finally:
            gc.enable()
        gc.freeze()  # what is there now stays: no search needs to look at it, not even the last one
        return command(*words, **flags)

    return start


@contextmanager
def ended_by_interrupts() -> Iterator[None]:
    """Let Ctrl-C end the process at once: raised while torch is imported, it is now and then swallowed there."""
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not usual or threading.current_thread() is not threading.main_thread():  # another's, or not ours to set
        yield
        return
    signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
