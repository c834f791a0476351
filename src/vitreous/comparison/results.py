"""A finished study to all that is told of it: one dictionary, as `comparison.json` holds it and the page draws it.

Shapes:  s seeds · n test images
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from vitreous.comparison.meter import read_meter
from vitreous.comparison.predictions import FILE, Predictions
from vitreous.comparison.settings import differing
from vitreous.comparison.speed import batch_for, time_models
from vitreous.comparison.statistics import judge, seed_interval
from vitreous.comparison.study import Run, Study, first_models
from vitreous.models.summary import count_flops
from vitreous.pages.page import short
from vitreous.pages.run import RUN_PAGE
from vitreous.runtime.device import device_name, pick_device
from vitreous.runtime.files import write_json
from vitreous.runtime.intervals import wilson
from vitreous.training.folder import RunFolder
from vitreous.weights.load import Model

MOST = 6
"""Disagreements that are kept of each pair and direction."""


def gather(
    study: Study, *, compiled: bool = True, quoted: Mapping[str, float] | None = None, say: Callable[[str], object]
) -> dict[str, Any]:
    """Read every run of the study and work out what is told; speeds are measured once and kept."""
    models = first_models(study)
    names = display_names(list(models))
    said = {label: [Predictions.read(run.folder / FILE) for run in of(study, label)] for label in models}
    right = {label: np.stack([each.correct for each in seeds]) for label, seeds in said.items()}  # [s n]
    starts = {e.label: "fine-tuned" if e.pretrained else "from scratch" for e in study.entrants}
    speeds = measure_speeds(study, models, compiled, say)
    rows = [_row(study, label, models[label], right[label], speeds, quoted or {}) for label in models]
    for row in rows:
        row["name"] = names[row["model"]]
    first = next(iter(said.values()))[0]
    classes = next(iter(models.values())).card.class_names or ()
    pairs = [asdict(pair) for pair in judge(right, starts)]
    for pair in pairs:
        for side in ("one", "other"):
            pair["reason"] = pair["reason"].replace(pair[side], names[pair[side]])
        pair["disagreements"] = disagreements(said[pair["one"]], said[pair["other"]])
    return {
        "data": study.budget.data,
        "recipe": study.recipe,
        "images": len(first.label),
        "seeds": study.seeds,
        "minutes": study.budget.minutes,
        "alike": study.alike,
        "rows": rows,
        "pairs": pairs,
        "classes": {
            "names": list(classes),
            "accuracy": {label: _by_class(each, first.label, len(classes)) for label, each in right.items()},
        },
        "curves": {label: _curve(of(study, label)) for label in models},
        "differing": [[name, values] for name, values in differing(study.configs)],
        "common": study.configs[0].to_dict() | _batch_size(study),
        "speed": {key: speeds[key] for key in ("device", "batch", "precision", "torch")},
    }


def of(study: Study, label: str) -> list[Run]:
    """The runs of one model, seed by seed."""
    return [run for run in study.runs() if run.entrant.label == label]


def display_names(labels: list[str]) -> dict[str, str]:
    """Labels without the folders before them, where that leaves them different.

    >>> display_names(["resnet18", "/home/me/weights/vit_tiny"])
    {'resnet18': 'resnet18', '/home/me/weights/vit_tiny': 'vit_tiny'}
    """
    cut = {label: short(label) for label in labels}
    return cut if len(set(cut.values())) == len(labels) else {label: label for label in labels}


def _row(
    study: Study, label: str, model: Model, right: np.ndarray, speeds: dict[str, Any], quoted: Mapping[str, float]
) -> dict[str, Any]:
    runs = of(study, label)
    results = [RunFolder(run.folder).read_result() or {} for run in runs]
    meters = [read_meter(run.folder) for run in runs]
    accuracies = right.mean(axis=1)
    mean, half = seed_interval(accuracies)
    low, high = (mean - half, mean + half) if half is not None else wilson(int(right.sum()), right.size)
    memory = [int(result.get("memory") or 0) for result in results]
    energy = [meter["joules"] for meter in meters]
    return {
        "model": label,
        "kind": runs[0].entrant.kind,
        "start": runs[0].entrant.start,
        "notes": list(runs[0].entrant.notes),
        "accuracies": accuracies.tolist(),
        "accuracy": mean,
        "interval": [low, high],
        "interval_over": "seeds" if half is not None else "images",
        "quoted": quoted.get(label),
        "parameters": sum(p.numel() for p in model.parameters()),
        "learning": meters[0]["learning"],
        "flops": count_flops(model),
        "image_size": list(model.card.preprocess.size),
        "epochs": runs[0].config.epochs,
        **speeds["models"][label],
        "memory": max(memory) if min(memory) else None,
        "seconds": float(np.mean([result["seconds"] for result in results])),
        "ready": float(np.mean([result.get("ready", 0.0) for result in results])),
        "joules": float(np.mean(energy)) if None not in energy else None,
        "joules_why": next((meter["why"] for meter in meters if meter["why"]), ""),
        "pages": [f"runs/{run.folder.name}/{RUN_PAGE}" for run in runs],
        "devices": sorted({meter["device"] for meter in meters if meter["device"]}),
    }


def measure_speeds(
    study: Study, models: Mapping[str, Model], compiled: bool, say: Callable[[str], object]
) -> dict[str, Any]:
    """What `speed.json` holds; measured where it is not there yet, or without the compiled column that is asked for."""
    path = study.folder / "speed.json"
    if path.is_file():
        known = json.loads(path.read_text(encoding="utf-8"))
        if known["compiled"] or not compiled:
            return known
    say("timing the models" + (", eager and compiled" if compiled else ""))
    device, precision = pick_device(study.configs[0].device), study.configs[0].precision
    found = time_models(models, device, precision=precision, compiled=compiled)
    message = {
        "device": device_name(device),
        "batch": batch_for(models, device),
        "precision": precision,
        "compiled": compiled,
        "torch": torch.__version__,
        "models": {label: asdict(speed) for label, speed in found.items()},
    }
    write_json(path, message)
    return message


def _by_class(right: np.ndarray, labels: np.ndarray, classes: int) -> list[float | None]:
    """Accuracy of each class over all seeds; None for one without images."""
    each = right.mean(axis=0)
    return [float(each[labels == i].mean()) if (labels == i).any() else None for i in range(classes)]


def _batch_size(study: Study) -> dict[str, int]:
    """What the runs say of it: less than was asked for, where there were fewer images."""
    rows = RunFolder(study.runs()[0].folder).read_metrics()
    return {"batch_size": rows[-1]["batch_size"]} if rows and "batch_size" in rows[-1] else {}


def _curve(runs: list[Run]) -> dict[str, Any]:
    """Accuracy on the test images over training, by seed, and the time that it took, averaged over seeds."""
    looked = [[row for row in RunFolder(run.folder).read_metrics() if "test_top1" in row] for run in runs]
    epochs = [row["epoch"] for row in looked[0] if all(row["epoch"] in {r["epoch"] for r in each} for each in looked)]
    by_epoch = [{row["epoch"]: row for row in each} for each in looked]
    return {
        "epochs": epochs,
        "seconds": [float(np.mean([rows[epoch]["seconds"] for rows in by_epoch])) for epoch in epochs],
        "top1": [[rows[epoch]["test_top1"] for epoch in epochs] for rows in by_epoch],
    }


def disagreements(one: list[Predictions], other: list[Predictions]) -> dict[str, Any]:
    """Images that one model gets right with every seed and the other wrong with every seed, both ways.

    The first ones are those in which the two were most sure of themselves.
    """
    found: dict[str, Any] = {}
    for side, (better, worse) in {"one": (one, other), "other": (other, one)}.items():
        apart = np.all([p.correct for p in better], axis=0) & ~np.any([p.correct for p in worse], axis=0)
        sure = np.mean([p.probability for p in [*better, *worse]], axis=0)
        chosen = [int(i) for i in np.argsort(-sure, kind="stable") if apart[i]]
        found[side] = {"count": len(chosen), "images": [_answers(i, one, other) for i in chosen[:MOST]]}
    return found


def _answers(i: int, one: list[Predictions], other: list[Predictions]) -> dict[str, Any]:
    """What each model says of image `i`: the first seed's class, and how sure it is."""
    sides = {"one": one[0], "other": other[0]}
    said = {side: [int(p.predicted[i]), float(p.probability[i])] for side, p in sides.items()}
    return {"image": i, "label": int(one[0].label[i]), **said}
