"""Studies that take seconds: two tiny models on little images, two seeds, and ways to look at them."""

from pathlib import Path

import numpy as np
from PIL import Image

from vitreous.comparison.compare import compare
from vitreous.comparison.settings import Budget
from vitreous.training.listeners import Listener

BUDGET = {"epochs": 2, "batch_size": 8, "image_size": 8, "recipe": "digits"}
MODELS = ("vit_pico_patch2_8", "vit_femto_patch4_32")


def make_zoo(folder: Path, each: int = 12) -> Path:
    """`folder/<class>/<number>.png`: noise of 8×8 pixels, each class brighter than the one before."""
    chance = np.random.default_rng(0)
    for label, name in enumerate(("cat", "dog", "owl")):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(each):
            pixels = chance.integers(0, 120, (8, 8, 3)) + 60 * label
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{i:03d}.png")
    return folder


def tiny(data, folder, models=MODELS, **options):
    """Two epochs and two seeds, unless told otherwise; nothing compiled."""
    usual = {**BUDGET, "seeds": 2, "device": "cpu", "compiled": False}
    return compare(models, str(data), folder, **{**usual, **options})


def budget_of(data):
    return Budget(data=str(data), **BUDGET)


class Heard(Listener):
    def __init__(self):
        self.lines = []

    def say(self, text):
        self.lines.append(text)


def states(folder: Path) -> dict:
    """Every file of the runs that says what was computed, with the time of its last change."""
    files = [*folder.glob("runs/*/result.json"), *folder.glob("runs/*/predictions.npz"), *folder.glob("runs/*/model/*")]
    return {path.relative_to(folder): path.stat().st_mtime_ns for path in files}
