import ctypes
import subprocess
import sys

import pytest

from vitreous.runtime import memory as heap

PIECE, COUNT = 100_000, 2_000  # too small for pages of their own: 200 MB of one heap


def resident():
    """Bytes of this process that lie in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


glibc = pytest.mark.skipif(heap._function("malloc_trim") is None, reason="only glibc keeps memory in this way")
ELSEWHERE = """
import ctypes, re, sys, threading
from vitreous.runtime.memory import share_heap
if sys.argv[1] == "shared":
    assert share_heap()
library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
places = []
thread = threading.Thread(target=lambda: places.append(library.malloc(50_000)))
thread.start()
thread.join()
start, end = re.search(r"(\\w+)-(\\w+) .*\\[heap\\]", open("/proc/self/maps").read()).groups()
print(int(start, 16) <= places[0] < int(end, 16))
"""


@glibc
@pytest.mark.parametrize(("how", "expected"), [("shared", "True"), ("own", "False")])
def test_a_new_thread_takes_its_memory_from_the_first_heap(how, expected):
    words = [sys.executable, "-c", ELSEWHERE, how]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip() == expected


@glibc
def test_memory_below_a_piece_in_use_goes_back():
    c = ctypes.CDLL(None)
    c.malloc.restype, c.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    pieces = [c.malloc(PIECE) for _ in range(COUNT)]
    for piece in pieces:
        ctypes.memset(piece, 1, PIECE)
    for piece in pieces[:-1]:
        c.free(piece)
    kept = resident()  # the last piece is still in use
    assert heap.give_back()
    assert kept - resident() > 0.9 * PIECE * COUNT
    assert ctypes.string_at(pieces[-1], PIECE) == b"\x01" * PIECE
    c.free(pieces[-1])


@pytest.mark.parametrize("missing", [AttributeError, OSError, TypeError])
def test_another_c_library_is_left_alone(monkeypatch, missing):
    def library(name):
        raise missing

    monkeypatch.setattr(ctypes, "CDLL", library)
    assert heap.give_back() is False
    assert heap.share_heap() is False
    heap.keep_freed_memory()
