"""Labels for rows and columns of cells: turned, thinned or elided until none touches its neighbour."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from matplotlib.axes import Axes

from vitreous.figures.style import MUTED
from vitreous.figures.text import SMALL, TINY, elide, line_height, text_width

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
