"""A checkpoint that all ranks write together, each its part: torch's distributed checkpoints, as safetensors.

What ranks have in common is written once; a sharded tensor is read back whole or in other slices, so that a run goes
on with any number of processes. No pickle is written or read.
"""

import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint import CheckpointException, HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from vitreous.runtime.distributed import World
from vitreous.training.state import State

OWN = "rank/{}/"
Proof = dict[str, Any]


def write_shards(path: Path, state: State, world: World, prove: Callable[[Path], Proof]) -> dict[str, Proof]:
    """Write the folder `path`, whole or not at all; returns what `prove` says of each file that this rank wrote."""
    hidden = path.with_name(f".{path.name}")
    if world.first:
        shutil.rmtree(hidden, ignore_errors=True)  # a killed run's
        hidden.mkdir(parents=True)
    world.barrier()
    own = {OWN.format(world.rank) + name: value for name, value in state.own().items()}
    try:
        dcp.save(state.tensors() | own, storage_writer=HuggingFaceStorageWriter(str(hidden), save_distributed=True))
    except CheckpointException as error:
        raise _root(error) from None
    proofs = {}
    for file in sorted(hidden.glob(f"shard-{world.rank + 1:05d}-*")):
        with file.open("r+b") as opened:
            os.fsync(opened.fileno())
        proofs[f"{path.name}/{file.name}"] = prove(file)
    world.barrier()
    if world.first:
        shutil.rmtree(path, ignore_errors=True)  # damaged, or the run would not be here again
        hidden.rename(path)
    return proofs


def read_shards(path: Path, state: State, world: World) -> list[dict[str, Tensor]]:
    """Read a folder's tensors into `state`, in place; returns what each rank that wrote it had of its own, by rank."""
    reader = HuggingFaceStorageReader(str(path))
    held = reader.read_metadata().state_dict_metadata
    state.check({name for name in held if not name.startswith("rank/")})
    apart = {
        name: torch.empty(kept.size, dtype=kept.properties.dtype)
        for name, kept in held.items()
        if name.startswith("rank/") and isinstance(kept, TensorStorageMetadata)
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it remarks on reading in one process
        try:
            dcp.load(state.tensors() | apart, storage_reader=reader, no_dist=not world.distributed)
        except CheckpointException as error:
            raise _root(error) from None
    ranks = 1 + max(int(name.split("/")[1]) for name in apart)
    starts = [OWN.format(rank) for rank in range(ranks)]
    return [{n.removeprefix(start): v for n, v in apart.items() if n.startswith(start)} for start in starts]


def _root(error: CheckpointException) -> Exception:
    """What went wrong on a rank, such as a full disk, from the wrapping that torch gives it (which is no Exception)."""
    causes = [(rank, cause) for rank, (cause, _) in error.failures.items() if isinstance(cause, Exception)]
    for _, cause in causes:
        if isinstance(cause, OSError):
            return cause
    message = f" by rank {causes[0][0]}: {causes[0][1]}" if causes else f": {error}"
    return RuntimeError(f"a checkpoint could not be written or read{message}")
