"""Gather the results of a finished study: one dictionary, which `comparison.json` holds and the page draws.

Shapes:  s seeds · n test images
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.comparison.cost import measure_speeds, read_meter
from vitreous.comparison.entrants import differing
from vitreous.comparison.runs import PREDICTIONS, Predictions
from vitreous.comparison.statistics import compare_pairs, seed_interval
from vitreous.comparison.study import Run, Study
from vitreous.models.summary import count_flops
from vitreous.pages.run import RUN_PAGE, spell
from vitreous.runtime.files import short_name
from vitreous.training.run_folder import RunFolder
from vitreous.weights.load import Model

DISAGREEMENTS = 6
"""Images that are kept of each pair and direction."""


def gather(
    study: Study, *, compiled: bool = True, quoted: Mapping[str, float] | None = None, say: Callable[[str], object]
) -> dict[str, Any]:
    """Gather the results of every run of the study; speeds are measured once and kept."""
    models = study.first_models()
    names = display_names(list(models))
    answers = {label: [Predictions.read(run.folder / PREDICTIONS) for run in study.runs(label)] for label in models}
    correct = {label: np.stack([each.correct for each in seeds]) for label, seeds in answers.items()}  # [s n]
    starts = {e.label: "fine-tuned" if e.pretrained else "from scratch" for e in study.entrants}
    speeds = measure_speeds(study.folder, study.configs[0], models, compiled, say)
    rows = [
        _row(study.runs(label), models[label], correct[label])
        | {"model": label, "name": names[label], "quoted": (quoted or {}).get(label), **speeds["models"][label]}
        for label in models
    ]
    first = next(iter(answers.values()))[0]
    classes = next(iter(models.values())).card.class_names or ()
    pairs = [asdict(pair) for pair in compare_pairs(correct, starts)]
    for pair in pairs:
        for side in ("one", "other"):
            pair["reason"] = pair["reason"].replace(pair[side], names[pair[side]])
        pair["disagreements"] = disagreements(answers[pair["one"]], answers[pair["other"]])
    config = study.configs[0].to_dict()
    metrics = RunFolder(study.runs()[0].folder).read_metrics()
    if metrics and "batch_size" in metrics[-1]:  # the one used: smaller than the config's if there were fewer images
        config["batch_size"] = metrics[-1]["batch_size"]
    return {
        "data": spell(study.budget.data),  # without the folders of this machine
        "recipe": study.recipe,
        "images": len(first.label),
        "seeds": study.seeds,
        "minutes": study.budget.minutes,
        "alike": study.alike,
        "rows": rows,
        "pairs": pairs,
        "classes": {
            "names": list(classes),
            "accuracy": {label: _by_class(each, first.label, len(classes)) for label, each in correct.items()},
        },
        "curves": {label: _curve(study.runs(label)) for label in models},
        "differing": differing(study.configs),
        "common": {name: spell(value) if isinstance(value, str) else value for name, value in config.items()},
        "speed": {key: speeds[key] for key in ("device", "batch", "precision", "torch")},
    }


def display_names(labels: Sequence[str]) -> dict[str, str]:
    """Shorten the models' names in a study's results to the last part of their paths, if they stay different.

    >>> display_names(["resnet18", "/home/me/weights/vit_tiny"])
    {'resnet18': 'resnet18', '/home/me/weights/vit_tiny': 'vit_tiny'}
    """
    cut = {label: short_name(label) for label in labels}
    return cut if len(set(cut.values())) == len(labels) else {label: label for label in labels}


def _row(runs: Sequence[Run], model: Model, correct: NDArray[np.bool_]) -> dict[str, Any]:
    """Gather the numbers of one model of a study over its seeds: accuracy, cost, devices."""
    from scipy.stats import binomtest

    results = [RunFolder(run.folder).read_result() or {} for run in runs]
    meters = [read_meter(run.folder) for run in runs]
    accuracies = correct.mean(axis=1)
    mean, half = seed_interval(accuracies)
    if half is not None:
        low, high = mean - half, mean + half
    else:  # too few seeds: over images
        images = correct.shape[1]
        low, high = binomtest(round(mean * images), images).proportion_ci(method="wilson")
    memory = [int(result.get("memory") or 0) for result in results]
    energy = [meter["joules"] for meter in meters]
    return {
        "kind": runs[0].entrant.kind,
        "start": runs[0].entrant.start,
        "notes": list(runs[0].entrant.notes),
        "accuracies": accuracies.tolist(),
        "accuracy": mean,
        "interval": [float(low), float(high)],
        "interval_over": "seeds" if half is not None else "images",
        "parameters": sum(p.numel() for p in model.parameters()),
        "learning": meters[0]["learning"],
        "flops": count_flops(model),
        "image_size": list(model.card.preprocess.size),
        "epochs": runs[0].config.epochs,
        "memory": max(memory) if min(memory) else None,
        "seconds": float(np.mean([result["seconds"] for result in results])),
        "ready": float(np.mean([result.get("ready", 0.0) for result in results])),
        "joules": float(np.mean(energy)) if None not in energy else None,
        "joules_why": next((meter["why"] for meter in meters if meter["why"]), ""),
        "pages": [f"runs/{run.folder.name}/{RUN_PAGE}" for run in runs],
        "devices": sorted({meter["device"] for meter in meters if meter["device"]}),
    }


def _by_class(correct: NDArray[np.bool_], labels: NDArray[np.int64], classes: int) -> list[float | None]:
    """Compute for a study's results the accuracy of each class over all seeds; None for a class without images."""
    each = correct.mean(axis=0)
    return [float(each[labels == i].mean()) if (labels == i).any() else None for i in range(classes)]


def _curve(runs: Sequence[Run]) -> dict[str, Any]:
    """List for a study's results the accuracy on test images over training, by seed, and the seconds until then."""
    evaluated = [[row for row in RunFolder(run.folder).read_metrics() if "test_top1" in row] for run in runs]
    by_epoch = [{row["epoch"]: row for row in rows} for rows in evaluated]
    epochs = [epoch for epoch in by_epoch[0] if all(epoch in rows for rows in by_epoch)]
    return {
        "epochs": epochs,
        "seconds": [float(np.mean([rows[epoch]["seconds"] for rows in by_epoch])) for epoch in epochs],
        "top1": [[rows[epoch]["test_top1"] for epoch in epochs] for rows in by_epoch],
    }


def disagreements(one: Sequence[Predictions], other: Sequence[Predictions]) -> dict[str, Any]:
    """Find for a study's results the images that one model always gets right and the other wrong.

    The images come first in which the two models have the highest probabilities.
    """
    found: dict[str, Any] = {}
    for side, (better, worse) in {"one": (one, other), "other": (other, one)}.items():
        apart = np.all([p.correct for p in better], axis=0) & ~np.any([p.correct for p in worse], axis=0)
        probability = np.mean([p.probability for p in [*better, *worse]], axis=0)
        chosen = [int(i) for i in np.argsort(-probability, kind="stable") if apart[i]]
        images: list[dict[str, Any]] = [{"image": i, "label": int(one[0].label[i])} for i in chosen[:DISAGREEMENTS]]
        for image in images:  # each model's answer: the first seed's class and its probability
            for key, first in (("one", one[0]), ("other", other[0])):
                image[key] = [int(first.predicted[image["image"]]), float(first.probability[image["image"]])]
        found[side] = {"count": len(chosen), "images": images}
    return found
