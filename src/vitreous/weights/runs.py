"""A training run as a model: its folder, finished or not, or one of its checkpoints.

A checkpoint holds weights and optimiser alike, under `model/…`, `average/…` and other names. Which model they belong
to, how to feed it and what its classes are called stands in the run's `model.json`.
"""

import hashlib
import json
import re
from pathlib import Path

DESCRIBED = "model.json"
CHECKPOINT = re.compile(r"step-(\d{9})\.safetensors")


def is_run(folder: Path) -> bool:
    """Whether a folder is that of a run, and not of a model."""
    parts = (folder / "checkpoints").is_dir() or (folder / DESCRIBED).is_file()
    return parts and (folder / "config.json").is_file() and not (folder / "model.safetensors").exists()


def newest(run: Path) -> Path:
    """The finished model of a run (a folder), or else its newest whole checkpoint (a file)."""
    if (run / "model" / "model.safetensors").is_file():
        return run / "model"
    for described in sorted((run / "checkpoints").glob("step-*.json"), reverse=True):
        weights = described.with_suffix(".safetensors")
        if CHECKPOINT.fullmatch(weights.name) and _whole(weights, described):
            return weights
        if described.with_suffix("").is_dir():
            raise ValueError(
                f"{described.with_suffix('')} was written in parts by several processes: let the run end, or go on "
                f"with it in one process for a moment (vitreous train --resume {run})"
            )
    raise FileNotFoundError(f"{run} is a run without a whole checkpoint yet: wait until it has written one")


def description_of(checkpoint: Path) -> Path | None:
    """What tells of the model in a run's checkpoint; None for any other file."""
    run = checkpoint.absolute().parent.parent
    if not CHECKPOINT.fullmatch(checkpoint.name) or checkpoint.absolute().parent.name != "checkpoints":
        return None
    if (run / DESCRIBED).is_file():
        return run / DESCRIBED
    if is_run(run):
        raise ValueError(
            f"{run} lacks {DESCRIBED}, which says what model its checkpoints hold: a run of an earlier version writes "
            f"it when it goes on (vitreous train --resume {run})"
        )
    return None


def moment_name(path: str) -> str | None:
    """What to call a checkpoint of a run; None for any other name.

    >>> moment_name("runs/digits/checkpoints/step-000000290.safetensors")
    'digits, update 290'
    """
    *_, run, folder, name = ("", "", *Path(path).parts)
    found = CHECKPOINT.fullmatch(name)
    return f"{run or 'run'}, update {int(found[1])}" if found and folder == "checkpoints" else None


def _whole(weights: Path, described: Path) -> bool:
    try:
        message = json.loads(described.read_text(encoding="utf-8"))
        with weights.open("rb") as file:
            return bool(hashlib.file_digest(file, "sha256").hexdigest() == message["files"][weights.name]["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        return False
