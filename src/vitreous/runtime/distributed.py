"""Ranks and collectives of `torchrun`: this process's rank; process groups; sums and gathers over ranks; error file.

`torchrun` sets the rank in the environment; a process on its own is rank 0 of 1. A process group is created only if
there are several ranks (gloo between CPUs, NCCL between GPUs); with one rank, collectives return their input. torch is
imported when a group is created, so that `vitreous --help` can read the rank without it. `torchrun` names the file to
which a process writes its error (`write_error_file`).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.distributed.device_mesh import DeviceMesh

Value = TypeVar("Value")
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
"""The variable in which `torchrun` names the error file; other launchers do not set it."""
TRAINING_TIMEOUT = timedelta(hours=1)
"""After this time without an answer a rank counts as lost: decoding a large dataset takes long."""


@dataclass(frozen=True)
class Rank:
    """The rank of one process among those that `torchrun` started."""

    rank: int = 0
    """From 0 to `world_size` - 1, over all machines."""
    world_size: int = 1
    local_rank: int = 0
    """Its number on this machine, which is also the index of its GPU."""

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which prints and writes for all."""
        return self.rank == 0

    def gather(self, value: Value) -> list[Value]:
        """Return the values of all ranks, in rank order, on every rank.

        >>> Rank().gather("alone")
        ['alone']
        """
        if self.world_size == 1:
            return [value]
        import torch.distributed as dist

        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values


def this_rank(environment: Mapping[str, str] = os.environ) -> Rank:
    """Return the rank of this process.

    >>> this_rank({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}), this_rank({})
    (Rank(rank=3, world_size=8, local_rank=1), Rank(rank=0, world_size=1, local_rank=0))
    """
    found = {name: environment.get(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    if found["RANK"] is None or found["WORLD_SIZE"] is None:
        return Rank()
    try:
        rank, world_size, local_rank = (int(found[name] or 0) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    except ValueError as error:
        raise ValueError(f"RANK, WORLD_SIZE and LOCAL_RANK must be integers, got {found}") from error
    if not 0 <= rank < world_size:
        raise ValueError(f"RANK must lie between 0 and WORLD_SIZE - 1, got {rank} of {world_size}")
    return Rank(rank, world_size, local_rank)


def span(count: int, rank: Rank) -> range:
    """Return the contiguous share of `count` items that belongs to a rank.

    >>> [list(span(5, Rank(rank, 3))) for rank in range(3)]
    [[0], [1, 2], [3, 4]]
    """
    return range(count * rank.rank // rank.world_size, count * (rank.rank + 1) // rank.world_size)


@contextmanager
def cpu_group() -> Iterator[Rank]:
    """Open a process group on the CPU for the time of the block, if there are several ranks.

    A rank that finishes early waits up to a day for the others. If one fails, torchrun ends them all.
    """
    rank = this_rank()
    with process_group("gloo", timedelta(days=1)) if rank.world_size > 1 else nullcontext():
        yield rank


@contextmanager
def process_group(backend: str, timeout: timedelta) -> Iterator[None]:
    """Open a process group for the time of the block, or use the one that is already open.

    Two groups one after the other are not safe: the second may read the addresses of the first from torch's store.
    """
    import torch.distributed as dist

    if dist.is_initialized():
        yield
        return
    # its functions take the group that is open at their import as a default and keep it: the group's threads would
    # still run when the interpreter exits, which may then abort
    import_module("torch.distributed.nn.functional")
    dist.init_process_group(backend, timeout=timeout)
    yield
    dist.destroy_process_group()  # not after an error: it may wait for peers that have gone


@dataclass(frozen=True)
class World(Rank):
    """The rank of this process in a training run, and what all ranks do together, each calling the same in order."""

    device: torch.device | None = None
    mesh: DeviceMesh | None = None
    """A one-dimensional mesh of all ranks; None in a process that `torchrun` did not start."""

    @property
    def distributed(self) -> bool:
        """Whether there is a process group of ranks, if only of one."""
        return self.mesh is not None

    def maximum(self, *numbers: int) -> list[int]:
        """Return, for each number, the maximum over all ranks.

        >>> World().maximum(3, 0)
        [3, 0]
        """
        if not self.distributed:
            return list(numbers)
        import torch
        import torch.distributed as dist

        largest = torch.tensor(numbers, dtype=torch.int64)  # on the CPU, so that this does not wait for a GPU
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        return largest.tolist()

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum over all ranks."""
        if not self.distributed:
            return values
        import torch.distributed as dist

        total = values.clone()
        dist.all_reduce(total)
        return total

    def broadcast(self, value: Value) -> Value:
        """Return the value of rank 0."""
        return self.gather(value)[0]

    def barrier(self) -> None:
        """Wait until all ranks have arrived."""
        if self.distributed:
            self.maximum(0)

    @contextmanager
    def first_of_each_machine(self) -> Iterator[None]:
        """Let one rank of each machine run the block first; the others then find its results in the cache."""
        if self.local_rank:
            self.barrier()
        yield
        if not self.local_rank:
            self.barrier()


@contextmanager
def join_world(device: torch.device) -> Iterator[World]:
    """Connect to the other ranks, if `torchrun` started this process, and disconnect at the end."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    rank = this_rank()
    if not dist.is_torchelastic_launched() and rank.world_size == 1:
        yield World(**vars(rank), device=device)
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    with process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo", TRAINING_TIMEOUT):
        yield World(**vars(rank), device=device, mesh=init_device_mesh(device.type, (rank.world_size,)))


def is_peer_loss(error: Exception) -> bool:
    """Return whether an error is not this process's own: it only says that another of `torchrun`'s has ended."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    return isinstance(error, RuntimeError) and ("DistError" in kinds or "gloo" in str(error))


def write_error_file(text: str) -> None:
    """Write an error to the file that `torchrun` names, from which its summary quotes.

    The format is that of torch.distributed.elastic's ErrorHandler, whose own `record_exception` would show a traceback
    for a mistyped path too.
    """
    if path := os.environ.get(ERROR_FILE):
        message = {"message": text, "extraInfo": {"py_callstack": text, "timestamp": str(int(time.time()))}}
        Path(path).write_text(json.dumps({"message": message}), encoding="utf-8")
