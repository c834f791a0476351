"""A table as a figure, such as the shapes of the tensors at each step through the model."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from vitreous.figures.style import (
    INK,
    MUTED,
    WIDTH,
    new_figure,
)
from vitreous.figures.text import BODY, MONO, elide, text_width

_ROW = 0.25  # inches
_GAP = 0.4  # inches between the columns


def draw_table(rows: Sequence[tuple[str, str]], *, title: str = "") -> Figure:
    """Rows of a name and its value, values in a fixed-width face so that digits stand under digits.

    >>> figure = draw_table([("patches", "196 × 768"), ("with class token", "197 × 768")], title="Shapes")
    >>> [text.get_text() for text in figure.texts]
    ['Shapes', 'patches', '196 × 768', 'with class token', '197 × 768']
    """
    if not rows or any(len(row) != 2 for row in rows):
        got = "none" if not rows else next(repr(row) for row in rows if len(row) != 2)
        raise ValueError(f"rows must be pairs of a name and a value, got {got}")
    names = [elide(str(name), 0.55 * WIDTH) for name, _ in rows]
    left = max(text_width(name) for name in names) + _GAP
    values = [elide(str(value), WIDTH - left, BODY, family=MONO) for _, value in rows]
    width = left + max(text_width(value, BODY, family=MONO) for value in values)
    with new_figure(max(width, 3.2), len(rows) * _ROW, title) as card:
        for number, (name, value) in enumerate(zip(names, values, strict=True)):
            middle = (number + 0.5) * _ROW
            card.write(0, middle, name, color=MUTED, va="center_baseline")
            card.write(left, middle, value, color=INK, va="center_baseline", family=MONO)
            if number:
                card.rule(number * _ROW)
    return card
