"""Many small images composed into one array: crisp, and quick where an axes for each would take minutes."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from vitreous.figures.scale import SHORTEST_BAR, Scale
from vitreous.figures.shapes import Bytes
from vitreous.figures.style import DPI, TALLEST, WIDTH, frame, new_figure
from vitreous.figures.text import SMALL, text_width
from vitreous.figures.ticks import fit_both, fit_rows

_SMALLEST = 0.13  # inches: a row that can still be labelled


def mosaic(tiles: Bytes, gap: int) -> Bytes:
    """Tiles `[n m h w c]` side by side with `gap` pale pixels between them: `[n·h + … m·w + … c]`.

    >>> mosaic(np.zeros((2, 3, 4, 4, 3), np.uint8), gap=1).shape
    (9, 14, 3)
    """
    n, m, height, width, channels = tiles.shape
    sheet = np.full((n, height + gap, m, width + gap, channels), 225, np.uint8)
    sheet[:, :height, :, :width] = tiles.transpose(0, 2, 1, 3, 4)
    whole = sheet.reshape(n * (height + gap), m * (width + gap), channels)
    return whole[: whole.shape[0] - gap, : whole.shape[1] - gap]


def draw_tiles(
    tiles: Bytes,
    row_labels: Sequence[str],
    column_labels: Sequence[str],
    *,
    row_title: str,
    column_title: str,
    title: str,
    scale: Scale,
    largest: float = 1.1,
) -> Figure:
    """Painted tiles `[n m h w 4]` in rows and columns with labels, as large as the card allows up to `largest` inches.

    The axes count in pixels of the mosaic, and at the usual resolution each of those is one pixel of the figure.
    """
    n, m, height, width, _ = tiles.shape
    beside = fit_rows(row_labels, 1.0, row_title).room
    least = max(text_width(column_title, SMALL) / m, text_width(row_title, SMALL) / n * width / height)
    pitch = min((WIDTH - beside - scale.room) / m, max(largest, least))  # inches from one tile to the next
    pitch = min(pitch, max(TALLEST / n, _SMALLEST) * width / height)
    between = pitch * min(height / width, 1) * DPI
    narrow = max(round(0.04 * between), 3)
    zoom = max(int(pitch * DPI - narrow) // width, 1)  # whole pixels for a cell, so that all cells are equal
    gap = int(np.clip(pitch * DPI - zoom * width, narrow, max(0.1 * between, narrow)))
    image = mosaic(tiles.repeat(zoom, axis=2).repeat(zoom, axis=3), gap)
    down, across = (side * min(1 / DPI, pitch * m / image.shape[1]) for side in image.shape[:2])
    rows, columns = fit_both(row_labels, column_labels, (across / m, down / n), row_title, column_title)
    with new_figure(beside + across + scale.room, max(down + columns.room, SHORTEST_BAR), title) as card:
        axes = card.place(beside, 0, across, down)
        axes.imshow(image, aspect="auto")
        frame(axes)
        axes.spines[:].set_visible(False)
        rows.write_rows(axes, [i * (zoom * height + gap) + (zoom * height - 1) / 2 for i in range(n)], row_title)
        columns.write_columns(axes, [i * (zoom * width + gap) + (zoom * width - 1) / 2 for i in range(m)], column_title)
        scale.bar_beside(axes)
    return card
