"""`HeldOutAnswers`: a run's answers to its held-out images, with confusion matrix and worst mistakes.

`AnswerRecorder` listens to a run and writes `held_out.npz` after each evaluation; `read_answers` reads it.

Shapes:  n held-out images · m mistakes
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vitreous.runtime.files import short_name, write_atomic
from vitreous.training.listeners import Listener
from vitreous.training.snapshots import thumbnails

if TYPE_CHECKING:
    from vitreous.training.config import TrainConfig
    from vitreous.training.run_folder import RunFolder
    from vitreous.training.setup import TrainingParts

MISTAKES = 12
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
        """Count the images of each class by the class they were given: `[label predicted]`."""
        size = len(self.class_names)
        return np.bincount(self.labels * size + self.predicted, minlength=size * size).reshape(size, size)

    def confusions(self) -> list[tuple[int, int, int]]:
        """List pairs of different classes as (label, predicted, images), the most frequent first."""
        wrong = self.labels != self.predicted
        pairs = Counter(zip(self.labels[wrong].tolist(), self.predicted[wrong].tolist(), strict=True))
        return [(label, guess, count) for (label, guess), count in pairs.most_common()]


class AnswerRecorder(Listener):
    """Write a run's answers to its held-out images at each evaluation, the last one over those before."""

    def begin(self, parts: TrainingParts, config: TrainConfig, folder: RunFolder) -> None:
        self.path = folder.held_out

    def epoch(self, row: dict[str, Any], parts: TrainingParts) -> None:
        if "test_top1" not in row or not parts.world.first:
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


def write_answers(path: Path, answers: HeldOutAnswers) -> Path:
    """Write a run's answers to its held-out images as an npz file, atomically."""
    arrays: dict[str, Any] = {field.name: np.array(getattr(answers, field.name)) for field in fields(answers)}

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            np.savez_compressed(file, **arrays)

    return write_atomic(path, write)


def read_answers(path: Path, epoch: int | None) -> HeldOutAnswers | None:
    """Read a run's answers to its held-out images; None if there are none, of another epoch, or damaged ones."""
    try:
        with np.load(path, allow_pickle=False) as held:
            values: dict[str, Any] = {field.name: held[field.name] for field in fields(HeldOutAnswers)}
        values = {n: tuple(v.tolist()) if n in ("class_names", "names") else v for n, v in values.items()}
        found = partial(HeldOutAnswers, **values)(epoch=int(values["epoch"]))
    except Exception:  # zip, zlib and NumPy each raise their own errors
        return None
    return found if found.epoch == epoch else None
