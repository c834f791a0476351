"""One matrix of crisp cells with labelled rows and columns and a colour bar: the frame of many figures here."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from matplotlib.axes import Axes

from vitreous.figures.scale import SHORTEST_BAR, Scale
from vitreous.figures.shapes import Floats
from vitreous.figures.style import DPI, WIDTH, Card, frame, new_figure
from vitreous.figures.text import SMALL, text_width
from vitreous.figures.ticks import fit_both, fit_rows


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
) -> Iterator[tuple[Card, Axes]]:
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
