"""What is drawn of a comparison: curves with a band over seeds, and what separates two models class by class."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from matplotlib.figure import Figure

from vitreous.figures.curves import draw_lines
from vitreous.figures.style import PALETTE

HALF = 4.4
"""Inches of a figure that has half the page: its words stay as large as those of others."""
MOST = 24
"""Classes that are shown of more: half of them where one model is most ahead, half where the other is."""


def draw_curves(curves: Mapping[str, Mapping[str, Any]], over: Literal["epochs", "seconds"]) -> Figure:
    """Accuracy on held-out pictures by model: the mean over seeds as a line, from worst to best seed as a band."""
    lines, bands = {}, []
    for name, curve in curves.items():
        x = np.asarray(curve[over], dtype=float)
        y = 100 * np.asarray(curve["top1"], dtype=float)  # [s n]
        lines[name] = (x, y.mean(axis=0))
        bands.append((x, y.min(axis=0), y.max(axis=0)))
    low = min(float(band[1].min()) for band in bands)
    high = max(float(band[2].max()) for band in bands)
    room = 0.04 * (high - low) or 1.0
    figure = draw_lines(
        lines,
        xlabel="epochs" if over == "epochs" else "seconds of training",
        ylabel="accuracy (%)",
        y_limits=(low - room, high + room),
        width=HALF,
    )
    axes = figure.axes[0]
    for line, (x, lowest, highest) in zip(list(axes.lines), bands, strict=True):
        axes.fill_between(x, lowest, highest, color=line.get_color(), alpha=0.16, linewidth=0)
    return figure


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
    """The colour of a model in every figure, by its place in the table."""
    return PALETTE[number % len(PALETTE)]
