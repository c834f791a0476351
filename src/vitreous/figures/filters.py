"""The patch embedding's filters, or their principal components (the paper's figure 7, left)."""

from collections.abc import Sequence

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import ArrayLike

from vitreous.figures.shapes import array_of, colours_of
from vitreous.figures.style import DPI, FAINT, INK, MISSING, MUTED, WIDTH, new_figure
from vitreous.figures.text import TINY, line_height, percent, text_width


def draw_filters(
    filters: ArrayLike,
    explained: Sequence[float] | None = None,
    *,
    columns: int | None = None,
    title: str = "",
) -> Figure:
    """Filters `[n height width 3]`, or grey `[n height width 1]`, scaled to 0..1, numbered from 1 in reading order.

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
    if columns is not None and columns < 1:
        raise ValueError(f"columns must be at least 1, got {columns}")
    columns = min(columns or max(round((count * 7 / 4) ** 0.5), 1), count)
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
        axes = card.place(0, 0, *body)  # counts in inches
        for number, (image, share) in enumerate(zip(filters, shares, strict=True)):
            row, column = divmod(number, columns)
            left, top = column * (across + gap), row * (band + down + gap) + band
            axes.imshow(image, extent=(left, left + across, top + down, top), interpolation="nearest", aspect="auto")
            axes.add_patch(Rectangle((left, top), across, down, fill=False, edgecolor=FAINT, linewidth=0.6))
            if band:
                axes.text(left, top - 0.035, str(number + 1), size=TINY, color=INK)
            if paired:
                axes.text(left + across, top - 0.035, share, size=TINY, color=MUTED, ha="right")
        axes.set(xlim=(0, body[0]), ylim=(body[1], 0))
        axes.set_axis_off()
    return card
