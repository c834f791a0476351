"""What a run's page shows of its held-out images: mistakes and confusions; labels, numbers (a scatter plot), masks."""

from typing import Any

import numpy as np
import torch
from PIL.Image import fromarray

from vitreous.data.masks import class_colours, draw_mask
from vitreous.pages.render import data_uri
from vitreous.predict.mask_scores import class_ious
from vitreous.predict.scores import average_precisions, best_thresholds, class_accuracies
from vitreous.training.held_out import HeldOutAnswers, HeldOutOutputs

POINTS = 600  # of a scatter plot, spread over all images if there are more
ROWS = 40  # of a table of labels or classes
MATRIX = 16  # classes up to which all confusions are shown, as a matrix
CONFUSIONS, CLASS_ROWS = 12, 30  # rows of the tables of confusions and of classes


def held_out_section(answers: HeldOutAnswers) -> dict[str, Any]:
    """Prepare what the run's page shows of held-out images with classes: mistakes, confusions, unequal classes."""
    names, counts = answers.class_names, class_accuracies(answers.labels.tolist(), answers.predicted.tolist())
    matrix = answers.confusion().tolist() if len(names) <= MATRIX else []
    rows = [(label, correct / images, images) for label, (correct, images) in counts.items()]
    trained = answers.trained.tolist()
    present = [count for count in trained if count]
    unequal = bool(present) and max(present) >= 2 * min(present)
    return {
        "wrong": int((answers.labels != answers.predicted).sum()),
        "images": len(answers.labels),
        "epoch": answers.epoch,
        "mistakes": [
            (data_uri(image), name, names[answers.labels[i]], names[answers.predicted[i]], float(confidence))
            for i, name, image, confidence in zip(
                answers.mistakes, answers.names, answers.images, answers.confidence, strict=True
            )
        ],
        "matrix": [(names[i], line, max(1, sum(line))) for i, line in enumerate(matrix)],
        "confusions": [(names[a], names[b], n, counts[a][1]) for a, b, n in answers.confusions()[:CONFUSIONS]],
        "balanced": sum(share for _, share, _ in rows) / len(rows) if unequal else None,
        "classes": [
            (names[label], trained[label], images, share)
            for label, share, images in sorted(rows, key=lambda row: row[1])[:CLASS_ROWS]
        ],
        "more_classes": max(0, len(rows) - CLASS_ROWS),
        "untested": [name for label, name in enumerate(names) if label not in counts],
    }


def outputs_section(outputs: HeldOutOutputs) -> dict[str, Any]:
    """Prepare what the run's page shows of held-out images with labels, numbers or masks."""
    make = {"multilabel": _labels, "regress": _numbers, "segment": _masks}[outputs.task]
    common = {"task": outputs.task, "epoch": outputs.epoch, "images": len(outputs.rows)}
    return common | make(outputs)


def _labels(outputs: HeldOutOutputs) -> dict[str, Any]:
    """List for a run's held-out images the labels, the least precise first, and the images found worst."""
    names, targets = outputs.class_names, outputs.targets
    probabilities = torch.from_numpy(outputs.rows)
    precisions = average_precisions(probabilities, targets)
    thresholds = np.array(best_thresholds(probabilities, targets))  # those of the model that the run leaves
    known = [(name, int(count), each) for name, count, each in zip(names, targets.sum(axis=0), precisions, strict=True)]
    ranked = sorted(known, key=lambda row: 2.0 if row[2] is None else row[2])
    shown = []
    for i, name, image in zip(outputs.shown, outputs.names, outputs.images, strict=True):
        wanted, found = targets[i] > 0.5, outputs.rows[i] >= thresholds
        words = {"has": wanted & found, "missed": wanted & ~found, "not there": found & ~wanted}
        lists = {word: [names[k] for k in np.flatnonzero(some)] for word, some in words.items() if some.any()}
        shown.append((data_uri(image), name, lists))
    return {"rows": ranked[:ROWS], "more": max(0, len(ranked) - ROWS), "shown": shown}


def _numbers(outputs: HeldOutOutputs) -> dict[str, Any]:
    """Prepare for a run's held-out images a scatter plot of each number, and the images that are furthest off."""
    found, wanted = outputs.rows, outputs.targets
    plots = []
    for k, name in enumerate(outputs.class_names):
        ends = np.concatenate([found[:, k], wanted[:, k]])
        low, high = float(ends.min()), float(ends.max())
        spread = max(high - low, 1e-9)
        step = max(1, -(-len(found) // POINTS))
        points = [
            (100 * (x - low) / spread, 100 - 100 * (y - low) / spread)
            for x, y in zip(wanted[::step, k].tolist(), found[::step, k].tolist(), strict=True)
        ]
        plots.append({"name": name, "low": f"{low:.3g}", "high": f"{high:.3g}", "points": points, "some": step > 1})
    shown = [
        (
            data_uri(image),
            name,
            [(n, f"{w:.4g}", f"{f:.4g}") for n, w, f in zip(outputs.class_names, wanted[i], found[i], strict=True)],
        )
        for i, name, image in zip(outputs.shown, outputs.names, outputs.images, strict=True)
    ]
    return {"plots": plots, "shown": shown}


def _masks(outputs: HeldOutOutputs) -> dict[str, Any]:
    """List for a run's held-out images the classes with their IoU and colours, and draw masks over images."""
    colours = class_colours(len(outputs.class_names))
    ious = class_ious(torch.from_numpy(outputs.rows))
    known = [
        (name, "#" + bytes(colour).hex(), iou)
        for name, colour, iou in zip(outputs.class_names, colours, ious, strict=True)
    ]
    shown = []
    for k, (i, name, image) in enumerate(zip(outputs.shown, outputs.names, outputs.images, strict=True)):
        own = [each for each in class_ious(torch.from_numpy(outputs.rows[i : i + 1])) if each is not None]
        predicted, labelled = outputs.masks[:, k]
        seen = fromarray(image[..., 0] if image.shape[-1] == 1 else image)
        drawn = [data_uri(np.asarray(draw_mask(seen, mask, len(colours)))) for mask in (labelled, predicted)]
        shown.append((data_uri(image), *drawn, name, float(np.mean(own)) if own else None))
    return {"rows": known[:ROWS], "more": max(0, len(known) - ROWS), "shown": shown}
