"""Memory that a page has used and the C library has kept, given back to the system.

A page of a small model takes some 100 MB for a second, in pieces. They are all freed, but glibc keeps what lies below
a piece that is still in use, or might be wanted soon: a resident size that looks like a leak and is none. It also
begins a heap for every thread, and the free end of such a heap cannot be given back at all.
"""

import ctypes
from collections.abc import Callable

ARENA_MAX = -8  # M_ARENA_MAX of glibc's malloc.h


def share_heap() -> bool:
    """Let threads that begin from now on share the first heap, where the C library is glibc; elsewhere False."""
    limit = _function("mallopt")
    return limit is not None and bool(limit(ARENA_MAX, 1))


def give_back() -> bool:
    """Give free memory back to the system, where the C library is glibc; elsewhere nothing, and False."""
    trim = _function("malloc_trim")
    return trim is not None and bool(trim(0))


def _function(name: str) -> Callable[..., int] | None:
    """A function of the process's own C library, where it is glibc."""
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018  # another library may understand the same words otherwise
        function: Callable[..., int] = getattr(library, name)
    except (AttributeError, OSError, TypeError):  # musl and macOS lack it, and Windows does not know CDLL(None)
        return None
    return function
