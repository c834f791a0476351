"""Gather the results of a finished study: one dictionary, which `comparison.json` holds and the page draws.

Shapes:  s seeds · n test images · m numbers of a row of scores
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.comparison.cost import measure_speeds, read_meter
from vitreous.comparison.entrants import differing
from vitreous.comparison.runs import PREDICTIONS, Predictions, TaskPredictions
from vitreous.comparison.statistics import compare_pairs, exchange_test, judge_pairs, seed_interval
from vitreous.comparison.study import Run, Study
from vitreous.comparison.task_scores import EACH_FIGURE, each_of, exchanger, figures_of, image_scores, spell_gap
from vitreous.models.summary import count_flops
from vitreous.pages.run import RUN_PAGE, spell
from vitreous.predict.evaluation_result import confidence_interval
from vitreous.predict.scores import SCORES
from vitreous.training.run_folder import RunFolder
from vitreous.weights.card import Card
from vitreous.weights.load import Model

DISAGREEMENTS = 6
"""Images that are kept of each pair and direction."""


def gather(
    study: Study, *, compiled: bool = True, quoted: Mapping[str, float] | None = None, say: Callable[[str], object]
) -> dict[str, Any]:
    """Gather the results of every run of the study; speeds are measured once and kept."""
    models, names = study.first_models(), study.names  # all that follows is by name: labels may be local paths
    starts = {names[e.label]: "fine-tuned" if e.pretrained else "from scratch" for e in study.entrants}
    stated = {names[label]: value for label, value in (quoted or {}).items()}
    speeds = measure_speeds(study.folder, study.configs[0], models, compiled, say)
    scored = (_score_classes if study.task == "classify" else _score_task)(study, models, starts)
    rows = [
        _row(study.runs(name), models[name], scored.rows[name])
        | {"model": name, "name": name, "quoted": stated.get(name), **speeds["models"][name]}
        for name in models
    ]
    for pair in scored.pairs:
        pair["disagreements"] = scored.disagreements(pair["one"], pair["other"])
    config = study.configs[0].to_dict()
    metrics = RunFolder(study.runs()[0].folder).read_metrics()
    if metrics and "batch_size" in metrics[-1]:  # the one used: smaller than the config's if there were fewer images
        config["batch_size"] = metrics[-1]["batch_size"]
    return {
        "data": spell(study.budget.data),  # without the folders of this machine
        **({} if study.task == "classify" else {"task": study.task, "score": SCORES[study.task].main}),
        "recipe": study.recipe,
        "images": scored.images,
        "seeds": study.seeds,
        "minutes": study.budget.minutes,
        "alike": study.alike,
        "rows": rows,
        "pairs": scored.pairs,
        "classes": scored.classes,
        "curves": {name: _curve(study.runs(name), SCORES[study.task].main) for name in models},
        "differing": differing(study.configs),
        "common": {name: spell(value) if isinstance(value, str) else value for name, value in config.items()},
        "speed": {key: speeds[key] for key in ("device", "batch", "precision", "torch")},
    }


@dataclass(frozen=True)
class _Scored:
    """What the answers of a study's models to the test images say."""

    images: int
    rows: dict[str, dict[str, Any]]
    """Model → its scores, for its row of the table."""
    pairs: list[dict[str, Any]]
    classes: dict[str, Any]
    """Names of the classes, labels or numbers, and each one's figure by model."""
    disagreements: Callable[[str, str], dict[str, Any]]
    """Two models → images that one answers better."""


def _score_classes(study: Study, models: Mapping[str, Model], starts: Mapping[str, str]) -> _Scored:
    """Gather the results of a finished study whose models learn classes, from their correct answers."""
    answers = {name: [Predictions.read(run.folder / PREDICTIONS) for run in study.runs(name)] for name in models}
    correct = {name: np.stack([each.correct for each in seeds]) for name, seeds in answers.items()}  # [s n]
    labels = next(iter(answers.values()))[0].label
    classes = next(iter(models.values())).card.class_names or ()
    by_class = {name: _by_class(each, labels, len(classes)) for name, each in correct.items()}
    return _Scored(
        len(labels),
        {name: _accuracies(each) for name, each in correct.items()},
        [asdict(pair) for pair in compare_pairs(correct, starts)],
        {"names": list(classes), "accuracy": by_class},
        lambda one, other: disagreements(answers[one], answers[other]),
    )


def _score_task(study: Study, models: Mapping[str, Model], starts: Mapping[str, str]) -> _Scored:
    """Gather the results of a finished study that does not classify, from what its runs predicted."""
    task, main = study.task, SCORES[study.task].main
    answers = {name: [TaskPredictions.read(run.folder / PREDICTIONS) for run in study.runs(name)] for name in models}
    rows = {name: np.stack([each.rows for each in seeds]) for name, seeds in answers.items()}  # [s n m]
    targets = next(iter(answers.values()))[0].targets
    classes = next(iter(models.values())).card.class_names or ()
    pixels = {name: math.prod(model.card.preprocess.size) for name, model in models.items()}
    figures = {name: figures_of(task, each, targets) for name, each in rows.items()}
    scores = {name: np.array([own.get(main, np.nan) for own in each]) for name, each in figures.items()}
    if not all(np.isfinite(each).all() for each in scores.values()):
        why = "all have the same numbers" if task == "regress" else "have nothing to measure"
        raise ValueError(f"the test images of {study.budget.data} {why}: check its test split")

    def test(one: str, other: str) -> float:
        seen = pixels[one], pixels[other]
        return exchange_test(exchanger(task, rows[one], rows[other], targets, seen), rows[one].shape[1])

    def better(one: str, other: str) -> dict[str, Any]:
        sides = {"one": one, "other": other}
        cards = {side: models[name].card for side, name in sides.items()}
        return better_images(task, targets, {side: rows[name] for side, name in sides.items()}, cards)

    each = {name: each_of(task, own, targets) for name, own in rows.items()}
    return _Scored(
        len(next(iter(rows.values()))[0]),
        {name: _figures(own, main) for name, own in figures.items()},
        [asdict(pair) for pair in judge_pairs(scores, test, starts, lambda size: spell_gap(task, size))],
        {"names": list(classes), EACH_FIGURE[task]: each},
        better,
    )


def better_images(
    task: str,
    targets: NDArray[np.float32],
    rows: Mapping[str, NDArray[np.float32]],
    cards: Mapping[str, Card],
) -> dict[str, Any]:
    """Find for a study's results the images that one model answers better than the other, those furthest apart first.

    Each seed of the one is better than each seed of the other. `rows` are the scores `[s n m]` of both sides. What each
    model answers is the first seed's: the indices of labels, the numbers, or the mean IoU of the image.
    """
    scores = {side: image_scores(task, each, targets) for side, each in rows.items()}  # [s n] each
    present = {
        side: each[0] >= np.array([cards[side].threshold(i) for i in range(targets.shape[1])])
        for side, each in rows.items()
        if task == "multilabel"
    }

    def answer(side: str, i: int) -> Any:
        if task == "multilabel":
            return np.flatnonzero(present[side][i]).tolist()
        return rows[side][0, i].tolist() if task == "regress" else float(scores[side][0, i])

    found: dict[str, Any] = {}
    for side, worse in {"one": "other", "other": "one"}.items():
        gain = np.nan_to_num(scores[side].min(axis=0) - scores[worse].max(axis=0))
        chosen = [int(i) for i in np.argsort(-gain, kind="stable") if gain[i] > 0]
        images = [{"image": i, "one": answer("one", i), "other": answer("other", i)} for i in chosen[:DISAGREEMENTS]]
        for image in images if task != "segment" else ():
            own = targets[image["image"]]
            image["target"] = np.flatnonzero(own > 0.5).tolist() if task == "multilabel" else own.tolist()
        found[side] = {"count": len(chosen), "images": images}
    return found


def _row(runs: Sequence[Run], model: Model, scores: Mapping[str, Any]) -> dict[str, Any]:
    """Gather for a study's results the numbers of one model over its seeds: scores, cost, devices."""
    results = [RunFolder(run.folder).read_result() or {} for run in runs]
    meters = [read_meter(run.folder) for run in runs]
    memory = [int(result.get("memory") or 0) for result in results]
    energy = [meter["joules"] for meter in meters]
    return {
        "kind": runs[0].entrant.kind,
        "start": runs[0].entrant.start,
        "notes": list(runs[0].entrant.notes),
        **scores,
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


def _accuracies(correct: NDArray[np.bool_]) -> dict[str, Any]:
    """Gather for a study's results the accuracies of a model and their interval: correct answers `[s n]`."""
    accuracies = correct.mean(axis=1)
    mean, half = seed_interval(accuracies)
    if half is not None:
        low, high = mean - half, mean + half
    else:  # too few seeds: over images
        low, high = confidence_interval(round(mean * correct.shape[1]), correct.shape[1])
    return {
        "accuracies": accuracies.tolist(),
        "accuracy": mean,
        "interval": [low, high],
        "interval_over": "seeds" if half is not None else "images",
    }


def _figures(seeds: Sequence[Mapping[str, float]], main: str) -> dict[str, Any]:
    """Gather a model's results if the study's task is not classify: figures, means over seeds, `main`'s interval."""
    mean, half = seed_interval([figures[main] for figures in seeds])
    names = [name for name in seeds[0] if all(name in figures for figures in seeds)]
    return {
        "scores": [figures[main] for figures in seeds],
        "score": mean,
        "interval": None if half is None else [mean - half, mean + half],
        "interval_over": None if half is None else "seeds",
        "figures": {name: float(np.mean([figures[name] for figures in seeds])) for name in names},
    }


def _by_class(correct: NDArray[np.bool_], labels: NDArray[np.int64], classes: int) -> list[float | None]:
    """Return a study's results by class: the accuracy over all seeds; None for a class without images."""
    each = correct.mean(axis=0)
    return [float(each[labels == i].mean()) if (labels == i).any() else None for i in range(classes)]


def _curve(runs: Sequence[Run], figure: str) -> dict[str, Any]:
    """List for a study's results a figure of the test images over training, by seed, and the seconds until then."""
    evaluated = [[row for row in RunFolder(run.folder).read_metrics() if f"test_{figure}" in row] for run in runs]
    by_epoch = [{row["epoch"]: row for row in rows} for rows in evaluated]
    epochs = [epoch for epoch in by_epoch[0] if all(epoch in rows for rows in by_epoch)]
    return {
        "epochs": epochs,
        "seconds": [float(np.mean([rows[epoch]["seconds"] for rows in by_epoch])) for epoch in epochs],
        figure: [[rows[epoch][f"test_{figure}"] for epoch in epochs] for rows in by_epoch],
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
