"""Images to the device as bytes, and answers back, so that decoder, copy and model work at the same time.

Threads decode ahead (`data.stream`). A batch travels as uint8, a quarter of what floats take, from pinned memory where
there is a GPU, and is normalised where the model lives. On a GPU the next batch is on its way before the answers of the
last are waited for. On a CPU computing is waiting: there, several batches are computed at once where the model allows
it, each on a thread of its own, so that no core stands still at the end of a product until the last one is there.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from vitreous.data.prefetch import prefetch
from vitreous.data.preprocess import Preprocess

Batch = TypeVar("Batch")


def sent(batch: Tensor, device: torch.device) -> Tensor:
    """The batch on the device; a GPU takes it from pinned memory while this thread goes on."""
    if device.type == "cuda" and batch.device.type == "cpu":
        batch = batch.pin_memory()
    return batch.to(device, non_blocking=True)


def fed(batch: Tensor, preprocess: Preprocess, like: Tensor) -> Tensor:
    """A batch `[b c h w]` where and as the model takes it: pixels (uint8) are normalised there, floats are already."""
    batch = sent(batch, like.device)
    return (preprocess.normalise(batch) if batch.dtype == torch.uint8 else batch).to(like.dtype)


def answered(
    compute: Callable[[Batch], Tensor], batches: Iterable[Batch], *, waiting: int = 1, lanes: int = 1
) -> Iterator[tuple[Batch, Tensor]]:
    """Each batch with `compute` of it on the CPU, in order; on a GPU `waiting` batches are begun before one is read.

    `lanes` batches are computed at once, each with its share of torch's threads.

    >>> list(answered(lambda x: x + 1, [torch.tensor(1), torch.tensor(2)]))
    [(tensor(1), tensor(2)), (tensor(2), tensor(3))]
    """
    if lanes > 1:
        yield from _in_lanes(compute, batches, lanes)
        return
    begun: list[tuple[Batch, Tensor]] = []
    for batch in batches:
        begun.append((batch, compute(batch)))
        while begun and (begun[-1][1].device.type == "cpu" or len(begun) > waiting):
            first, result = begun.pop(0)
            yield first, result.cpu()
    for last, result in begun:
        yield last, result.cpu()


@dataclass(frozen=True)
class Laned:
    """What computes, and may be asked for `lanes` batches at once."""

    compute: Callable[[Tensor], Tensor]
    lanes: int

    def __call__(self, batch: Tensor) -> Tensor:
        return self.compute(batch)


def lanes_of(compute: object) -> int:
    """How many batches this may be asked for at once; what does not say so is asked for one."""
    return getattr(compute, "lanes", 1)


def _in_lanes(
    compute: Callable[[Batch], Tensor], batches: Iterable[Batch], lanes: int
) -> Iterator[tuple[Batch, Tensor]]:
    threads = torch.get_num_threads()

    def work(batch: Batch) -> tuple[Batch, Tensor]:
        torch.set_num_threads(max(1, threads // lanes))  # of this lane; threads that are new begin with it too
        return batch, compute(batch).cpu()

    results = prefetch(work, batches, workers=lanes, waiting=2 * lanes)
    try:
        with closing(results):
            yield from results
    finally:
        torch.set_num_threads(threads)
