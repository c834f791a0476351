"""Tiny datasets of several labels, numbers and masks, and models that a run of a second has trained on them."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tiny_runs import plain

from conftest import noise
from vitreous.data.preprocess import default_preprocess
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.training import loop
from vitreous.weights.card import Card

TASKS = ("multilabel", "regress", "segment")
NAMES = {"multilabel": ("blue", "green", "red"), "regress": ("light", "height"), "segment": ("ground", "box")}


def make_task_data(folder: Path, task: str, images: int = 30, seed: int = 0) -> Path:
    """Images of about 12×10 pixels and what is to be learned of them; the path for `--data`."""
    draw = np.random.default_rng(seed)
    (folder / "images").mkdir(parents=True)
    rows = {"multilabel": ["image,labels"], "regress": ["image,light,height"], "segment": []}[task]
    for number in range(images):
        pixels = draw.integers(0, 80, (10 + number % 3, 12, 3)).astype(np.uint8)
        name = f"images/{number:02d}.png"
        if task == "multilabel":
            present = draw.random(3) < 0.5
            pixels[..., present] += 150
            rows.append(f"{name},{';'.join(np.array(['red', 'green', 'blue'])[present])}")
        elif task == "regress":
            light = int(draw.integers(0, 170))
            pixels += np.uint8(light)
            rows.append(f"{name},{light},{len(pixels) * 0.01}")
        else:
            top, left = draw.integers(0, 5, 2)
            mask = np.zeros(pixels.shape[:2], np.uint8)
            mask[top : top + 5, left : left + 6] = 1
            pixels[mask == 1] += 150
            mask[0, 0] = 255
            (folder / "masks").mkdir(exist_ok=True)
            Image.fromarray(mask).save(folder / f"masks/{number:02d}.png")
        Image.fromarray(pixels).save(folder / name)
    if task == "segment":
        (folder / "classes.json").write_text(json.dumps({"0": "ground", "1": "box"}))
        return folder
    (folder / "table.csv").write_text("\n".join(rows) + "\n")
    return folder / "table.csv"


def train_on(data: Path, folder: Path, **settings):
    """Train a tiny model in `folder` and return it with its result."""
    kept = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "save", lambda model, path: kept.append(model))
        result = loop.train(plain(data, **{"epochs": 3, **settings}), folder)
    return kept[0].eval(), result


def task_model(task: str, names: Sequence[str] | None = None):
    """A small noisy model of a task, with its card."""
    names = tuple(NAMES[task] if names is None else names)
    shape = ViTConfig(image_size=32, patch_size=8, width=48, depth=2, heads=4, classes=len(names))
    model = ViT(shape)
    if task == "segment":
        model.reset_dense(len(names), "linear")
    model = noise(model)
    model.card = Card("tiny", default_preprocess(model.config), class_names=names, task=task)
    model.card.independent = task == "multilabel"
    return model
