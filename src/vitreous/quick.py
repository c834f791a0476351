"""A process that starts and ends quickly: Python's search for unreachable objects waits until torch is there.

While torch is imported, hundreds of thousands of objects come to be and none goes; looking through them again and
again, and once more at the end of the process, takes a quarter of the time that a short command takes.
"""

import gc
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any


def quick(verb: Callable[..., Any]) -> Callable[..., Any]:
    """The same verb, which imports torch first, in the quick way; where torch is there already, the verb as it is."""
    if "torch" in sys.modules:
        return verb

    @wraps(verb)
    def start(*words: Any, **flags: Any) -> Any:
        gc.disable()
        try:
            import torch  # noqa: F401
        finally:
            gc.enable()
        gc.freeze()  # what is there now stays: no search needs to look at it, not even the last one
        return verb(*words, **flags)

    return start
