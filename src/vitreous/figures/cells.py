"""One matrix of crisp cells with labelled rows and columns and a colour bar: the frame of many figures here."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
from matplotlib.axes import Axes

from vitreous.figures.scale import SHORTEST_BAR, Scale
from vitreous.figures.shapes import Floats
from vitreous.figures.style import DPI, MUTED, WIDTH, Sheet, frame, new_figure
from vitreous.figures.text import SMALL, TINY, elide, line_height, text_width


@contextmanager
def new_cells(
    values: Floats,
    scale: Scale,
    cell: tuple[float, float],
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    row_title: str = "",
    column_title: str = "",
    title: str = "",
) -> Iterator[tuple[Sheet, Axes]]:
    """A card with `values` `[rows columns]` in cells of `cell` (width, height) inches; row 0 is on top.

    The axes count in cells: the middle of row 2, column 5 is at x = 5, y = 2.
    """
    room = fit_rows(rows, 1.0, row_title).room + scale.room
    wide = max(cell[0], text_width(column_title, SMALL) / len(columns))  # the axes' names fit along them
    high = max(cell[1], text_width(row_title, SMALL) / len(rows))
    if cell[0] == cell[1]:
        wide = high = max(wide, high)
    across, down = _snap(wide, (WIDTH - room) / len(columns)), _snap(high)
    width, height = across * len(columns), down * len(rows)
    beside, below = fit_both(rows, columns, (across, down), row_title, column_title)
    body = max(height + below.room, SHORTEST_BAR)
    with new_figure(beside.room + width + scale.room, body, title) as card:
        axes = card.place(beside.room, 0, width, height)
        axes.imshow(values, cmap=scale.colours, norm=scale.norm, aspect="auto")
        frame(axes)
        beside.write_rows(axes, range(len(rows)), row_title)
        below.write_columns(axes, range(len(columns)), column_title)
        scale.bar_beside(axes)
        yield card, axes


def _snap(size: float, most: float = np.inf) -> float:
    """Whole pixels for a cell make all cells equal; cells of a pixel or three are smoothed anyway."""
    return min(round(size * DPI), np.floor(most * DPI)) / DPI if min(size, most) * DPI >= 4 else min(size, most)


_LONGEST = 1.3  # inches
_GAP = 0.05  # inches between the cells and their labels


@dataclass(frozen=True)
class Labels:
    """What is written beside the cells: every `every`-th of `texts`, perhaps turned; `room` inches deep."""

    texts: list[str]
    every: int
    turned: bool
    room: float

    def write_rows(self, axes: Axes, centres: Sequence[float], title: str = "") -> None:
        axes.set_yticks(list(centres)[:: self.every], self.texts[:: self.every])
        axes.tick_params(axis="y", length=0, pad=_GAP * 72, labelsize=TINY, labelcolor=MUTED)
        if title:
            axes.set_ylabel(title, size=SMALL, color=MUTED, labelpad=3)

    def write_columns(self, axes: Axes, centres: Sequence[float], title: str = "") -> None:
        axes.set_xticks(list(centres)[:: self.every], self.texts[:: self.every], rotation=90 if self.turned else 0)
        axes.tick_params(axis="x", length=0, pad=_GAP * 72, labelsize=TINY, labelcolor=MUTED)
        if title:
            axes.set_xlabel(title, size=SMALL, color=MUTED, labelpad=3)


def fit_rows(labels: Sequence[str], pitch: float, title: str = "") -> Labels:
    """Labels to the left of rows that are `pitch` inches apart."""
    texts = [elide(label, _LONGEST, TINY) for label in labels]
    widest = max(text_width(text, TINY) for text in texts)
    room = _GAP + widest + (line_height(SMALL) + 0.05 if title else 0)
    return Labels(texts, _every(line_height(TINY), pitch), False, room)


def fit_columns(labels: Sequence[str], pitch: float, title: str = "") -> Labels:
    """Labels under columns that are `pitch` inches apart; words that do not fit are turned, numbers are thinned."""
    texts = [elide(label, _LONGEST, TINY) for label in labels]
    widest = max(text_width(text, TINY) for text in texts) + 0.08
    turned = widest > pitch and not all(text.isdigit() for text in texts)
    depth = widest - 0.08 if turned else line_height(TINY)
    room = _GAP + depth + (line_height(SMALL) + 0.05 if title else 0)
    return Labels(texts, _every(line_height(TINY) if turned else widest, pitch), turned, room)


def fit_both(
    rows: Sequence[str], columns: Sequence[str], pitch: tuple[float, float], row_title: str = "", column_title: str = ""
) -> tuple[Labels, Labels]:
    """Both, for cells of `pitch` (width, height) inches; the same steps on both sides of a square."""
    beside, below = fit_rows(rows, pitch[1], row_title), fit_columns(columns, pitch[0], column_title)
    every = max(beside.every, below.every)
    return (replace(beside, every=every), replace(below, every=every)) if len(rows) == len(columns) else (beside, below)


def _every(needed: float, pitch: float) -> int:
    return next((step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500) if step * pitch >= needed), 1000)
