"""Memory of this process: recognise that it ran out; let the C library (glibc) keep freed memory, or return it.

The explorer returns it. A page of a small model takes some 100 MB for a second, in pieces. All are freed, but glibc
keeps what lies below a piece that is still in use: a resident size that looks like a leak and is none. glibc also opens
a heap for every thread, and the free end of such a heap cannot be returned at all.
"""

import ctypes
from collections.abc import Callable

ARENA_MAX = -8  # M_ARENA_MAX of glibc's malloc.h
KEEP = (-1, -3)  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error is about running out of memory; torch has a class of its own for a GPU alone."""
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return named or "allocate memory" in str(error)  # of torch on a CPU, or of the system where a file is mapped


def share_heap() -> bool:
    """Let threads that start from now on share the first heap; False if the C library is not glibc."""
    limit = _function("mallopt")
    return limit is not None and bool(limit(ARENA_MAX, 1))


def give_back() -> bool:
    """Return the C library's free memory to the system; False if it is not glibc."""
    trim = _function("malloc_trim")
    return trim is not None and bool(trim(0))


def keep_freed_memory() -> None:
    """Tell glibc to keep large freed blocks, which the next training step or batch needs again.

    Allocating them again costs page faults, a fifth of a small model's step. Does nothing without glibc.
    """
    if (limit := _function("mallopt")) is not None:
        for parameter in KEEP:
            limit(parameter, 1 << 30)


def _function(name: str) -> Callable[..., int] | None:
    """Find a function of the process's own C library, if that is glibc."""
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018  # another library may have functions of these names
        function: Callable[..., int] = getattr(library, name)
    except (AttributeError, OSError, TypeError):  # musl and macOS lack it, and Windows rejects CDLL(None)
        return None
    return function
