import ctypes

import pytest

from vitreous.explore import heap

PIECE, COUNT = 100_000, 2_000  # too small for pages of their own: 200 MB of one heap


def resident():
    """Bytes of this process that lie in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


@pytest.mark.skipif(heap._trim() is None, reason="only glibc keeps memory in this way")
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
