"""Draw matrices of crisp cells with labelled rows and columns and a colour bar: attention, heads of blocks, similarity.

Attention of every token to every token, a number for every head of every block, blocks against blocks.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from vitreous.figures.checks import Floats, array_of, labels_of
from vitreous.figures.colour_scale import SHORTEST_BAR, Scale, scale_of
from vitreous.figures.selection import MatrixScale
from vitreous.figures.style import (
    DPI,
    INK,
    MUTED,
    PAPER,
    SMALL,
    TALLEST,
    TINY,
    WIDTH,
    Sheet,
    elide,
    frame,
    line_height,
    new_figure,
    text_width,
)

SCALES = {
    "raw": "attention weight",
    "log": "log of attention weight",
    "layer-norm": "attention weight, layer-normalised",
}
"""How a matrix was transformed before it came here → what its colour bar says."""


def draw_matrix(matrix: ArrayLike, *, prefix: int = 1, scale: MatrixScale = "raw", title: str = "") -> Figure:
    """Draw an attention matrix `[tokens tokens]`: row q is the attention of query token q.

    A thin line parts the first `prefix` tokens (class, registers) from the patches. `scale` only names what was done to
    the values.

    >>> len(draw_matrix(np.full((5, 5), 0.2), prefix=1, title="Block 0, head 0").axes)
    2
    """
    matrix = array_of("matrix", matrix, "tokens tokens")
    tokens = len(matrix)
    if scale not in SCALES:
        raise ValueError(f"scale must be one of {', '.join(SCALES)}, got {scale!r}")
    if not 0 <= prefix <= tokens:
        raise ValueError(f"prefix must be a number of tokens from 0 to {tokens}, got {prefix}")
    names = [str(token) for token in range(tokens)]
    cell = min(4.8 / tokens, 0.6)
    colours, axis_names = scale_of(matrix, SCALES[scale]), ("query token", "key token")
    with new_cells(matrix, colours, (cell, cell), names, names, axis_names, title) as (card, axes):
        if 0 < prefix < tokens:
            axes.axhline(prefix - 0.5, color=PAPER, linewidth=0.7)
            axes.axvline(prefix - 0.5, color=PAPER, linewidth=0.7)
    return card


def draw_blocks_heads(values: ArrayLike, *, title: str = "", label: str = "", diverging: bool = False) -> Figure:
    """Draw a number for each head of each block `[blocks heads]`, the first block on top; written out where it fits.

    >>> figure = draw_blocks_heads([[0.1, 0.2], [0.3, 0.4]], label="importance")
    >>> [text.get_text() for text in figure.axes[0].texts]
    ['0.10', '0.20', '0.30', '0.40']
    """
    values = array_of("values", values, "blocks heads")
    blocks, heads = values.shape
    scale = scale_of(values, label, diverging)
    cell = 0.46, min(max(TALLEST / blocks, 0.12), 0.3)
    names = [str(number) for number in range(max(blocks, heads))]
    texts = _fixed(values)
    widest = max(text_width(text, TINY) for text in texts)
    with new_cells(values, scale, cell, names[:blocks], names[:heads], ("block", "head"), title) as (card, axes):
        axes.hlines(np.arange(1, blocks) - 0.5, -0.5, heads - 0.5, color=PAPER, linewidth=0.8)
        axes.vlines(np.arange(1, heads) - 0.5, -0.5, blocks - 0.5, color=PAPER, linewidth=0.8)
        room = 0.9 * axes.get_position().width * card.get_size_inches()[0] / heads  # inches in a cell
        if widest <= room and cell[1] > 0.15:
            shades = scale.paint(values).reshape(-1, 4) @ np.array([0.299, 0.587, 0.114, 0]) / 255
            for number, (text, shade) in enumerate(zip(texts, shades, strict=True)):
                row, column = divmod(number, heads)
                colour = INK if shade > 0.5 else PAPER
                axes.text(column, row, text, size=TINY, color=colour, ha="center", va="center_baseline")
    return card


def draw_similarity(values: ArrayLike, labels: Sequence[str], *, title: str = "") -> Figure:
    """Draw how alike n things are `[n n]`, such as blocks' features by centred kernel alignment; 0 to 1 by default.

    >>> figure = draw_similarity(np.eye(3), ["embedding", "block 0", "block 1"])
    >>> [text.get_text() for text in figure.axes[0].get_yticklabels()]
    ['embedding', 'block 0', 'block 1']
    """
    values = array_of("values", values, "n n")
    labels = labels_of("labels", labels, len(values))
    usual = np.nanmin(values, initial=0) >= 0 and np.nanmax(values, initial=1) <= 1
    scale = scale_of(values, "similarity", limits=(0.0, 1.0) if usual else None)
    cell = min(4.8 / len(values), 0.5)
    with new_cells(values, scale, (cell, cell), labels, labels, title=title) as (card, _):
        return card


def _fixed(values: Floats) -> list[str]:
    """Write numbers in a matrix's cells with the same few decimals; nothing where there is none."""
    largest = np.nanmax(np.abs(values), initial=0)
    decimals = int(np.clip(1 - np.floor(np.log10(largest)), 0, 9)) if largest else 0
    return ["" if np.isnan(value) else f"{value:z.{decimals}f}".replace("-", "−") for value in values.ravel()]


@contextmanager
def new_cells(
    values: Floats,
    scale: Scale,
    cell: tuple[float, float],
    rows: Sequence[str],
    columns: Sequence[str],
    axis_names: tuple[str, str] = ("", ""),
    title: str = "",
) -> Iterator[tuple[Sheet, Axes]]:
    """Make a matrix's card with `values` `[rows columns]` in cells of `cell` (width, height) inches; row 0 on top.

    The axes count in cells: the middle of row 2, column 5 is at x = 5, y = 2.
    """
    row_title, column_title = axis_names
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
        axes = card.axes_at(beside.room, 0, width, height)
        axes.imshow(values, cmap=scale.colours, norm=scale.norm, aspect="auto")
        frame(axes)
        beside.write(axes.yaxis, range(len(rows)), row_title)
        below.write(axes.xaxis, range(len(columns)), column_title)
        scale.bar_beside(axes)
        yield card, axes


def _snap(size: float, limit: float = np.inf) -> float:
    """Round a cell's side to whole pixels, which makes all cells equal; cells of a pixel or three are smoothed."""
    return min(round(size * DPI), np.floor(limit * DPI)) / DPI if min(size, limit) * DPI >= 4 else min(size, limit)


_LONGEST = 1.3  # inches
_GAP = 0.05  # inches between the cells and their labels


@dataclass(frozen=True)
class Labels:
    """The labels beside a matrix's cells: every `every`-th of `texts`, perhaps turned; `room` inches deep."""

    texts: list[str]
    every: int
    turned: bool
    room: float

    def write(self, axis: Axis, centres: Sequence[float], title: str = "") -> None:
        """Write a matrix's labels on an axis, each at the middle of its cell."""
        rotation = 90 if self.turned else 0
        axis.set_ticks(list(centres)[:: self.every], self.texts[:: self.every], rotation=rotation)
        axis.set_tick_params(length=0, pad=_GAP * 72, labelsize=TINY, labelcolor=MUTED)
        if title:
            axis.set_label_text(title, size=SMALL, color=MUTED)
            axis.labelpad = 3


def fit_rows(labels: Sequence[str], pitch: float, title: str = "") -> Labels:
    """Fit labels to the left of a matrix's rows that are `pitch` inches apart."""
    texts = [elide(label, _LONGEST, TINY) for label in labels]
    widest = max(text_width(text, TINY) for text in texts)
    room = _GAP + widest + (line_height(SMALL) + 0.05 if title else 0)
    return Labels(texts, _every(line_height(TINY), pitch), False, room)


def fit_columns(labels: Sequence[str], pitch: float, title: str = "") -> Labels:
    """Fit labels under a matrix's columns that are `pitch` inches apart; long words are turned, numbers are thinned."""
    texts = [elide(label, _LONGEST, TINY) for label in labels]
    widest = max(text_width(text, TINY) for text in texts) + 0.08
    turned = widest > pitch and not all(text.isdigit() for text in texts)
    depth = widest - 0.08 if turned else line_height(TINY)
    room = _GAP + depth + (line_height(SMALL) + 0.05 if title else 0)
    return Labels(texts, _every(line_height(TINY) if turned else widest, pitch), turned, room)


def fit_both(
    rows: Sequence[str], columns: Sequence[str], pitch: tuple[float, float], row_title: str = "", column_title: str = ""
) -> tuple[Labels, Labels]:
    """Fit the labels of a matrix's rows and columns for cells of `pitch` (width, height) inches; a square's match."""
    beside, below = fit_rows(rows, pitch[1], row_title), fit_columns(columns, pitch[0], column_title)
    every = max(beside.every, below.every)
    return (replace(beside, every=every), replace(below, every=every)) if len(rows) == len(columns) else (beside, below)


def _every(needed: float, pitch: float) -> int:
    """Choose every how many rows or columns of a matrix have a label."""
    return next((step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500) if step * pitch >= needed), 1000)
