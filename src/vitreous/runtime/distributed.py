"""Several processes at one job: which rank this is, and what all ranks have to agree on.

`torchrun` says in the environment which rank a process is; one process alone is rank 0 of 1. A process group is made
only where there are several (gloo between CPUs, NCCL between GPUs): alone, everything here hands back what it is given.
torch is imported when a group is made, so that `vitreous --help` can ask for its rank without it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.distributed.device_mesh import DeviceMesh

Value = TypeVar("Value")
TRAINING_TIMEOUT = timedelta(hours=1)
"""Until a rank that does not answer counts as lost: decoding a large dataset takes long."""


@dataclass(frozen=True)
class Rank:
    """One process among those that `torchrun` started."""

    rank: int = 0
    """From 0 to `world_size` - 1, over all machines."""
    world_size: int = 1
    local_rank: int = 0
    """Its number on this machine: the GPU that it takes."""

    @property
    def first(self) -> bool:
        """Whether it is the one that prints and writes for all."""
        return self.rank == 0


def this_rank(environment: Mapping[str, str] = os.environ) -> Rank:
    """The rank of this process.

    >>> this_rank({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}), this_rank({})
    (Rank(rank=3, world_size=8, local_rank=1), Rank(rank=0, world_size=1, local_rank=0))
    """
    found = {name: environment.get(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    if found["RANK"] is None or found["WORLD_SIZE"] is None:
        return Rank()
    try:
        rank, world_size, local_rank = (int(found[name] or 0) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    except ValueError as error:
        raise ValueError(f"RANK, WORLD_SIZE and LOCAL_RANK have to be whole numbers, got {found}") from error
    if not 0 <= rank < world_size:
        raise ValueError(f"RANK has to be from 0 to WORLD_SIZE - 1, got {rank} of {world_size}")
    return Rank(rank, world_size, local_rank)


def span(count: int, rank: Rank) -> range:
    """Which of `count` things this rank takes: the spans of all ranks, one after the other, are all of them.

    >>> [list(span(5, Rank(rank, 3))) for rank in range(3)]
    [[0], [1, 2], [3, 4]]
    """
    return range(count * rank.rank // rank.world_size, count * (rank.rank + 1) // rank.world_size)


def gather(value: Value, rank: Rank) -> list[Value]:
    """What each rank gave, in their order; every rank gets all.

    >>> gather("alone", Rank())
    ['alone']
    """
    return [value] if rank.world_size == 1 else _gather(value, rank.world_size)


@contextmanager
def cpu_group(timeout: timedelta = timedelta(days=1)) -> Iterator[Rank]:
    """A process group on the CPU for the time of the block, where there are several ranks.

    A rank that is done early waits `timeout` for the others; one that fails is no reason to wait, since torchrun ends
    all.
    """
    rank = this_rank()
    with process_group("gloo", timeout) if rank.world_size > 1 else nullcontext():
        yield rank


@contextmanager
def process_group(backend: str, timeout: timedelta) -> Iterator[None]:
    """A process group for the time of the block, or the one that there is already.

    One after another would not be safe: torch lets the second read the addresses of the first.
    """
    import torch.distributed as dist

    if dist.is_initialized():
        yield
        return
    # its functions take whatever group there is at their import as a default, and would keep it for good: its threads
    # would still run when the interpreter ends, which in turn may end by an abort
    import_module("torch.distributed.nn.functional")
    dist.init_process_group(backend, timeout=timeout)
    yield
    dist.destroy_process_group()  # not after an error: it may wait for peers that have gone


def _cpu() -> torch.device:
    import torch

    return torch.device("cpu")


@dataclass(frozen=True)
class World:
    """All ranks of a training run, as seen from this one. All ranks call its methods, in the same order."""

    place: Rank = field(default_factory=Rank)
    device: torch.device = field(default_factory=_cpu)
    mesh: DeviceMesh | None = None
    """All ranks in a row; None in a process that `torchrun` did not start."""

    @property
    def rank(self) -> int:
        return self.place.rank

    @property
    def world_size(self) -> int:
        return self.place.world_size

    @property
    def first(self) -> bool:
        return self.place.first

    @property
    def distributed(self) -> bool:
        return self.mesh is not None

    def maximum(self, *numbers: int) -> list[int]:
        """The largest that any rank gives, for each of the numbers.

        >>> World().maximum(3, 0)
        [3, 0]
        """
        if not self.distributed:
            return list(numbers)
        import torch
        import torch.distributed as dist

        largest = torch.tensor(numbers, dtype=torch.int64)  # on the CPU, so that no GPU has to be waited for
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        return largest.tolist()

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all ranks."""
        if not self.distributed:
            return values
        import torch.distributed as dist

        total = values.clone()
        dist.all_reduce(total)
        return total

    def gather(self, value: Value) -> list[Value]:
        """What each rank gives, by rank."""
        return _gather(value, self.world_size) if self.distributed else [value]

    def broadcast(self, value: Value) -> Value:
        """What the first rank gives."""
        return self.gather(value)[0]

    def barrier(self) -> None:
        """Go on when all ranks are here."""
        if self.distributed:
            self.maximum(0)

    @contextmanager
    def first_of_each_machine(self) -> Iterator[None]:
        """Let one rank of a machine decode; the others then find its work in the cache."""
        if self.place.local_rank:
            self.barrier()
        yield
        if not self.place.local_rank:
            self.barrier()


@contextmanager
def join_world(device: torch.device) -> Iterator[World]:
    """Connect with the other ranks, where `torchrun` started this process, and part from them at the end."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    rank = this_rank()
    if not dist.is_torchelastic_launched() and rank.world_size == 1:
        yield World(rank, device)
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    with process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo", TRAINING_TIMEOUT):
        yield World(rank, device, init_device_mesh(device.type, (rank.world_size,)))


def _gather(value: Any, count: int) -> list[Any]:
    import torch.distributed as dist

    values: list[Any] = [None] * count
    dist.all_gather_object(values, value)
    return values
