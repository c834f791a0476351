"""What is drawn of a comparison: curves with a band over seeds, and what separates two models class by class."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from vitreous.pages.line_chart import Line

MOST = 24
"""Classes that are shown of more: half of them where one model is most ahead, half where the other is."""


def curve_lines(curves: Mapping[str, Mapping[str, Any]], over: Literal["epochs", "seconds"]) -> list[Line]:
    """Accuracy on held-out images by model: the mean over seeds as a line, from worst to best seed as a band.

    >>> curve_lines({"vit": {"epochs": [1], "top1": [[0.5], [0.7]]}}, "epochs")
    [Line(label='vit', x=[1], y=[60.0], low=[50.0], high=[70.0])]
    """
    lines = []
    for name, curve in curves.items():
        right = 100 * np.asarray(curve["top1"], dtype=float)  # [s n]
        several = len(right) > 1
        low, high = (right.min(axis=0).tolist(), right.max(axis=0).tolist()) if several else (None, None)
        lines.append(Line(name, list(curve[over]), right.mean(axis=0).tolist(), low, high))
    return lines


def class_gaps(
    names: Sequence[str], one: Sequence[float | None], other: Sequence[float | None]
) -> list[tuple[str, float]]:
    """The accuracy of one model less the other's, in points, by class; of many classes those that differ most.

    >>> class_gaps(["cat", "dog", "owl"], [0.5, 0.9, None], [0.75, 0.8, None])
    [('dog', 10.0), ('cat', -25.0)]
    """
    pairs = zip(names, one, other, strict=True)
    gaps = [(name, round(100 * (a - b), 6)) for name, a, b in pairs if a is not None and b is not None]
    gaps.sort(key=lambda pair: -pair[1])
    return gaps if len(gaps) <= MOST else gaps[: MOST // 2] + gaps[-MOST // 2 :]


def colour(number: int) -> str:
    """The colour of a model on the whole page, by its place in the table: those of `page.css`."""
    return f"var(--line-{number % 8})"
