"""Checkpoints that survive a power cut: written whole or not at all, proven by their hash, the last few kept.

A checkpoint is one safetensors file with a `.json` beside it that says where the run was and what the file's SHA-256
is. The `.json` is written last: a file without one was never finished. `latest` takes the newest whose hash is right.
"""

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor

from vitreous.weights.save import write_json, write_safetensors

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
    """What was learned from, as a hash: a run does not go on with other pictures."""


def write(folder: Path, tensors: dict[str, Tensor], moment: Moment, keep: int = 2) -> Path:
    """Write a checkpoint, then remove all but this one and the `keep` - 1 before it.

    One that claims to be newer was found damaged when the run went on from an older one, and is removed too.
    """
    path = write_safetensors(folder / f"{NAME.format(moment.update)}.safetensors", tensors)
    described = {**asdict(moment), "sha256": digest(path), "bytes": path.stat().st_size}
    write_json(path.with_suffix(".json"), described)
    found = _found(folder)
    mine = found.index(path.with_suffix(".json"))
    for old in found[:mine] + found[mine + keep :]:
        old.unlink(missing_ok=True)  # the .json first: a hash without its file is no checkpoint either
        old.with_suffix(".safetensors").unlink(missing_ok=True)
    _sweep(folder)
    return path


def latest(folder: Path) -> tuple[Moment, dict[str, Tensor], list[str]] | None:
    """The newest whole checkpoint and what was wrong with newer ones; None where there is none at all."""
    problems: list[str] = []
    for described in _found(folder):
        path = described.with_suffix(".safetensors")
        try:
            told = json.loads(described.read_text(encoding="utf-8"))
            if digest(path) != told.pop("sha256") or path.stat().st_size != told.pop("bytes"):
                problems.append(f"{path.name} is damaged (its hash is not what was written): took the one before")
                continue
            return Moment(**told), load_file(path), problems
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            problems.append(f"{path.name} cannot be read ({error}): took the one before")
    if problems:
        raise ValueError(f"no checkpoint in {folder} is whole: {'; '.join(problems)}. Delete the folder to start anew")
    return None


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _found(folder: Path) -> list[Path]:
    """The `.json` of each checkpoint, newest first."""
    return sorted((p for p in folder.glob("step-*.json") if re.fullmatch(r"step-\d{9}", p.stem)), reverse=True)


def _sweep(folder: Path) -> None:
    """Remove what a killed process left: temporary files, and weights that never got their `.json`."""
    whole = {path.stem for path in _found(folder)}
    for path in folder.iterdir():
        if path.name.startswith(".step-") or (path.suffix == ".safetensors" and path.stem not in whole):
            path.unlink(missing_ok=True)
