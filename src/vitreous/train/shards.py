"""A checkpoint that all ranks write together, each its part: torch's distributed checkpoints, as safetensors.

What ranks have in common is written once; a sharded tensor is read back whole or in other slices, so that a run goes
on with any number of processes. No pickle is written or read.
"""

import os
import shutil
import warnings
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint import CheckpointException, HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from vitreous.train.state import State
from vitreous.train.world import World

OWN = "rank/{}/"


def write_shards(path: Path, state: State, world: World) -> list[Path]:
    """Write the folder `path`, whole or not at all; returns the files that this rank wrote."""
    hidden = path.with_name(f".{path.name}")
    if world.first:
        shutil.rmtree(hidden, ignore_errors=True)  # a killed run's
        hidden.mkdir(parents=True)
    world.wait()
    own = {OWN.format(world.rank) + name: value for name, value in state.own().items()}
    try:
        dcp.save(state.tensors() | own, storage_writer=HuggingFaceStorageWriter(str(hidden), save_distributed=True))
    except CheckpointException as error:
        raise _root(error) from error
    written = sorted(hidden.glob(f"shard-{world.rank + 1:05d}-*"))
    for file in written:
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
    world.wait()
    if world.first:
        shutil.rmtree(path, ignore_errors=True)  # damaged, or the run would not be here again
        hidden.rename(path)
    world.wait()
    return [path / file.name for file in written]


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
        dcp.load(state.tensors() | apart, storage_reader=reader, no_dist=not world.joined)
    ranks = 1 + max(int(name.split("/")[1]) for name in apart)
    starts = [OWN.format(rank) for rank in range(ranks)]
    return [{n.removeprefix(start): v for n, v in apart.items() if n.startswith(start)} for start in starts]


def _root(error: CheckpointException) -> BaseException:
    """What went wrong on a rank, such as a full disk, from the wrapping that torch gives it."""
    for cause, _ in error.failures.values():
        if isinstance(cause, OSError):
            return cause
    return error
