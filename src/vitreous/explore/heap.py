"""Memory that a page has used and the C library has kept, given back to the system.

A page of a small model takes some 100 MB for a second, in pieces. They are all freed, but glibc keeps what lies below
a piece that is still in use, or might be wanted soon: a resident size that looks like a leak and is none.
"""

import ctypes
from collections.abc import Callable


def give_back() -> bool:
    """Give free memory back to the system where its C library is glibc; elsewhere nothing, and False."""
    trim = _trim()
    return trim is not None and bool(trim(0))


def _trim() -> Callable[[int], int] | None:
    try:
        trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim  # the process's own C library
    except (AttributeError, OSError, TypeError):  # musl and macOS have none, and Windows does not know CDLL(None)
        return None
    return trim
