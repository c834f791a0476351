"""What `evaluate` returns: `Evaluation` of classes, `TaskEvaluation` of labels, numbers or masks; as text and files."""

import html
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from vitreous.data.image_dataset import NOUNS
from vitreous.data.images import ImageError
from vitreous.predict.class_matching import told_apart
from vitreous.runtime.files import write_arrays, write_json
from vitreous.runtime.wording import FIGURES, figure


@dataclass(repr=False)
class MeasuredModel(ABC):
    """What the results of all tasks have in common: figures that show themselves and are written to a folder."""

    images: int
    class_names: tuple[str, ...]
    """Names of the model's classes, labels or numbers."""
    problems: list[ImageError] = field(default_factory=list, kw_only=True)
    """Errors of unreadable images, which count for nothing else."""
    note: str = field(default="", kw_only=True)
    """Which part of the data was measured, if the model was trained on it; whether class names are read as indices."""

    @abstractmethod
    def summary(self) -> dict[str, Any]:
        """Return the figures of an evaluation's result, rounded, for JSON."""

    @abstractmethod
    def per_class(self) -> Mapping[str, Any]:
        """Return the figures of each class, label or number in an evaluation's result; none without images."""

    @abstractmethod
    def format_classes(self, limit: int = 20) -> str:
        """Format the figures of each class in an evaluation's result, the lowest first; perhaps nothing."""

    def __repr__(self) -> str:
        return "\n".join(filter(None, (format_summary(self.summary()), self.format_classes(), self.note)))

    def _repr_html_(self) -> str:
        shown = ((figure_name(name), format_value(name, value)) for name, value in self.summary().items())
        rows = "".join(f"<tr><th>{name}<td>{html.escape(value)}" for name, value in shown)
        return f"<table>{rows}</table>" + (f"<p>{html.escape(self.note)}</p>" if self.note else "")

    def write(self, folder: str | Path) -> list[Path]:
        """Write an evaluation's result, `result.json` and `per_class.json`, to a folder; `confusion.npz` of classes."""
        folder = Path(folder)
        return [
            write_json(folder / "result.json", self.summary()),
            write_json(folder / "per_class.json", self.per_class()),
        ]


@dataclass(repr=False)
class Evaluation(MeasuredModel):
    """The results of a model on labelled images; `confusion[i, j]` counts images of class i predicted as j."""

    top1: float
    top5: float | None
    """None for five classes or fewer: each is among the first five."""
    loss: float
    calibration_error: float
    """Expected calibration error: the mean gap between confidence and accuracy, over 15 bins."""
    confusion: Tensor
    correct: list[bool]
    """Whether each image's top class is its label, in the dataset's order."""

    @property
    def counts(self) -> dict[str, int]:
        """The number of images of each class that has some, in an evaluation's result."""
        counts, names = self.confusion.sum(dim=1), told_apart(self.class_names)
        return {names[i]: int(counts[i]) for i in counts.nonzero().flatten().tolist()}

    def per_class(self) -> dict[str, float]:
        """Return the accuracy of each class in an evaluation's result; classes without images are left out."""
        counts, names = self.confusion.sum(dim=1), told_apart(self.class_names)
        rates = self.confusion.diagonal() / counts
        return {names[i]: rates[i].item() for i in counts.nonzero().flatten().tolist()}

    @property
    def is_balanced(self) -> bool:
        """Whether all classes in an evaluation's result have as many images; else the largest make most of `top1`."""
        return len(set(self.counts.values())) == 1

    @property
    def balanced_accuracy(self) -> float:
        """The mean of the classes' accuracies in an evaluation's result: each class counts the same."""
        rates = self.per_class().values()
        return sum(rates) / len(rates)

    @property
    def top1_interval(self) -> tuple[float, float]:
        """The 95 % confidence interval of `top1` in an evaluation's result (Wilson's)."""
        return confidence_interval(sum(self.correct), self.images)

    def summary(self) -> dict[str, Any]:
        """Return the figures of an evaluation's result, rounded, for JSON."""
        found = {
            "top1": round(self.top1, 6),
            "top1_interval": [round(end, 6) for end in self.top1_interval],
            "top5": None if self.top5 is None else round(self.top5, 6),
            "balanced_accuracy": None if self.is_balanced else round(self.balanced_accuracy, 6),
            "images": self.images,
            "loss": round(self.loss, 6),
            "calibration_error": round(self.calibration_error, 6),
            "unreadable": len(self.problems),
        }
        return {name: value for name, value in found.items() if value is not None}

    def format_classes(self, limit: int = 20) -> str:
        """Format each class's accuracy in an evaluation's result, the lowest first, if classes differ in size."""
        if self.is_balanced:
            return ""
        rates, counts = self.per_class(), self.counts
        ranked = sorted(rates, key=lambda name: rates[name])
        return _lines({name: f"{rates[name]:7.2%} of {counts[name]:,}" for name in ranked}, limit, "classes")

    def write(self, folder: str | Path) -> list[Path]:
        """Write an evaluation's result to a folder: `result.json`, `per_class.json` and `confusion.npz`."""
        arrays = {"confusion": self.confusion.numpy(), "class_names": np.array(self.class_names)}
        return [*super().write(folder), write_arrays(Path(folder) / "confusion.npz", arrays)]


@dataclass(repr=False)
class TaskEvaluation(MeasuredModel):
    """The results of a model of several labels, numbers or masks.

    >>> TaskEvaluation(20, ("angle",), "regress", {"r2": 0.93, "mae": 4.1}, {"angle": {"r2": 0.93, "mae": 4.1}})
    task               regress
    R²                 0.930
    MAE                4.1
    images             20
    unreadable         0
    """

    task: str
    """multilabel, regress or segment."""
    figures: dict[str, float]
    """Figures over all labels, numbers or classes by name, the one that counts first."""
    each: dict[str, dict[str, float]]
    """The figures of each label, number or class that occurs."""

    def summary(self) -> dict[str, Any]:
        """Return the figures of an evaluation's result, rounded, for JSON."""
        figures = {name: _rounded(value) for name, value in self.figures.items()}
        return {"task": self.task, **figures, "images": self.images, "unreadable": len(self.problems)}

    def per_class(self) -> dict[str, dict[str, float]]:
        """Return from an evaluation's result the figures of each label, number or class that occurs."""
        return {name: {key: _rounded(value) for key, value in own.items()} for name, own in self.each.items()}

    def format_classes(self, limit: int = 20) -> str:
        """Write an evaluation result's figures as text, a line for each label, number or class, the lowest first."""
        if self.task == "regress" and len(self.each) == 1:
            return ""
        first = next(iter(sorted(self.each.values(), key=len)[-1]))  # a number that is equal for all images has no R²
        ranked = sorted(self.each, key=lambda name: self.each[name].get(first, math.inf))
        texts = {
            name: [f"{figure_name(key)} {figure(key, own)}" for key, own in self.each[name].items()] for name in ranked
        }
        return _lines({name: "  ".join(text) for name, text in texts.items()}, limit, NOUNS[self.task])


def _lines(texts: Mapping[str, str], limit: int, nouns: str) -> str:
    """Lay out the text of an evaluation result, a line for each class; of many classes, the first ones."""
    width = max(len(name) for name in list(texts)[:limit])
    lines = [f"  {name:<{width}}  {text}" for name, text in list(texts.items())[:limit]]
    return "\n".join(lines + ([f"  … and {len(texts) - limit} more {nouns}"] if len(texts) > limit else []))


def _rounded(value: float) -> float:
    """Round a figure of an evaluation's result to six decimals, or to six digits if it is smaller.

    >>> _rounded(0.12345678), _rounded(123.45678912), _rounded(1.2345678e-5)
    (0.123457, 123.456789, 1.23457e-05)
    """
    return round(value, 6) if abs(value) >= 0.1 else float(f"{value:.6g}")


def confidence_interval(hits: int, count: int) -> tuple[float, float]:
    """Return the 95 % confidence interval of a share in an evaluation's result, by Wilson's formula.

    >>> [round(end, 3) for end in confidence_interval(9, 10)]
    [0.596, 0.982]
    """
    from scipy.stats import binomtest

    found = binomtest(hits, count).proportion_ci(0.95, method="wilson")
    return float(found.low), float(found.high)


def figure_name(name: str) -> str:
    """Return the name of a figure in an evaluation's result in words."""
    return FIGURES[name][0] if name in FIGURES else name.replace("_", " ")


def format_value(name: str, value: Any) -> str:
    """Format a figure of an evaluation's result: shares in percent, counts with commas.

    >>> format_value("top1", 0.7244), format_value("top1_interval", (0.68, 0.762)), format_value("images", 50000)
    ('72.44%', '68.0% to 76.2% (95 % confidence)', '50,000')
    >>> format_value("iou", {"cat": 0.9, "dog": 0.5}), format_value("blocks", [2, 5])
    ('dog 50.00%, cat 90.00%', '2 5')
    """
    if name == "top1_interval":
        return f"{value[0]:.1%} to {value[1]:.1%} (95 % confidence)"
    if isinstance(value, Mapping):  # of each class, the lowest first
        ranked = [f"{label} {figure(name, own)}" for label, own in sorted(value.items(), key=lambda item: item[1])]
        return ", ".join(ranked[:10] + ([f"… and {len(ranked) - 10} more"] if len(ranked) > 10 else []))
    if isinstance(value, list):
        return " ".join(map(str, value))
    if name in FIGURES:
        return figure(name, value)
    if name in ("top1", "top5", "balanced_accuracy", "calibration_error"):
        return f"{value:.2%}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def format_summary(summary: dict[str, Any]) -> str:
    """Format the figures of an evaluation's result, one a line."""
    return "\n".join(f"{figure_name(name):<18} {format_value(name, value)}" for name, value in summary.items())
