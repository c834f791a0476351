"""Studies that take seconds: two tiny models on small images, two seeds."""

from pathlib import Path

import numpy as np
from PIL import Image

from vitreous.api.compare import compare
from vitreous.comparison.entrants import Budget
from vitreous.training.config import TrainConfig
from vitreous.training.listeners import Listener

BUDGET = {"epochs": 2, "batch_size": 8, "image_size": 8, "recipe": "digits"}
MODELS = ("vit_pico_patch2_8", "vit_femto_patch4_32")


def make_zoo(folder: Path, each: int = 12) -> Path:
    """`folder/<class>/<number>.png`: noise of 8×8 pixels, each class brighter than the one before."""
    random = np.random.default_rng(0)
    for label, name in enumerate(("cat", "dog", "owl")):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(each):
            pixels = random.integers(0, 120, (8, 8, 3)) + 60 * label
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{i:03d}.png")
    return folder


def tiny(data, folder, models=MODELS, **options):
    """Two epochs and two seeds by default; nothing compiled."""
    usual = {**BUDGET, "seeds": 2, "device": "cpu", "compiled": False}
    return compare(models, str(data), folder, **{**usual, **options})


def tiny_run(data, **changes):
    """The config of a run of two epochs."""
    known = {"data": str(data), "epochs": 2, "batch_size": 8, "snapshots": 0, "save_every": 0, "device": "cpu"}
    return TrainConfig(**{**known, **changes})


def budget_of(data):
    return Budget(data=str(data), **BUDGET)


class Heard(Listener):
    def __init__(self):
        self.lines = []

    def log(self, line):
        self.lines.append(line)


def states(folder: Path) -> dict:
    """The files of the runs with results, and the time of their last change."""
    files = [*folder.glob("runs/*/result.json"), *folder.glob("runs/*/predictions.npz"), *folder.glob("runs/*/model/*")]
    return {path.relative_to(folder): path.stat().st_mtime_ns for path in files}
