"""Matrices: attention of every token to every token, a number for every head of every block, blocks against blocks."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from vitreous.figures.cells import new_cells
from vitreous.figures.scale import scale_of
from vitreous.figures.shapes import Floats, array_of, labels_of
from vitreous.figures.style import INK, PAPER, TALLEST
from vitreous.figures.text import TINY, text_width

SCALES = {
    "raw": "attention weight",
    "log": "log of attention weight",
    "layer-norm": "attention weight, layer-normalised",
}
"""How a matrix was transformed before it came here → what its colour bar says."""


def draw_matrix(
    matrix: ArrayLike,
    *,
    prefix: int = 1,
    scale: Literal["raw", "log", "layer-norm"] = "raw",
    title: str = "",
    label: str = "",
    limits: tuple[float, float] | None = None,
) -> Figure:
    """An attention matrix `[tokens tokens]`: row q is the attention of query token q.

    A thin line parts the first `prefix` tokens (class, registers) from the patches. `scale` only names what was done to
    the values, unless `label` says it better.

    >>> len(draw_matrix(np.full((5, 5), 0.2), prefix=1, title="Block 0, head 0").axes)
    2
    """
    matrix = array_of("matrix", matrix, "tokens tokens")
    tokens = len(matrix)
    if scale not in SCALES:
        raise ValueError(f"scale must be one of {', '.join(SCALES)}, got {scale!r}")
    if not 0 <= prefix <= tokens:
        raise ValueError(f"prefix must be a number of tokens from 0 to {tokens}, got {prefix}")
    colours = scale_of(matrix, label or SCALES[scale], limits=limits)
    names = [str(token) for token in range(tokens)]
    cell = min(4.8 / tokens, 0.6)
    with new_cells(
        matrix,
        colours,
        (cell, cell),
        rows=names,
        columns=names,
        row_title="query token",
        column_title="key token",
        title=title,
    ) as (card, axes):
        if 0 < prefix < tokens:
            axes.axhline(prefix - 0.5, color=PAPER, linewidth=0.7)
            axes.axvline(prefix - 0.5, color=PAPER, linewidth=0.7)
    return card


def draw_blocks_heads(
    values: ArrayLike,
    *,
    title: str = "",
    label: str = "",
    diverging: bool = False,
    numbers: bool | None = None,
    limits: tuple[float, float] | None = None,
) -> Figure:
    """A number for each head of each block `[blocks heads]`, the first block on top.

    The numbers themselves stand in the cells if `numbers` is true, or where they fit if it is None.

    >>> figure = draw_blocks_heads([[0.1, 0.2], [0.3, 0.4]], label="importance")
    >>> [text.get_text() for text in figure.axes[0].texts]
    ['0.10', '0.20', '0.30', '0.40']
    """
    values = array_of("values", values, "blocks heads")
    blocks, heads = values.shape
    scale = scale_of(values, label, diverging, limits)
    cell = 0.46, min(max(TALLEST / blocks, 0.12), 0.3)
    names = [str(number) for number in range(max(blocks, heads))]
    texts = _fixed(values)
    widest = max(text_width(text, TINY) for text in texts)
    with new_cells(
        values,
        scale,
        cell,
        rows=names[:blocks],
        columns=names[:heads],
        row_title="block",
        column_title="head",
        title=title,
    ) as (card, axes):
        axes.hlines(np.arange(1, blocks) - 0.5, -0.5, heads - 0.5, color=PAPER, linewidth=0.8)
        axes.vlines(np.arange(1, heads) - 0.5, -0.5, blocks - 0.5, color=PAPER, linewidth=0.8)
        room = 0.9 * axes.get_position().width * card.get_size_inches()[0] / heads  # inches in a cell
        if numbers or (numbers is None and widest <= room and cell[1] > 0.15):
            size = TINY * min(1.0, room / max(widest, 0.01))
            shades = scale.paint(values).reshape(-1, 4) @ np.array([0.299, 0.587, 0.114, 0]) / 255
            for number, (text, shade) in enumerate(zip(texts, shades, strict=True)):
                row, column = divmod(number, heads)
                axes.text(
                    column, row, text, size=size, color=INK if shade > 0.5 else PAPER, ha="center", va="center_baseline"
                )
    return card


def draw_similarity(
    values: ArrayLike,
    labels: Sequence[str],
    *,
    title: str = "",
    label: str = "similarity",
    diverging: bool = False,
    limits: tuple[float, float] | None = None,
) -> Figure:
    """How alike n things are `[n n]`, such as the features of blocks by centred kernel alignment; 0 to 1 by default.

    >>> figure = draw_similarity(np.eye(3), ["embedding", "block 0", "block 1"], label="CKA")
    >>> [text.get_text() for text in figure.axes[0].get_yticklabels()]
    ['embedding', 'block 0', 'block 1']
    """
    values = array_of("values", values, "n n")
    labels = labels_of("labels", labels, len(values))
    usual = np.nanmin(values, initial=0) >= 0 and np.nanmax(values, initial=1) <= 1
    scale = scale_of(values, label, diverging, limits or ((0.0, 1.0) if usual and not diverging else None))
    cell = min(4.8 / len(values), 0.5)
    with new_cells(values, scale, (cell, cell), rows=labels, columns=labels, title=title) as (card, _):
        return card


def _fixed(values: Floats) -> list[str]:
    """Numbers with the same few decimals, two digits of the largest showing; nothing where there is none."""
    largest = np.nanmax(np.abs(values), initial=0)
    decimals = int(np.clip(1 - np.floor(np.log10(largest)), 0, 9)) if largest else 0
    return ["" if np.isnan(value) else f"{value:z.{decimals}f}".replace("-", "−") for value in values.ravel()]
