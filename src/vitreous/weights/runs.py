"""Find the model's weights in a training run: in its folder, finished or not, or in one of its checkpoints.

A checkpoint holds weights and optimiser state, under `model/…`, `average/…` and other names. The run's `model.json`
describes the model: its config, preprocessing and class names.
"""

import hashlib
import json
import re
from pathlib import Path

MODEL_FILE = "model.json"
CHECKPOINT = re.compile(r"step-(\d{9})\.safetensors")


def is_run(folder: Path) -> bool:
    """Return whether `folder` holds a training run rather than a model."""
    parts = (folder / "checkpoints").is_dir() or (folder / MODEL_FILE).is_file()
    return parts and (folder / "config.json").is_file() and not (folder / "model.safetensors").exists()


def newest_weights(run: Path) -> Path:
    """Return the finished model of a run (a folder), or else its newest complete checkpoint (a file)."""
    if (run / "model" / "model.safetensors").is_file():
        return run / "model"
    for description in sorted((run / "checkpoints").glob("step-*.json"), reverse=True):
        weights = description.with_suffix(".safetensors")
        if CHECKPOINT.fullmatch(weights.name) and _is_complete(weights, description):
            return weights
        if description.with_suffix("").is_dir():
            raise ValueError(
                f"{description.with_suffix('')} was written in parts by several processes: finish the run, or resume "
                f"it in one process for one checkpoint (vitreous train --resume {run})"
            )
    raise FileNotFoundError(
        f"{run} is a run without a complete checkpoint: if it is running, wait until it has written one; else "
        f"vitreous train --resume {run} starts it again"
    )


def how_far(run: Path, checkpoint: Path) -> str:
    """Say in a line which epoch of an unfinished run the weights in its `checkpoint` are from."""
    try:
        position = json.loads(checkpoint.with_suffix(".json").read_text(encoding="utf-8"))
        config = json.loads((run / "config.json").read_text(encoding="utf-8"))
        middle = bool(position["step"])  # `epoch` counts those that are done
        which = f"{'the middle of ' * middle}epoch {int(position['epoch']) + middle} of {int(config['epochs'])}"
    except (OSError, ValueError, KeyError, TypeError):
        which = "one of its epochs"
    return f"{run} is an unfinished run, its weights are from {which}: vitreous train --resume {run} finishes it"


def model_file_of(checkpoint: Path) -> Path | None:
    """Return the `model.json` that describes the model in a run's checkpoint; None for any other file."""
    run = checkpoint.absolute().parent.parent
    if not CHECKPOINT.fullmatch(checkpoint.name) or checkpoint.absolute().parent.name != "checkpoints":
        return None
    if (run / MODEL_FILE).is_file():
        return run / MODEL_FILE
    if is_run(run):
        raise ValueError(
            f"{run} lacks {MODEL_FILE}, which describes the model in its checkpoints: a run of an earlier version "
            f"writes it when it resumes (vitreous train --resume {run})"
        )
    return None


def checkpoint_name(path: str) -> str | None:
    """Name the model in a run's checkpoint in short; None for any other path.

    >>> checkpoint_name("runs/digits/checkpoints/step-000000290.safetensors")
    'digits, update 290'
    """
    *_, run, folder, name = ("", "", *Path(path).parts)
    found = CHECKPOINT.fullmatch(name)
    return f"{run or 'run'}, update {int(found[1])}" if found and folder == "checkpoints" else None


def _is_complete(weights: Path, description: Path) -> bool:
    """Return whether weights found in a run can be taken: they have the hash that their description states."""
    try:
        expected = json.loads(description.read_text(encoding="utf-8"))["files"][weights.name]["sha256"]
        with weights.open("rb") as file:
            return bool(hashlib.file_digest(file, "sha256").hexdigest() == expected)
    except (OSError, ValueError, KeyError, TypeError):
        return False
