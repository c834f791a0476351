"""Small pictures of one moment, to stand beside those of other moments: nothing written in them, and no margin.

What has words of its own is elsewhere: `curves.draw_distance_panel`; and pictures under heat, `maps.draw_overlays`.
"""

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from vitreous.figures.position import COSINE
from vitreous.figures.shapes import Bytes, array_of, colours_of
from vitreous.figures.style import new_sheet, style
from vitreous.figures.tiles import mosaic

_WIDE = 400  # pixels that a panel has, or a little less
_LINE, _GREY = 2, 190  # pixels around a tile, and their shade, which shows on white and on black


def draw_positions_panel(similarity: ArrayLike) -> Figure:
    """Cosine similarity of some places with all, `[a b rows columns]`: a tile for each place, in its place.

    >>> figure = draw_positions_panel(np.ones((2, 3, 4, 4)))
    >>> len(figure.axes[0].images)
    1
    """
    similarity = array_of("similarity", similarity, "a b rows columns")
    return _bare(_sheet(COSINE.paint(similarity)))


def draw_filters_panel(filters: ArrayLike) -> Figure:
    """Filters `[n height width 3]`, or grey `[n height width 1]`, in 0..1 or as uint8, in reading order.

    >>> figure = draw_filters_panel(np.random.rand(28, 4, 4, 3))
    >>> len(figure.axes[0].images)
    1
    """
    colours = 1 if np.shape(filters)[-1:] == (1,) else 3
    filters = colours_of("filters", filters, f"n height width {colours}")
    count, height, width, _ = filters.shape
    columns = fill_columns(count)
    tiles = np.zeros((-(-count // columns) * columns, height, width, 4), np.uint8)  # clear, where the last row ends
    tiles[:count, ..., :3], tiles[:count, ..., 3] = np.round(255 * filters), 255
    return _bare(_sheet(tiles.reshape(-1, columns, height, width, 4)))


def fill_columns(count: int) -> int:
    """How many columns suit `count` tiles: rather wide than high, and the last row full where that can be.

    >>> fill_columns(28), fill_columns(4), fill_columns(12), fill_columns(5)
    (7, 2, 4, 3)
    """
    least = int(np.ceil(count**0.5))
    return min(range(least, 2 * least), key=lambda n: (-count % n > 1, abs(n - (count * 7 / 4) ** 0.5)), default=1)


def _sheet(tiles: Bytes) -> Bytes:
    """Tiles `[n m h w 4]` as one picture of about `_WIDE` pixels: a line around each, and clear in between."""
    _, m, height, width, _ = tiles.shape
    zoom = max(_WIDE // (m * (width + 1)), 1)
    gap = max(zoom * min(height, width) // 10, 2)
    large = tiles.repeat(zoom, axis=2).repeat(zoom, axis=3)
    around = np.pad(large, ((0, 0), (0, 0), (_LINE, _LINE), (_LINE, _LINE), (0, 0)), constant_values=_GREY)
    around[..., 3] = 255
    around[~large[..., 3].any(axis=(2, 3))] = 0  # no line around nothing
    return mosaic(around, gap, shade=0)


def _bare(image: Bytes) -> Figure:
    """A picture `[height width 4]` pixel by pixel, and nothing else."""
    height, width = image.shape[:2]
    with style():
        figure = new_sheet(width, height)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.imshow(image, interpolation="nearest", aspect="auto")
        axes.set_axis_off()
    return figure
