"""Several processes measuring one thing: each takes a span, and all are told everything.

A process group is made only where `torchrun` started more than one process; alone, these functions hand back what
they are given.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from importlib import import_module
from typing import TypeVar

import torch.distributed

from vitreous.ranks import Place, here

Value = TypeVar("Value")


@contextmanager
def together(patience: timedelta = timedelta(days=1)) -> Iterator[Place]:
    """A process group for the time of the block, on the CPU, where there are several processes.

    Who is done early waits `patience` for the others; one that fails is no reason to wait, since torchrun ends all.
    """
    place = here()
    with group("gloo", patience) if place.ranks > 1 else nullcontext():
        yield place


@contextmanager
def group(backend: str, patience: timedelta) -> Iterator[None]:
    """A process group for the time of the block, or the one that there is already.

    One after another would not be safe: torch lets the second read the addresses of the first.
    """
    if torch.distributed.is_initialized():
        yield
        return
    # its functions take whatever group there is at their import as a default, and would keep it for good: its threads
    # would still run when the interpreter ends, which in turn may end by an abort
    import_module("torch.distributed.nn.functional")
    torch.distributed.init_process_group(backend, timeout=patience)
    yield
    torch.distributed.destroy_process_group()  # not after an error: it may wait for peers that have gone


def span(count: int, place: Place) -> range:
    """Which of `count` things this process takes: the spans of all processes, one after the other, are all of them.

    >>> [list(span(5, Place(rank, 3))) for rank in range(3)]
    [[0], [1, 2], [3, 4]]
    """
    return range(count * place.rank // place.ranks, count * (place.rank + 1) // place.ranks)


def gathered(value: Value, place: Place) -> list[Value]:
    """What each process of the group gave, in the order of their ranks; every process gets all.

    >>> gathered("alone", Place())
    ['alone']
    """
    if place.ranks == 1:
        return [value]
    values: list[Value | None] = [None] * place.ranks
    torch.distributed.all_gather_object(values, value)
    return values  # type: ignore[return-value]
