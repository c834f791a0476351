"""`TrainingState`: a run's state as named tensors; write, verify, find and read its checkpoints, sharded or whole.

`TrainingState` keeps apart what the ranks have in common (`tensors`, of which a rank may hold a slice) and what belongs
to one rank (`rank_tensors`: random state and running totals). The data has no state: order and augmentation are
functions of (seed, epoch, index), see `data/counter_random.py`.

A checkpoint is one safetensors file or, if several ranks wrote it, a folder of them (torch's distributed checkpoints).
A `.json` of the same name holds the position of the run and the SHA-256 of each file. It is written last: a checkpoint
without it is incomplete. `latest` takes the newest one whose hashes match. No pickle is written or read.
"""

import hashlib
import json
import os
import re
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as load_distributed
from torch.distributed.checkpoint.state_dict_saver import save as save_distributed

from vitreous.runtime.distributed import Rank, World
from vitreous.runtime.files import remove, write_json
from vitreous.training.parallel import local, seed_rank, shard_like
from vitreous.weights.load import Model
from vitreous.weights.save import write_safetensors

NAME = "step-{:09d}"
RANK_PREFIX = "rank/{}/"


# --- the state of a run -----------------------------------------------------------------------------------------------


@dataclass
class TrainingState:
    """Model, optimisers, average of the weights, running totals and position of a run."""

    model: Model
    optimisers: list[torch.optim.Optimizer]
    device: torch.device
    average: dict[str, Tensor] = field(default_factory=dict)
    """Moving average of the trainable parameters; empty if none is kept."""
    totals: Tensor = field(default_factory=lambda: torch.zeros(4, dtype=torch.float64))
    """Of this epoch: loss × images, correct top-1 answers, images; and 1 + the first step whose loss is not finite."""
    epoch: int = 0
    step: int = 0
    """Steps done in this epoch."""

    def tensors(self) -> dict[str, Tensor]:
        """Return all shared tensors of a training state by name, without copies."""
        found = {f"model/{name}": value for name, value in self.model.state_dict().items()}
        found |= {f"average/{name}": value for name, value in self.average.items()}
        for number, optimiser in enumerate(self.optimisers):
            members = [parameter for group in optimiser.param_groups for parameter in group["params"]]
            for i, parameter in enumerate(members):
                for name, value in optimiser.state[parameter].items():
                    if isinstance(value, Tensor):
                        found[f"optimiser/{number}/{i}/{name}"] = value
        return found

    def rank_tensors(self) -> dict[str, Tensor]:
        """Return copies, on the CPU, of the tensors of a training state that belong to this rank."""
        found = {"totals": self.totals.to("cpu", copy=True), "random/cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            found["random/cuda"] = torch.cuda.get_rng_state(self.device)
        return found

    def is_finite(self) -> bool:
        """Return whether a run's state, as its checkpoints hold it, is finite in every weight of this rank."""
        held = [local(weight.detach()) for weight in self.model.parameters()]
        largest = torch._foreach_norm([weight for weight in held if weight.numel()], float("inf"))
        return bool(torch.isfinite(torch.stack(largest)).all())

    def copy(self) -> dict[str, Tensor]:
        """Copy a training state in this process to the CPU."""
        held = {name: local(value).detach() for name, value in self.tensors().items()}
        return {name: value.to("cpu", copy=True).contiguous() for name, value in held.items()} | self.rank_tensors()

    @torch.no_grad()
    def restore_copy(self, copied: dict[str, Tensor]) -> None:
        """Restore a training state in place as from a checkpoint, but from the copy in memory that `copy` returned.

        A captured CUDA graph holds the addresses of its tensors, so they stay the same ones.
        """
        for name, value in self.tensors().items():
            local(value).copy_(copied[name])
        self._restore_rank_tensors(copied)

    @torch.no_grad()
    def restore(self, saved: dict[str, Tensor]) -> None:
        """Restore a checkpoint's whole tensors in place, on each rank its slice; raise if the names do not match."""
        wanted = self.tensors()
        self.check_names({name for name in saved if name != "totals" and not name.startswith("random/")})
        for name, value in wanted.items():
            local(value).copy_(local(shard_like(saved[name].to(value.device), value)))

    def check_names(self, names: set[str]) -> None:
        """Raise if a checkpoint's tensors are not those of this state."""
        if stray := sorted(names ^ set(self.tensors())):
            raise ValueError(f"the checkpoint is of another model or optimiser: {', '.join(stray[:4])}")

    @torch.no_grad()
    def restore_rank(self, saved: Sequence[dict[str, Tensor]], rank: Rank, seed: int) -> None:
        """Restore this rank's tensors from a checkpoint; with another number of ranks, rank 0 takes the totals' sum."""
        if len(saved) == rank.world_size:
            self._restore_rank_tensors(saved[rank.rank])
            return
        self._restore_rank_tensors(saved[0])
        total = torch.stack([each["totals"].double() for each in saved]).sum(dim=0)
        self.totals.copy_(total if rank.first else torch.zeros(4))
        if not rank.first:
            seed_rank(seed, rank)

    def _restore_rank_tensors(self, saved: dict[str, Tensor]) -> None:
        """Restore a rank's totals and random states from a checkpoint."""
        self.totals.copy_(saved["totals"])
        torch.set_rng_state(saved["random/cpu"])
        if self.device.type == "cuda" and "random/cuda" in saved:
            torch.cuda.set_rng_state(saved["random/cuda"], self.device)


# --- checkpoints ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunPosition:
    """How far a run was when a checkpoint was written."""

    update: int
    """Steps since the start of the run."""
    epoch: int
    step: int
    seconds: float
    data: str = ""
    """Hashes of the training and the held-out data, joined by `-`: a run does not resume with other data."""


def write(folder: Path, state: TrainingState, position: RunPosition, keep: int = 2, world: World | None = None) -> Path:
    """Write a checkpoint, then remove all but this one and the `keep` - 1 before it. All ranks call this.

    A checkpoint that claims to be newer was damaged, and the run resumed from an older one: it is removed too.
    """
    world, path = world or World(), folder / NAME.format(position.update)
    sidecar = path.with_suffix(".json")
    if world.distributed:
        hashes = _write_shards(path, state, world)
        other_format = path.with_suffix(".safetensors")
    else:
        other_format, path = path, path.with_suffix(".safetensors")
        hashes = {path.name: file_hash(write_safetensors(path, state.copy()))}
    files: dict[str, Any] = {}
    for part in world.gather(hashes):
        files |= part
    if world.first:
        remove(other_format)  # of this very step, written before the run resumed with another number of ranks
        write_json(sidecar, {**asdict(position), "files": files})
        found = _sidecars(folder)
        this = found.index(sidecar)
        for old in found[:this] + found[this + keep :]:
            old.unlink(missing_ok=True)  # the .json first: what is left is then known to be incomplete
            remove(old.with_suffix(".safetensors"))
            remove(old.with_suffix(""))
        remove_incomplete(folder)
    return path


def exists(folder: Path) -> bool:
    """Return whether a run has a checkpoint to resume from, undamaged or not."""
    return bool(_sidecars(folder))


def latest(folder: Path) -> tuple[RunPosition, Path, list[str]] | None:
    """Return the newest undamaged checkpoint and what was wrong with newer ones; None if there is no checkpoint."""
    problems: list[str] = []
    for sidecar in _sidecars(folder):
        name = sidecar.stem
        try:
            values = json.loads(sidecar.read_text(encoding="utf-8"))
            files = values.pop("files")
            damaged = [file for file, expected in files.items() if file_hash(folder / file) != expected]
            if damaged or not files:
                file = damaged[0] if damaged else name
                problems.append(f"{file} is damaged (its hash is not the one that was written): using an older one")
                continue
            single = sidecar.with_suffix(".safetensors")
            return RunPosition(**values), single if single.name in files else sidecar.with_suffix(""), problems
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            problems.append(f"{name} cannot be read ({error}): using an older one")
    if problems:
        raise ValueError(
            f"every checkpoint in {folder} is damaged: {'; '.join(problems)}. Delete the folder to start again"
        )
    return None


def read(path: Path, state: TrainingState, world: World | None = None, seed: int = 0) -> None:
    """Restore a checkpoint, written by any number of ranks, into `state`. All ranks call this."""
    world = world or World()
    by_rank: list[dict[str, Tensor]]
    if path.is_dir():
        by_rank = _read_shards(path, state, world)
    else:
        saved = load_file(path)
        state.restore(saved)
        by_rank = [saved]
    state.restore_rank(by_rank, world, seed)


def file_hash(path: Path) -> dict[str, Any]:
    """Return the SHA-256 and size of a file of a run's checkpoint, by which a damaged one is found."""
    with path.open("rb") as file:
        return {"sha256": hashlib.file_digest(file, "sha256").hexdigest(), "bytes": path.stat().st_size}


def remove_incomplete(folder: Path) -> None:
    """Remove what a killed process left of its checkpoints: temporary files, and weights without their `.json`."""
    finished = {path.stem for path in _sidecars(folder)}
    for path in folder.iterdir() if folder.is_dir() else ():
        unfinished = (path.suffix == ".safetensors" or path.is_dir()) and path.stem not in finished
        if path.name.startswith(".step-") or (path.name.startswith("step-") and unfinished):
            remove(path)


def _sidecars(folder: Path) -> list[Path]:
    """List the `.json` of each checkpoint of a run, newest first."""
    return sorted((p for p in folder.glob("step-*.json") if re.fullmatch(r"step-\d{9}", p.stem)), reverse=True)


def _write_shards(path: Path, state: TrainingState, world: World) -> dict[str, dict[str, Any]]:
    """Write a checkpoint's folder atomically, each rank its part; return the hash of each file that this rank wrote."""
    hidden = path.with_name(f".{path.name}")
    if world.first:
        remove(hidden)  # of a killed run
        hidden.mkdir(parents=True)
    world.barrier()
    own = {RANK_PREFIX.format(world.rank) + name: value for name, value in state.rank_tensors().items()}
    try:
        writer = HuggingFaceStorageWriter(str(hidden), save_distributed=True)
        save_distributed(state.tensors() | own, storage_writer=writer)
    except CheckpointException as error:
        raise _cause(error) from None
    hashes = {}
    for file in sorted(hidden.glob(f"shard-{world.rank + 1:05d}-*")):
        with file.open("r+b") as opened:
            os.fsync(opened.fileno())
        hashes[f"{path.name}/{file.name}"] = file_hash(file)
    world.barrier()
    if world.first:
        remove(path)  # damaged, else the run would not have come to this step again
        hidden.rename(path)
    return hashes


def _read_shards(path: Path, state: TrainingState, world: World) -> list[dict[str, Tensor]]:
    """Read a sharded checkpoint's tensors into `state`, in place; return the rank tensors of each rank."""
    reader = HuggingFaceStorageReader(str(path))
    held = reader.read_metadata().state_dict_metadata
    state.check_names({name for name in held if not name.startswith("rank/")})
    by_rank = {
        name: torch.empty(kept.size, dtype=kept.properties.dtype)
        for name, kept in held.items()
        if name.startswith("rank/") and isinstance(kept, TensorStorageMetadata)
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about reading in one process
        try:
            load_distributed(state.tensors() | by_rank, storage_reader=reader, no_dist=not world.distributed)
        except CheckpointException as error:
            raise _cause(error) from None
    ranks = 1 + max(int(name.split("/")[1]) for name in by_rank)
    prefixes = [RANK_PREFIX.format(rank) for rank in range(ranks)]
    return [{n.removeprefix(prefix): v for n, v in by_rank.items() if n.startswith(prefix)} for prefix in prefixes]


def _cause(error: CheckpointException) -> Exception:
    """Return the error of the rank that failed to write a checkpoint; torch's wrapper is not an `Exception`."""
    causes = [(rank, cause) for rank, (cause, _) in error.failures.items() if isinstance(cause, Exception)]
    for _, cause in causes:
        if isinstance(cause, OSError):
            return cause
    detail = f" by rank {causes[0][0]}: {causes[0][1]}" if causes else f": {error}"
    return RuntimeError(f"a checkpoint could not be written or read{detail}")
