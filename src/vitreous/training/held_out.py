"""`HeldOutAnswers`: a run's answers to its held-out images, with confusion matrix and worst mistakes.

`HeldOutOutputs` are those of a run that learns labels, numbers or masks. `AnswerRecorder` listens to a run and writes
`held_out.npz` after each evaluation; `read_answers` reads it.

Shapes:  n held-out images · m mistakes, or images that are shown · k labels or numbers
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitreous.runtime.files import short_name, write_arrays
from vitreous.training.evaluation import reduce_masks
from vitreous.training.listeners import Listener
from vitreous.training.snapshots import thumbnails

if TYPE_CHECKING:
    from vitreous.training.config import TrainConfig
    from vitreous.training.run_folder import RunFolder
    from vitreous.training.setup import TrainingParts

MISTAKES = 12
SHOWN_WORST, SHOWN_OTHERS = 8, 4  # images with labels, numbers or masks: those with the largest loss, and others
THUMBNAIL = 128  # pixels of a mistake's longer side


@dataclass(frozen=True)
class HeldOutAnswers:
    """The classes that a model gives to the held-out images after an epoch."""

    epoch: int
    class_names: tuple[str, ...]
    trained: NDArray[np.int64]
    """Training images of each class: `[classes]`."""
    labels: NDArray[np.int64]
    """`[n]`"""
    predicted: NDArray[np.int64]
    """`[n]`"""
    mistakes: NDArray[np.int64]
    """Indices of the wrong answers with the highest probability, that one first: `[m]`."""
    confidence: NDArray[np.float32]
    """The probability of each mistake's class: `[m]`."""
    names: tuple[str, ...]
    """File names of the mistakes."""
    images: NDArray[np.uint8]
    """The mistakes: `[m h w c]`."""

    @property
    def accuracy(self) -> float:
        return float((self.labels == self.predicted).mean())

    def confusion(self) -> NDArray[np.int64]:
        """Compute the confusion matrix of a run's answers to its held-out images: counts `[label predicted]`."""
        size = len(self.class_names)
        return np.bincount(self.labels * size + self.predicted, minlength=size * size).reshape(size, size)

    def confusions(self) -> list[tuple[int, int, int]]:
        """List classes confused in a run's held-out answers as (label, predicted, images), the most frequent first."""
        wrong = self.labels != self.predicted
        pairs = Counter(zip(self.labels[wrong].tolist(), self.predicted[wrong].tolist(), strict=True))
        return [(label, guess, count) for (label, guess), count in pairs.most_common()]


@dataclass(frozen=True)
class HeldOutOutputs:
    """What a model of labels, numbers or masks gives the held-out images after an epoch."""

    epoch: int
    task: str
    class_names: tuple[str, ...]
    rows: NDArray[np.float32]
    """The scores of each image (`predict/scores.py`): `[n m]`."""
    targets: NDArray[np.float32]
    """The labels or numbers of each image, `[n k]`; empty for masks."""
    shown: NDArray[np.int64]
    """Indices of the images that are shown, the one with the largest loss first: `[m]`."""
    names: tuple[str, ...]
    """File names of these."""
    images: NDArray[np.uint8]
    """These images: `[m h w c]`."""
    masks: NDArray[np.uint8]
    """Predicted and labelled classes of their pixels, `[2 m h w]`; empty for other tasks."""


class AnswerRecorder(Listener):
    """Write a run's answers to its held-out images at each evaluation, the last one over those before."""

    def begin(self, parts: TrainingParts, config: TrainConfig, folder: RunFolder) -> None:
        self.path = folder.held_out

    def epoch(self, row: dict[str, Any], parts: TrainingParts) -> None:
        if "test_loss" not in row or not parts.world.first:
            return
        if parts.test_data.task != "classify":
            write_answers(self.path, outputs_of(parts, row["epoch"]))
            return
        data, answers = parts.test_data, parts.evaluate.answers
        labels, predicted = np.array(data.labels), answers[:, 0].numpy().astype(np.int64)
        confidence = answers[:, 1].numpy()
        wrong = np.flatnonzero(labels != predicted)
        mistakes = wrong[np.argsort(-confidence[wrong], kind="stable")][:MISTAKES]
        images = np.zeros((0, 0, 0, 3), np.uint8)
        if len(mistakes):
            images = thumbnails(parts.test_source.some(mistakes.tolist()), THUMBNAIL)
        counts = Counter() if parts.config.stream else Counter(parts.train_data.labels)
        found = HeldOutAnswers(
            row["epoch"],
            data.class_names,
            np.array([counts[label] for label in range(len(data.class_names))]),
            labels,
            predicted,
            mistakes,
            confidence[mistakes],
            tuple(short_name(data.describe(i)) for i in mistakes.tolist()),
            images,
        )
        write_answers(self.path, found)


def outputs_of(parts: TrainingParts, epoch: int) -> HeldOutOutputs:
    """Collect what the last evaluation gave for held-out images with labels, numbers or masks."""
    data, evaluation = parts.test_data, parts.evaluate
    limit = len(data) if evaluation.masks is None else len(evaluation.masks)
    order = evaluation.losses[:limit].argsort(descending=True, stable=True).tolist()
    shown = order[:SHOWN_WORST] + order[SHOWN_WORST :: max(1, -(-(len(order) - SHOWN_WORST) // SHOWN_OTHERS))]
    pixels = parts.test_source.some(shown)
    masks = np.zeros((2, 0, 0, 0), np.uint8)
    if evaluation.masks is not None:
        pixels, labelled = pixels[:, :-1], reduce_masks(pixels[:, -1])
        masks = torch.stack([evaluation.masks[shown], labelled]).cpu().numpy()
    targets = np.zeros((len(data), 0), np.float32) if data.targets is None else data.targets
    return HeldOutOutputs(
        epoch,
        data.task,
        data.class_names,
        evaluation.answers.numpy().astype(np.float32),
        targets,
        np.array(shown),
        tuple(short_name(data.describe(i)) for i in shown),
        thumbnails(pixels, THUMBNAIL),
        masks,
    )


def write_answers(path: Path, answers: HeldOutAnswers | HeldOutOutputs) -> Path:
    """Write a run's answers to its held-out images as an npz file, atomically."""
    return write_arrays(path, {field.name: np.array(getattr(answers, field.name)) for field in fields(answers)})


def read_answers(path: Path, epoch: int | None) -> HeldOutAnswers | HeldOutOutputs | None:
    """Read a run's answers to its held-out images; None if there are none, of another epoch, or damaged ones."""
    try:
        with np.load(path, allow_pickle=False) as held:
            kind: type[HeldOutAnswers | HeldOutOutputs] = HeldOutOutputs if "task" in held else HeldOutAnswers
            values: dict[str, Any] = {field.name: held[field.name] for field in fields(kind)}
        values = {n: tuple(v.tolist()) if n in ("class_names", "names") else v for n, v in values.items()}
        values |= {name: values[name].item() for name in ("epoch", "task") if name in values}
        found = kind(**values)
    except Exception:  # zip, zlib and NumPy each raise their own errors
        return None
    return found if found.epoch == epoch else None
