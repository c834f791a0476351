"""Return memory that the C library (glibc) keeps after a page was computed to the system.

A page of a small model takes some 100 MB for a second, in pieces. All are freed, but glibc keeps what lies below a
piece that is still in use: a resident size that looks like a leak and is none. glibc also opens a heap for every
thread, and the free end of such a heap cannot be returned at all.
"""

import ctypes
from collections.abc import Callable

ARENA_MAX = -8  # M_ARENA_MAX of glibc's malloc.h


def share_heap() -> bool:
    """Let threads that start from now on share the first heap; False if the C library is not glibc."""
    limit = _function("mallopt")
    return limit is not None and bool(limit(ARENA_MAX, 1))


def give_back() -> bool:
    """Return the C library's free memory to the system; False if it is not glibc."""
    trim = _function("malloc_trim")
    return trim is not None and bool(trim(0))


def _function(name: str) -> Callable[..., int] | None:
    """Find a function of the process's own C library, if that is glibc."""
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018  # another library may have functions of these names
        function: Callable[..., int] = getattr(library, name)
    except (AttributeError, OSError, TypeError):  # musl and macOS lack it, and Windows rejects CDLL(None)
        return None
    return function
