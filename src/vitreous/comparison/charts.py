"""The figures of a comparison: curves with a band over seeds, and what separates two models class by class."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from matplotlib.figure import Figure

from vitreous.figures.bars import draw_ranking
from vitreous.figures.curves import draw_lines

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


def draw_classes(names: Sequence[str], one: Sequence[float | None], other: Sequence[float | None]) -> Figure:
    """The accuracy of one model less the other's, in points, for each class; the largest differences of many."""
    gaps = [(100 * (a - b), name) for name, a, b in zip(names, one, other, strict=True) if None not in (a, b)]  # type: ignore[operator]
    gaps.sort(key=lambda pair: -pair[0])
    if len(gaps) > MOST:
        gaps = gaps[: MOST // 2] + gaps[-MOST // 2 :]
    return draw_ranking([name for _, name in gaps], [gap for gap, _ in gaps], label="points of accuracy", decimals=1)
