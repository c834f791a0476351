"""Speeds as bars, ours in the accent colour, and their common ceiling as a line."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from vitreous.figures.shapes import Floats, array_of, labels_of
from vitreous.figures.style import ACCENT, INK, MISSING, MUTED, PALETTE, TRACK, WIDTH, Sheet, new_figure, tidy
from vitreous.figures.text import BODY, SMALL, elide, line_height, percent, text_width, wrap

ROW = 0.24  # inches
GAP = 0.26  # inches between panels
LONGEST = 2.3  # inches of a name
LIMIT = PALETTE[1]


@dataclass(frozen=True)
class Panel:
    """One network at one batch size: speeds `[n]` in images a second."""

    title: str
    names: Sequence[str]
    rates: ArrayLike
    ours: Sequence[bool]
    ceiling: float
    """Images a second at the measured limit."""


def draw_speeds(panels: Sequence[Panel], *, title: str = "", note: str = "") -> Figure:
    """Draw panels below one another, each with its bars and its ceiling; `note` stands below.

    >>> panel = Panel("ViT-Ti, batch 8", ["vitreous", "timm"], [120.0, 100.0], [True, False], 200.0)
    >>> figure = draw_speeds([panel])
    >>> [float(bar.get_width()) for bar in figure.axes[0].containers[0]]
    [120.0, 100.0]
    """
    if not panels:
        raise ValueError("there is nothing to draw: expected one panel or more")
    speeds = [array_of("rates", panel.rates, "n") for panel in panels]
    notes = wrap(note, WIDTH, SMALL, lines=3)
    header = line_height(BODY) + line_height(SMALL) + 0.1
    height = sum(header + ROW * len(rates) + GAP for rates in speeds) - GAP
    names = [elide(name, LONGEST) for panel in panels for name in panel.names]
    left = max(text_width(name) for name in names) + 0.14
    with new_figure(WIDTH, height + (len(notes) * line_height(SMALL) + 0.14 if notes else 0), title) as card:
        top = 0.0
        for panel, rates in zip(panels, speeds, strict=True):
            _panel(card, panel, rates, top, left, header)
            top += header + ROW * len(rates) + GAP
        for number, line in enumerate(notes):
            card.write(0, height + 0.14 + number * line_height(SMALL), line, size=SMALL, color=MUTED, va="top")
    return card


def _panel(card: Sheet, panel: Panel, rates: Floats, top: float, left: float, header: float) -> None:
    count = len(rates)
    names = labels_of("names", panel.names, count)
    shares = [percent(rate / panel.ceiling) for rate in rates]
    texts = [f"{_number(rate)}/s" for rate in rates]
    last = max(text_width("of the limit", SMALL), *(text_width(share) for share in shares))
    middle = max(text_width("images", SMALL), *(text_width(text) for text in texts))
    width = WIDTH - left - middle - last - 0.36
    for number, line in enumerate(wrap(panel.title, WIDTH, BODY, "bold", lines=1)):
        card.write(0, top + number * line_height(BODY), line, weight="bold", size=BODY, va="top")
    axes = card.place(left, top + header, width, count * ROW)
    tidy(axes, grid="none")
    axes.spines[:].set_visible(False)
    axes.set(xticks=[], yticks=[], ylim=(count - 0.5, -0.5), xlim=(0, 1.02 * max(panel.ceiling, float(rates.max()))))
    axes.barh(range(count), rates, height=0.62, color=[ACCENT if own else MISSING for own in panel.ours])
    axes.barh(range(count), [panel.ceiling] * count, height=0.62, color=TRACK, zorder=0)
    axes.axvline(panel.ceiling, color=LIMIT, linewidth=1.4)
    under = top + header - 0.06
    limit = f"limit: matrix products alone, {_number(panel.ceiling)}/s"
    edge = left + width * panel.ceiling / axes.get_xlim()[1]
    card.write(edge, under, limit, size=SMALL, color=LIMIT, ha="right", va="bottom")
    card.write(WIDTH - last - 0.18, under, "images", size=SMALL, color=MUTED, ha="right", va="bottom")
    card.write(WIDTH, under, "of the limit", size=SMALL, color=MUTED, ha="right", va="bottom")
    for number, name in enumerate(names):
        down = top + header + (number + 0.5) * ROW
        style = {"va": "center_baseline", "color": INK if panel.ours[number] else MUTED}
        card.write(0, down, elide(name, LONGEST), **style)
        card.write(WIDTH - last - 0.18, down, texts[number], ha="right", **style)
        card.write(WIDTH, down, shares[number], ha="right", **style)


def _number(rate: float) -> str:
    """Format a rate with about three digits.

    >>> _number(12458.7), _number(48.26), _number(3.217)
    ('12,459', '48.3', '3.22')
    """
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}" if rate >= 10 else f"{rate:.2f}"
