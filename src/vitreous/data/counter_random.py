"""`CounterRandom`: random numbers that are hashes of seed, epoch, image index and purpose; shuffle by hashes.

`CounterRandom.of(seed, epoch, indices).uniform("flip")` is the same number for the same image in the same epoch, on
every device, in every batch, on every rank and after every restart. There is no state to save.

Shapes:  b images
"""

import zlib
from functools import cache
from typing import Any, Self

import torch
from torch import Tensor

MASK = 0xFFFFFFFF
# An integer hash whose every input bit moves every output bit about half of the time: Wellons' lowbias32, but that its
# second shift is by 15 (by 16 it does as well, and changing it would change every run). The second factor is written as
# itself less 2³²: the product then fits into int64, and its low 32 bits are the same.
FACTORS = (0x7FEB352D, 0x846CA68B - (1 << 32))


def hash32(x: Tensor) -> Tensor:
    """Hash integers in [0, 2³²), held as int64, to counter-based random integers in the same range."""
    for factor in FACTORS:
        x = ((x ^ (x >> 16)) * factor) & MASK
    return x ^ (x >> 16)


class CounterRandom:
    """One stream of counter-based random numbers an image.

    >>> images = torch.arange(3)
    >>> early, late = CounterRandom.of(0, 1, images), CounterRandom.of(0, 2, images)
    >>> torch.equal(early.uniform("flip"), CounterRandom.of(0, 1, images).uniform("flip"))
    True
    >>> torch.equal(early.uniform("flip"), late.uniform("flip"))
    False
    """

    def __init__(self, keys: Tensor) -> None:
        self.keys = keys  # int64 [b], each in [0, 2³²)

    @classmethod
    def of(cls, seed: int, epoch: int | Tensor, indices: Tensor, copy: int | Tensor = 0) -> Self:
        """Make the random streams of images `indices` `[b]` in an epoch; `copy` separates repeats of an image in it."""
        key = torch.zeros_like(indices, dtype=torch.int64)
        for part in (seed & MASK, (seed >> 32) & MASK, epoch, copy, indices):
            key = hash32((key + part + 0x9E3779B9) & MASK)
        return cls(key)

    def uniform(self, purpose: str) -> Tensor:
        """Draw counter-based random numbers in [0, 1), one an image: float32 `[b]`. Each purpose has its own."""
        word = hash32(self.keys ^ zlib.crc32(purpose.encode()))
        return (word >> 8).to(torch.float32) * 2.0**-24  # 24 bits: what float32 holds exactly

    def integers(self, purpose: str, low: int, high: int) -> Tensor:
        """Draw counter-based random integers from `low` to `high`, both included: int64 `[b]`."""
        return low + (self.uniform(purpose) * (high - low + 1)).to(torch.int64)


def permutation(seed: int, epoch: int, images: int) -> Tensor:
    """Shuffle images by the hashes of seed, epoch and index: indices in a random order, int64 `[images]` on the CPU.

    >>> permutation(0, 0, 4).sort().values
    tensor([0, 1, 2, 3])
    """
    keys = CounterRandom.of(seed, epoch, torch.arange(images)).keys
    return torch.argsort(hash32(keys ^ zlib.crc32(b"order")), stable=True)


@cache
def allow_crc32_in_graph() -> None:
    """Tell `torch.compile` that `zlib.crc32` of a constant is a constant: `CounterRandom` hashes its purposes."""

    def substitute(data: Any, value: int = 0, /) -> int:
        raise NotImplementedError("only for purposes that are constants")

    torch.compiler.substitute_in_graph(zlib.crc32, can_constant_fold_through=True)(substitute)
