"""The processes of one run: joining them, and what they have to agree on.

`torchrun` starts them; `joined` connects them by torch's own process group (gloo between CPUs, NCCL between GPUs). A
run in one process has a world too, in which everyone agrees at once.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from vitreous.ranks import Place, here
from vitreous.together import group

Value = TypeVar("Value")
PATIENCE = timedelta(hours=1)  # until a rank that does not answer counts as lost: decoding a large set takes long


@dataclass(frozen=True)
class World:
    """This process among the others. Its methods have to be called by all of them, in the same order."""

    place: Place = field(default_factory=Place)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    mesh: DeviceMesh | None = None
    """All ranks in a row; None in a process that `torchrun` did not start."""

    @property
    def rank(self) -> int:
        return self.place.rank

    @property
    def ranks(self) -> int:
        return self.place.ranks

    @property
    def first(self) -> bool:
        return self.place.first

    @property
    def joined(self) -> bool:
        return self.mesh is not None

    def agree(self, *numbers: int) -> list[int]:
        """The largest that any rank gives, for each of the numbers.

        >>> World().agree(3, 0)
        [3, 0]
        """
        if not self.joined:
            return list(numbers)
        asked = torch.tensor(numbers, dtype=torch.int64)  # on the CPU, so that no GPU has to be waited for
        dist.all_reduce(asked, dist.ReduceOp.MAX)
        return asked.tolist()

    def add(self, values: Tensor) -> Tensor:
        """The sum over all ranks."""
        if not self.joined:
            return values
        total = values.clone()
        dist.all_reduce(total)
        return total

    def gather(self, value: Value) -> list[Value]:
        """What each rank gives, by rank."""
        if not self.joined:
            return [value]
        found: list[Any] = [None] * self.ranks
        dist.all_gather_object(found, value)
        return found

    def told(self, value: Value) -> Value:
        """What the first rank gives."""
        return self.gather(value)[0]

    def wait(self) -> None:
        """Go on when all are here."""
        if self.joined:
            self.agree(0)

    @contextmanager
    def one_of_each_machine_first(self) -> Iterator[None]:
        """What one rank of a machine decodes, the others find in the cache."""
        if self.place.local:
            self.wait()
        yield
        if not self.place.local:
            self.wait()


@contextmanager
def joined(device: torch.device) -> Iterator[World]:
    """Connect with the other processes, where `torchrun` started this one, and part from them at the end."""
    place = here()
    if not dist.is_torchelastic_launched() and place.ranks == 1:
        yield World(place, device)
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    with group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo", PATIENCE):
        yield World(place, device, init_device_mesh(device.type, (place.ranks,)))
