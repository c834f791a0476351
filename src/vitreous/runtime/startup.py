"""Start-up: import torch quickly (garbage collector off), show a first line meanwhile, and let Ctrl-C exit.

The import creates hundreds of thousands of objects and frees none. Searching them for garbage during the import, and
once more when the process exits, takes a quarter of the time of a short command.
"""

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import wraps
from typing import Any

from vitreous.runtime.distributed import this_rank

STARTING = "loading PyTorch …"
INTERRUPTED = 130
"""Exit code after Ctrl-C, as in shells: 128 + SIGINT."""


def with_torch(command: Callable[..., Any], *, say: bool = True) -> Callable[..., Any]:
    """Wrap a command so that it imports torch first, quickly; return it unchanged if torch is already imported.

    `say` prints a first line meanwhile.
    """
    if "torch" in sys.modules:
        return command

    @wraps(command)
    def start(*words: Any, **flags: Any) -> Any:
        gc.disable()
        try:
            with exit_on_interrupt(), starting_line() if say else nullcontext():
                import torch  # noqa: F401
        finally:
            gc.enable()
        gc.freeze()  # these objects stay: no later collection has to look at them, not even the last one
        return command(*words, **flags)

    return start


@contextmanager
def starting_line() -> Iterator[None]:
    """Say at once that the command has begun, since importing torch takes a second; a terminal erases it then."""
    terminal = sys.stderr.isatty()
    if this_rank().first:
        print(STARTING, end="" if terminal else "\n", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if terminal and this_rank().first:
            print(f"\r{' ' * len(STARTING)}\r", end="", file=sys.stderr, flush=True)


@contextmanager
def exit_on_interrupt() -> Iterator[None]:
    """Let Ctrl-C exit the process at once: a KeyboardInterrupt during the import of torch is sometimes swallowed."""
    default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not default or threading.current_thread() is not threading.main_thread():  # Python lets no other thread set it
        yield
        return

    def leave(*_: object) -> None:
        os.write(2, b"\n" * sys.stderr.isatty() + b"vitreous: interrupted\n")  # a terminal's line is still open
        os._exit(INTERRUPTED)

    signal.signal(signal.SIGINT, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
