"""Draw many small images side by side: tiles in rows and columns, position similarity, filters."""

from collections.abc import Sequence

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import ArrayLike

from vitreous.figures.checks import Bytes, array_of, check_position, colours_of
from vitreous.figures.colour_scale import SHORTEST_BAR, Scale
from vitreous.figures.matrix import fit_both, fit_rows, new_cells
from vitreous.figures.style import (
    DPI,
    FAINT,
    INK,
    MISSING,
    MUTED,
    SMALL,
    TALLEST,
    TINY,
    WIDTH,
    frame,
    line_height,
    new_figure,
    outline,
    text_width,
)
from vitreous.runtime.wording import percent

_SMALLEST = 0.13  # inches: a row that can still be labelled


def mosaic(tiles: Bytes, gap: int) -> Bytes:
    """Put tiles `[n m h w c]` side by side with `gap` pale pixels between them: `[n·h + … m·w + … c]`.

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
    scale: Scale,
    row_labels: Sequence[str],
    column_labels: Sequence[str],
    axis_names: tuple[str, str],
    title: str,
    *,
    largest: float = 1.1,
) -> Figure:
    """Draw painted tiles `[n m h w 4]` in rows and columns with labels, as large as fits, up to `largest` inches.

    The axes count in pixels of the mosaic, and at the usual resolution each of those is one pixel of the figure.
    """
    (n, m, height, width, _), (row_title, column_title) = tiles.shape, axis_names
    beside = fit_rows(row_labels, 1.0, row_title).room
    smallest = max(text_width(column_title, SMALL) / m, text_width(row_title, SMALL) / n * width / height)
    pitch = min((WIDTH - beside - scale.room) / m, max(largest, smallest))  # inches from one tile to the next
    pitch = min(pitch, max(TALLEST / n, _SMALLEST) * width / height)
    between = pitch * min(height / width, 1) * DPI
    narrow = max(round(0.04 * between), 3)
    zoom = max(int(pitch * DPI - narrow) // width, 1)  # whole pixels for a cell, so that all cells are equal
    gap = int(np.clip(pitch * DPI - zoom * width, narrow, max(0.1 * between, narrow)))
    image = mosaic(tiles.repeat(zoom, axis=2).repeat(zoom, axis=3), gap)
    down, across = (side * min(1 / DPI, pitch * m / image.shape[1]) for side in image.shape[:2])
    rows, columns = fit_both(row_labels, column_labels, (across / m, down / n), row_title, column_title)
    with new_figure(beside + across + scale.room, max(down + columns.room, SHORTEST_BAR), title) as card:
        axes = card.axes_at(beside, 0, across, down)
        axes.imshow(image, aspect="auto")
        frame(axes)
        axes.spines[:].set_visible(False)
        rows.write(axes.yaxis, [i * (zoom * height + gap) + (zoom * height - 1) / 2 for i in range(n)], row_title)
        columns.write(axes.xaxis, [i * (zoom * width + gap) + (zoom * width - 1) / 2 for i in range(m)], column_title)
        scale.bar_beside(axes)
    return card


COSINE = Scale(-1.0, 1.0, "cosine similarity", diverging=True)
"""The scale of every drawing of positions."""


def draw_similarity_tiles(similarity: ArrayLike, *, title: str = "") -> Figure:
    """Draw each position's cosine similarity with all as a tile, laid out as the grid: `[rows columns rows columns]`.

    >>> import numpy as np
    >>> len(draw_similarity_tiles(np.ones((3, 4, 3, 4))).axes)
    2
    """
    similarity = array_of("similarity", similarity, "rows columns rows columns")
    rows, columns = similarity.shape[:2]
    names = [str(number) for number in range(max(rows, columns))]
    tiles, axis_names = COSINE.paint(similarity), ("patch row", "patch column")
    return draw_tiles(tiles, COSINE, names[:rows], names[:columns], axis_names, title, largest=0.6)


def draw_similarity_one(similarity: ArrayLike, position: tuple[int, int], *, title: str = "") -> Figure:
    """Draw one position's cosine similarity with all, `[rows columns]`, enlarged, the position itself outlined.

    >>> import numpy as np
    >>> len(draw_similarity_one(np.ones((3, 4)), position=(0, 3)).axes)
    2
    """
    similarity = array_of("similarity", similarity, "rows columns")
    check_position("position", position, similarity.shape)
    rows, columns = similarity.shape
    cell = min(4.4 / max(rows, columns), 0.5)
    names = [str(number) for number in range(max(rows, columns))]
    axis_names = ("patch row", "patch column")
    with new_cells(similarity, COSINE, (cell, cell), names[:rows], names[:columns], axis_names, title) as (card, axes):
        outline(axes, position[1] - 0.5, position[0] - 0.5, 1, 1)
    return card


def draw_filters(filters: ArrayLike, explained: Sequence[float] | None = None, *, title: str = "") -> Figure:
    """Draw filters `[n height width 3]`, or grey `[n height width 1]`, scaled to 0..1, numbered in reading order.

    `explained` is the share of the variance, 0 to 1, that each component explains.

    >>> figure = draw_filters(np.random.rand(28, 16, 16, 3))  # 4 rows of 7, as in the paper
    >>> len(figure.axes[0].images)
    28
    """
    got = np.shape(filters)
    filters = colours_of("filters", filters, f"n height width {1 if got[-1:] == (1,) else 3}")
    filters = np.where(np.isnan(filters).any(axis=-1, keepdims=True), to_rgb(MISSING), filters)  # [n h w 3]
    count, height, width, _ = filters.shape
    shares = [""] * count
    if explained is not None:
        given = array_of("explained", explained, "n")
        if len(given) != count:
            raise ValueError(f"explained must hold {count} shares, one for each filter, got {len(given)}")
        shares = [percent(share) for share in given]
    columns = min(max(round((count * 7 / 4) ** 0.5), 1), count)
    rows = -(-count // columns)
    gap = round(min(0.09, 0.15 * WIDTH / columns) * DPI) / DPI  # inches
    across = min((WIDTH + gap) / columns - gap, 1.2)
    across = max(int(across * DPI) // width, 1) * width / DPI  # whole pixels for each of the filter's
    down = across * height / width
    room = text_width(str(count), TINY)
    band = round(line_height(TINY) * DPI + 4) / DPI if room <= across else 0.0  # for the numbers
    paired = max(map(text_width, shares, [TINY] * count)) + room + 0.06 <= across
    body = columns * (across + gap) - gap, rows * (band + down + gap) - gap
    with new_figure(*body, title) as card:
        axes = card.axes_at(0, 0, *body)  # counts in inches
        for number, (image, share) in enumerate(zip(filters, shares, strict=True)):
            row, column = divmod(number, columns)
            left, top = column * (across + gap), row * (band + down + gap) + band
            axes.imshow(image, extent=(left, left + across, top + down, top), interpolation="nearest", aspect="auto")
            axes.add_patch(Rectangle((left, top), across, down, fill=False, edgecolor=FAINT, linewidth=0.6))
            if band:
                axes.text(left, top - 0.035, str(number), size=TINY, color=INK)
            if paired:
                axes.text(left + across, top - 0.035, share, size=TINY, color=MUTED, ha="right")
        axes.set(xlim=(0, body[0]), ylim=(body[1], 0))
        axes.set_axis_off()
    return card
