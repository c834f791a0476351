"""Checkpoints that survive a power cut: written whole or not at all, proven by their hashes, the last few kept.

A checkpoint is one safetensors file, or of several ranks a folder of them (`shards.py`), with a `.json` beside it that
says where the run was and what each file's SHA-256 is. The `.json` is written last: a checkpoint without one was never
finished. `latest` takes the newest whose hashes are right.
"""

import hashlib
import json
import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from vitreous.runtime.distributed import World
from vitreous.runtime.files import write_json
from vitreous.training.shards import read_shards, write_shards
from vitreous.training.state import State
from vitreous.weights.save import write_safetensors

NAME = "step-{:09d}"


@dataclass(frozen=True)
class Moment:
    """Where a run was when a checkpoint was written."""

    update: int
    """Updates since the beginning."""
    epoch: int
    step: int
    seconds: float
    data: str = ""
    """What was learned from, as a hash: a run does not go on with other images."""


def write(folder: Path, state: State, moment: Moment, keep: int = 2, world: World | None = None) -> Path:
    """Write a checkpoint, then remove all but this one and the `keep` - 1 before it. All ranks call this.

    One that claims to be newer was found damaged when the run went on from an older one, and is removed too.
    """
    world, path = world or World(), folder / NAME.format(moment.update)
    described = path.with_suffix(".json")
    if world.distributed:
        own = write_shards(path, state, world, prove)
        other = path.with_suffix(".safetensors")
    else:
        other, path = path, path.with_suffix(".safetensors")
        own = {path.name: prove(write_safetensors(path, state.copy()))}
    proofs: dict[str, Any] = {}
    for part in world.gather(own):
        proofs |= part
    if world.first:
        _remove(other)  # of this very update, from before a run went on in another way
        write_json(described, {**asdict(moment), "files": proofs})
        found = _found(folder)
        mine = found.index(described)
        for old in found[:mine] + found[mine + keep :]:
            old.unlink(missing_ok=True)  # the .json first: hashes without their files are no checkpoint either
            _remove(old.with_suffix(".safetensors"))
            _remove(old.with_suffix(""))
        sweep(folder)
    return path


def latest(folder: Path) -> tuple[Moment, Path, list[str]] | None:
    """The newest whole checkpoint and what was wrong with newer ones; None where there is none at all."""
    problems: list[str] = []
    for described in _found(folder):
        name = described.stem
        try:
            message = json.loads(described.read_text(encoding="utf-8"))
            files = message.pop("files")
            damaged = [file for file, proof in files.items() if prove(folder / file) != proof]
            if damaged or not files:
                file = damaged[0] if damaged else name
                problems.append(f"{file} is damaged (its hash is not what was written): took the one before")
                continue
            single = described.with_suffix(".safetensors")
            return Moment(**message), single if single.name in files else described.with_suffix(""), problems
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            problems.append(f"{name} cannot be read ({error}): took the one before")
    if problems:
        raise ValueError(f"no checkpoint in {folder} is whole: {'; '.join(problems)}. Delete the folder to start anew")
    return None


def read(path: Path, state: State, world: World | None = None, seed: int = 0) -> None:
    """Put a checkpoint, written by any number of ranks, into `state`. All ranks call this."""
    world = world or World()
    own: list[dict[str, Tensor]]
    if path.is_dir():
        own = read_shards(path, state, world)
    else:
        saved = load_file(path)
        state.restore(saved)
        own = [saved]
    state.take_part(own, world.this, seed)


def prove(path: Path) -> dict[str, Any]:
    """What tells whether a file is still as it was written."""
    with path.open("rb") as file:
        return {"sha256": hashlib.file_digest(file, "sha256").hexdigest(), "bytes": path.stat().st_size}


def _found(folder: Path) -> list[Path]:
    """The `.json` of each checkpoint, newest first."""
    return sorted((p for p in folder.glob("step-*.json") if re.fullmatch(r"step-\d{9}", p.stem)), reverse=True)


def sweep(folder: Path) -> None:
    """Remove what a killed process left: what is not whole yet, and weights that never got their `.json`."""
    finished = {path.stem for path in _found(folder)}
    for path in folder.iterdir() if folder.is_dir() else ():
        left = (path.suffix == ".safetensors" or path.is_dir()) and path.stem not in finished
        if path.name.startswith(".step-") or (path.name.startswith("step-") and left):
            _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
