"""A run's metrics as charts of lines: loss, accuracy and step size by epoch, with how to read each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vitreous.pages.line_chart import Line
from vitreous.training.config import TrainConfig

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Curves:
    """Lines that belong on one chart, and the sentences below them."""

    name: str
    title: str
    lines: list[Line]
    y_label: str
    read: str
    """How to read it."""
    beware: str
    """What it does not show."""
    unit: str = ""


def curves(rows: Sequence[Row], config: TrainConfig) -> list[Curves]:
    """Loss, accuracy and step size by epoch."""
    if not rows:
        return []
    return [
        Curves(
            "loss",
            "Loss",
            _lines(rows, training="loss", held_out="test_loss"),
            "loss",
            "How far the model's answers are from the right ones: lower is better. Where the held-out line turns up "
            "while the other goes on down, the model begins to learn by heart.",
            _training_is_harder(config) + "Small steps in the loss may be large ones in accuracy, and the other way.",
        ),
        Curves(
            "accuracy",
            "Accuracy",
            _lines(rows, 100, training="top1", held_out="test_top1"),
            "right first guesses",
            "How many images get their own class as first guess. The gap between the lines is what the model knows "
            "of its training images alone.",
            _training_accuracy(config) + "One number for all classes: a rare class may be much worse.",
            " %",
        ),
        Curves(
            "learning-rate",
            "Step size",
            _lines(rows, learning_rate="learning_rate"),
            "learning rate",
            "How far an update may move the weights, at the end of each epoch" + _plan(config),
            "The plan, not the movement: how far weights really move depends on the optimiser and the gradients."
            + (" Earlier blocks move less than this." if config.layer_decay < 1 else ""),
        ),
    ]


def column(rows: Sequence[Row], name: str, factor: float = 1.0) -> tuple[list[float], list[float]]:
    """Epochs that have a number of this name, and the numbers.

    >>> column([{"epoch": 1, "loss": 2.0}, {"epoch": 2, "loss": 1.0, "top1": 0.5}], "top1", 100)
    ([2], [50.0])
    """
    known = [row for row in rows if isinstance(row.get(name), (int, float))]
    return [row["epoch"] for row in known], [factor * row[name] for row in known]


def _lines(rows: Sequence[Row], factor: float = 1.0, **names: str) -> list[Line]:
    found = [Line(label.replace("_", " "), *column(rows, name, factor)) for label, name in names.items()]
    return [line for line in found if line.x]


def _plan(config: TrainConfig) -> str:
    """How the step size goes, as the end of a sentence.

    >>> _plan(TrainConfig(epochs=9, warmup=1))
    ': it grows for 1 epoch, then follows half a cosine.'
    >>> _plan(TrainConfig(epochs=2, warmup=5))
    ': it grows all the time, for the run is no longer than its warm-up.'
    """
    if not config.warmup:
        return "."
    if config.warmup >= config.epochs:
        return ": it grows all the time, for the run is no longer than its warm-up."
    epochs = f"{config.warmup:g} epoch{'s' * (config.warmup != 1)}"
    return f": it grows for {epochs}, then follows half a cosine."


def _training_is_harder(config: TrainConfig) -> str:
    mixed = config.mixup or config.cutmix
    if mixed or config.label_smoothing or config.augment != "none" or config.dropout or config.stochastic_depth:
        why = "mixed" if mixed else "changed"
        return f"Training images are {why}, and so harder than held-out ones: their line may well lie above. "
    return "The training line is a mean over the epoch, while the weights still moved. "


def _training_accuracy(config: TrainConfig) -> str:
    if config.mixup or config.cutmix:
        return "Of mixed training images, the larger share counts as right: the line may stay below the other. "
    return "The training line is a mean over the epoch, while the weights still moved. "
