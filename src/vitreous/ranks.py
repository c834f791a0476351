"""Which of several processes this is: what `torchrun` says in the environment. One process alone is rank 0 of 1."""

import os
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """One process among those that were started together."""

    rank: int = 0
    """From 0 to `ranks` - 1, over all machines."""
    ranks: int = 1
    local: int = 0
    """Its number on this machine: the GPU that it takes."""

    @property
    def first(self) -> bool:
        """Whether it is the one that speaks and writes for all."""
        return self.rank == 0


def here(environment: Mapping[str, str] = os.environ) -> Place:
    """This process's place.

    >>> here({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}), here({})
    (Place(rank=3, ranks=8, local=1), Place(rank=0, ranks=1, local=0))
    """
    found = {name: environment.get(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    if found["RANK"] is None or found["WORLD_SIZE"] is None:
        return Place()
    try:
        rank, ranks, local = (int(found[name] or 0) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    except ValueError as error:
        raise ValueError(f"RANK, WORLD_SIZE and LOCAL_RANK have to be whole numbers, got {found}") from error
    if not 0 <= rank < ranks:
        raise ValueError(f"RANK has to be from 0 to WORLD_SIZE - 1, got {rank} of {ranks}")
    return Place(rank, ranks, local)
