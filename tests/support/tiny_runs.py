"""Runs that take a fraction of a second: small folders of images, small configs, and helpers that interrupt runs."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import load_file

from vitreous.training.config import TrainConfig
from vitreous.training.listeners import Listener
from vitreous.training.loop import train
from vitreous.training.setup import set_up_run
from vitreous.training.step import TrainStep


def make_images(folder: Path, classes=("cat", "dog", "owl"), each: int = 12, size: int = 8, seed: int = 0) -> Path:
    """`folder/<class>/<number>.png`: noise, each class brighter than the one before."""
    chance = np.random.default_rng(seed)
    for label, name in enumerate(classes):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(each):
            pixels = chance.integers(0, 120, (size, size, 3)) + 60 * label
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{i:03d}.png")
    return folder


def make_task(folder: Path, task: str, images: int = 30, size: int = 8, seed: int = 0) -> Path:
    """Images with labels, numbers or masks, every third to test on: a bright box, and where it is."""
    import csv

    chance, rows = np.random.default_rng(seed), []
    for i in range(images):
        part = "test" if i % 3 == 2 else "train"
        pixels = chance.integers(0, 80, (size, size, 3)).astype(np.uint8)
        (top, left), mask = chance.integers(0, size // 2, 2).tolist(), np.zeros((size, size), np.uint8)
        mask[top : top + size // 2, left : left + size // 2] = 1
        mask[0, 0] = 255
        pixels[mask == 1] += 150
        stored = folder / part / "images" if task == "segment" else folder / part
        stored.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(stored / f"{i:03d}.png")
        if task == "segment":
            (folder / part / "masks").mkdir(exist_ok=True)
            Image.fromarray(mask).save(folder / part / "masks" / f"{i:03d}.png")
        words = [word for word, yes in (("upper", top < size // 4), ("left", left < size // 4)) if yes]
        target = [";".join(words)] if task == "multilabel" else [10.0 * top - 3, left]
        rows.append([f"{part}/{i:03d}.png", *target, part])
    if task != "segment":
        header = ["image", *(["labels"] if task == "multilabel" else ["top", "left"]), "split"]
        with (folder / "table.csv").open("w", newline="") as file:
            csv.writer(file).writerows([header, *rows])
        return folder / "table.csv"
    return folder


def tiny(data: Path | str, **changes) -> TrainConfig:
    """About four updates an epoch, with everything on that keeps a state or draws numbers."""
    known = {
        "model": "vit_pico_patch2_8",
        "data": str(data),
        "epochs": 2,
        "batch_size": 8,
        "optimizer": "muon",
        "average": 0.9,
        "dropout": 0.1,
        "flip": True,
        "mixup": 0.4,
        "snapshots": 0,
        "save_every": 1e9,
        "device": "cpu",
    }
    return TrainConfig(**{**known, **changes})


def plain(data: Path | str, **changes) -> TrainConfig:
    """The same without anything random."""
    return tiny(data, **{"optimizer": "adamw", "average": 0.0, "dropout": 0.0, "flip": False, "mixup": 0.0, **changes})


def parts_of(config: TrainConfig):
    return set_up_run(config, None, Listener())


class LogKeeper(Listener):
    """Keep the messages and the metrics."""

    def __init__(self):
        self.lines, self.rows = [], []

    def log(self, line):
        self.lines.append(line)

    def epoch(self, row, parts):
        self.rows.append(row)


def bits(folder: Path) -> dict:
    """All that must be equal: the model's tensors, and the last checkpoint's."""
    newest = max((folder / "checkpoints").glob("step-*.safetensors"))
    saved = load_file(newest)
    model = load_file(folder / "model/model.safetensors")
    tensors = {f"saved/{name}": value for name, value in saved.items()}
    tensors |= {f"model/{name}": value for name, value in model.items()}
    return {"name": newest.name, **{name: value.numpy().tobytes() for name, value in tensors.items()}}


def differing(one: dict, other: dict) -> list:
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


class Crash(Exception):
    """What a test breaks a run off with."""


def crash():
    raise Crash


def break_off(config: TrainConfig, folder: Path, monkeypatch, update: int, **options):
    """Train until this update; it is not saved any more, those before it are where `save_every` is 0."""
    with monkeypatch.context() as patch:
        after_update(patch, update, crash)
        with pytest.raises(Crash):
            train(config, folder, **options)


def after_update(monkeypatch, count: int, action):
    """Call `action` right after the update of this number (1 is the first of this sitting)."""
    plain_call, calls = TrainStep.__call__, []

    def call(self, *arguments):
        plain_call(self, *arguments)
        calls.append(1)
        if len(calls) == count:
            action()

    monkeypatch.setattr(TrainStep, "__call__", call)


def make_shards(folder: Path, files: int = 4, each: int = 9, size: int = 8, seed: int = 0) -> Path:
    """Parquet files as the Hub has them: `train-0000N-of-….parquet` and one of test images, three classes."""
    import io
    import json

    import pyarrow as pa
    import pyarrow.parquet as pq

    chance, names = np.random.default_rng(seed), ["cat", "dog", "owl"]
    features = {"image": {"_type": "Image"}, "label": {"names": names, "_type": "ClassLabel"}}
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(files + 1):
        cells, labels = [], []
        for i in range(each):
            pixels = chance.integers(0, 120, (size, size, 3)) + 60 * (i % 3)
            file = io.BytesIO()
            Image.fromarray(pixels.astype(np.uint8)).save(file, "PNG")
            cells.append({"bytes": file.getvalue(), "path": f"{number}-{i}.png"})
            labels.append(i % 3)
        kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
        table = pa.table({"image": pa.array(cells, kind), "label": pa.array(labels)})
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
        name = f"train-{number:05d}-of-{files:05d}" if number < files else "test-00000-of-00001"
        pq.write_table(table, folder / f"{name}.parquet")
    return folder


def make_task_shards(folder: Path, task: str, files: int = 3, each: int = 12, size: int = 8, seed: int = 0) -> Path:
    """The same with several labels (lists of named classes) or numbers (columns of floats): where a bright box is."""
    import io
    import json

    import pyarrow as pa
    import pyarrow.parquet as pq

    chance = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(files + 1):
        cells, tops, lefts = [], [], []
        for _ in range(each):
            pixels = chance.integers(0, 80, (size, size, 3)).astype(np.uint8)
            top, left = chance.integers(0, size // 2, 2).tolist()
            pixels[top : top + size // 2, left : left + size // 2] += 150
            file = io.BytesIO()
            Image.fromarray(pixels).save(file, "PNG")
            cells.append(file.getvalue())
            tops.append(10.0 * top - 3)
            lefts.append(float(left))
        columns = {"image": pa.array(cells, pa.binary())}
        features = {"image": {"_type": "Image"}}
        if task == "regress":
            columns |= {"top": pa.array(tops), "left": pa.array(lefts, pa.float32())}
            features |= {
                name: {"dtype": kind, "_type": "Value"} for name, kind in (("top", "float64"), ("left", "float32"))
            }
        else:
            upper = [
                [i for i, yes in enumerate((top < 10, left < 2)) if yes] for top, left in zip(tops, lefts, strict=True)
            ]
            columns["labels"] = pa.array(upper, pa.list_(pa.int64()))
            features["labels"] = {"feature": {"names": ["upper", "left"], "_type": "ClassLabel"}, "_type": "List"}
        table = pa.table(columns)
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
        name = f"train-{number:05d}-of-{files:05d}" if number < files else "test-00000-of-00001"
        pq.write_table(table, folder / f"{name}.parquet")
    return folder
