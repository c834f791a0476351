"""Position embeddings: how alike each place is to every other (the paper's figure 7, centre)."""

from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from vitreous.figures.cells import new_cells
from vitreous.figures.scale import Scale
from vitreous.figures.shapes import array_of, check_place
from vitreous.figures.style import outline
from vitreous.figures.tiles import draw_tiles

COSINE = Scale(-1.0, 1.0, "cosine similarity", diverging=True)
"""The scale of every drawing of positions."""


def draw_similarity_tiles(similarity: ArrayLike, *, title: str = "") -> Figure:
    """One tile for each place, in its place: that place's cosine similarity with all, `[rows columns rows columns]`.

    >>> import numpy as np
    >>> len(draw_similarity_tiles(np.ones((3, 4, 3, 4))).axes)
    2
    """
    similarity = array_of("similarity", similarity, "rows columns rows columns")
    rows, columns = similarity.shape[:2]
    return draw_tiles(
        COSINE.paint(similarity),
        [str(row) for row in range(rows)],
        [str(column) for column in range(columns)],
        row_title="patch row",
        column_title="patch column",
        title=title,
        scale=COSINE,
        largest=0.6,
    )


def draw_similarity_one(similarity: ArrayLike, place: tuple[int, int], *, title: str = "") -> Figure:
    """One place's cosine similarity with all, `[rows columns]`, enlarged, the place itself outlined.

    >>> import numpy as np
    >>> len(draw_similarity_one(np.ones((3, 4)), place=(0, 3)).axes)
    2
    """
    similarity = array_of("similarity", similarity, "rows columns")
    check_place("place", place, similarity.shape)
    rows, columns = similarity.shape
    cell = min(4.4 / max(rows, columns), 0.5)
    names = [str(number) for number in range(max(rows, columns))]
    with new_cells(
        similarity,
        COSINE,
        (cell, cell),
        rows=names[:rows],
        columns=names[:columns],
        row_title="patch row",
        column_title="patch column",
        title=title,
    ) as (card, axes):
        outline(axes, place[1] - 0.5, place[0] - 0.5, 1, 1)
    return card
