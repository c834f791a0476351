"""Draw tables, plain or with bars: predictions, the logit lens, rankings, benchmark speeds, names with values.

One row a thing, in the order given, the first on top.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from vitreous.figures.checks import Floats, array_of, labels_of
from vitreous.figures.colour_scale import round_ticks
from vitreous.figures.style import (
    ABOVE,
    ACCENT,
    BELOW,
    BODY,
    FAINT,
    INK,
    MISSING,
    MONO,
    MUTED,
    PALE,
    PALETTE,
    SMALL,
    TALLEST,
    TRACK,
    WIDTH,
    Sheet,
    elide,
    line_height,
    new_figure,
    text_width,
    tidy,
    wrap,
)
from vitreous.runtime.wording import percent

_LONGEST = 2.9  # inches of a name
_HEADER = line_height(SMALL) + 0.06  # inches for the names of the columns


def draw_predictions(
    labels: Sequence[str],
    probabilities: ArrayLike,
    logits: ArrayLike,
    *,
    title: str = "",
    indices: Sequence[int] | None = None,
    everything: ArrayLike | None = None,
) -> Figure:
    """Draw classes in the order given, each with its index, its probability `[n]` as a bar, and its logit `[n]`.

    `everything` are the probabilities of all classes `[classes]`, for a strip below.

    >>> figure = draw_predictions(["tabby", "tiger cat"], [0.8, 0.1], [12.1, 10.0])
    >>> [float(bar.get_width()) for bar in figure.axes[0].containers[1]]
    [0.8, 0.1]
    """
    probabilities, logits = array_of("probabilities", probabilities, "n"), array_of("logits", logits, "n")
    count = len(probabilities)
    if len(logits) != count:
        raise ValueError(f"logits must be {count} numbers, one for each probability, got {len(logits)}")
    numbers = [""] * count if indices is None else [f"{index}  " for index in indices]
    names = [
        elide(number + label, _LONGEST)
        for number, label in zip(numbers, labels_of("labels", labels, count), strict=True)
    ]
    strip = None if everything is None else array_of("everything", everything, "classes")
    below = 0.95 if strip is not None else 0.0
    row, left = 0.27, max(0.6, *(text_width(name) for name in names)) + 0.16
    share, score = text_width("probability", SMALL), 0.62
    with new_figure(WIDTH, _HEADER + count * row + below, title) as card:
        if strip is not None:
            _strip(card, strip, _HEADER + count * row + 0.12)
        axes = _rows(card, left, _HEADER, WIDTH - left - share - score - 0.12, row, count)
        axes.set_xlim(0, 1)
        _bars(axes, probabilities, [ACCENT] + [PALE] * (count - 1))
        _header(card, WIDTH - score, "probability", ha="right")
        _header(card, WIDTH, "logit", ha="right")
        for number, name in enumerate(names):
            top = _HEADER + (number + 0.5) * row
            look = {"va": "center_baseline", "color": INK if number == 0 else MUTED}
            card.write(0, top, name, **look)
            card.write(WIDTH - score, top, percent(probabilities[number]), ha="right", **look)
            card.write(WIDTH, top, _signed(logits[number], 2), ha="right", **{**look, "color": MUTED})
    return card


def _strip(card: Sheet, probabilities: Floats, top: float) -> None:
    """Draw a strip below the bars of predictions: the probability of every class over its index."""
    count = len(probabilities)
    card.write(0, top, f"all {count} classes, by index", size=SMALL, color=MUTED, va="top")
    axes = card.axes_at(0, top + 0.2, WIDTH, 0.42)
    tidy(axes)
    axes.vlines(range(count), 0, probabilities, color=ACCENT, linewidth=1.0 if count > 200 else 3.0)
    axes.set(xlim=(-0.5, count - 0.5), ylim=(0, float(np.nanmax(probabilities, initial=0)) * 1.05 or 1), yticks=[])
    ticks = round_ticks(0, count - 1, count=8, whole=True)
    axes.set_xticks(list(ticks), list(ticks.values()))


def draw_lens(
    steps: Sequence[str],
    labels: Sequence[str],
    probabilities: ArrayLike,
    target: ArrayLike,
    target_label: str,
    *,
    title: str = "",
) -> Figure:
    """Draw the logit lens as rows with bars: each block's best class and its probability, beside the final class's.

    Both probabilities are `[steps]`. The final class's is a curve that runs down beside the rows; rows that already say
    `target_label` stand out.

    >>> figure = draw_lens(["0", "1", "2"], ["web", "cat", "cat"], [0.1, 0.4, 0.9], [0.0, 0.4, 0.9], "cat")
    >>> figure.axes[1].lines[0].get_xdata().tolist()
    [0.0, 0.4, 0.9]
    """
    probabilities = array_of("probabilities", probabilities, "steps")
    count = len(probabilities)
    curve = array_of("target", target, "steps")
    if len(curve) != count:
        raise ValueError(f"target must be {count} numbers, one for each step, got {len(curve)}")
    labels = labels_of("labels", labels, count)
    steps = [elide(step, 1.1, SMALL) for step in labels_of("steps", steps, count)]
    row = min(max(TALLEST / count, 0.165), 0.235)
    panel, share = 1.9, text_width("probability", SMALL)
    first = max(text_width("block", SMALL), *(text_width(step, SMALL) for step in steps)) + 0.16
    names = [elide(label, 2.3, SMALL) for label in labels]
    second = first + max(0.8, *(text_width(name, SMALL) for name in names)) + 0.14
    third = WIDTH - panel - 0.3  # where the numbers end and the curve's panel begins, with a gap
    with new_figure(WIDTH, _HEADER + count * row + 0.24, title) as card:
        bars = _rows(card, second, _HEADER, third - share - 0.1 - second, row, count)
        bars.set_xlim(0, 1)
        said = [label == target_label for label in labels]
        _bars(bars, probabilities, [ACCENT if same else PALE for same in said])
        beside = _rows(card, WIDTH - panel, _HEADER, panel, row, count)
        _curve(beside, curve)
        _header(card, 0, "block")
        _header(card, first, "best class")
        _header(card, third, "probability", ha="right")
        _header(card, WIDTH - panel, elide(f"probability of {target_label}", panel, SMALL))
        for number, (step, name) in enumerate(zip(steps, names, strict=True)):
            top = _HEADER + (number + 0.5) * row
            look = {"va": "center_baseline", "size": SMALL, "color": INK if said[number] else MUTED}
            card.write(first - 0.16, top, step, ha="right", **{**look, "color": MUTED})
            card.write(first, top, name, **look)
            card.write(third, top, percent(probabilities[number]), ha="right", **look)
    return card


def draw_ranking(
    names: Sequence[str],
    values: ArrayLike,
    *,
    title: str = "",
    label: str = "",
    limits: tuple[float, float] | None = None,
) -> Figure:
    """Draw a ranking, each thing with its signed value `[n]`: red bars above zero, blue ones below.

    Bars run over the values' own range, or over `limits`.

    >>> figure = draw_ranking(["block 3, head 1", "block 0, head 7"], [0.12, -0.01], label="accuracy lost")
    >>> [float(bar.get_width()) for bar in figure.axes[0].containers[0]]
    [0.12, -0.01]
    """
    values = array_of("values", values, "n")
    count = len(values)
    names = [elide(name, _LONGEST, SMALL) for name in labels_of("names", names, count)]
    texts = [_signed(value, 3) for value in values]
    row, left = 0.21, max(0.5, *(text_width(name, SMALL) for name in names)) + 0.16
    right = max(text_width(text, SMALL) for text in texts) + 0.12
    low, high = limits or (float(np.nanmin(values, initial=0)), float(np.nanmax(values, initial=0)))
    top = _HEADER if label else 0.0
    with new_figure(WIDTH, top + count * row, title) as card:
        axes = _rows(card, left, top, WIDTH - left - right, row, count)
        axes.set_xlim((low, high) if low < high else (0, 1))
        axes.barh(range(count), values, height=0.6, color=[ABOVE if value > 0 else BELOW for value in values])
        axes.axvline(0, color=FAINT, linewidth=0.8, zorder=0)
        if label:
            _header(card, left, elide(label, WIDTH - left, SMALL))
        for number, (name, text) in enumerate(zip(names, texts, strict=True)):
            middle = top + (number + 0.5) * row
            card.write(0, middle, name, size=SMALL, color=INK, va="center_baseline")
            card.write(WIDTH, middle, text, size=SMALL, color=MUTED, ha="right", va="center_baseline")
    return card


def _rows(card: Sheet, left: float, top: float, width: float, row: float, count: int) -> Axes:
    """Make bare axes for the bars of a table: the bar of row i lies at y = i, the first on top."""
    axes = card.axes_at(left, top, width, count * row)
    tidy(axes)
    axes.spines[:].set_visible(False)
    axes.set(xticks=[], yticks=[], ylim=(count - 0.5, -0.5))
    return axes


def _bars(axes: Axes, shares: Floats, colours: Sequence[str]) -> None:
    """Draw a table's bars on pale tracks that show what the whole would be."""
    axes.barh(range(len(colours)), [1.0] * len(colours), height=0.5, color=TRACK)
    axes.barh(range(len(colours)), shares, height=0.5, color=list(colours))


def _curve(axes: Axes, shares: Floats) -> None:
    """Plot the probability of a class beside the bars of the logit lens, a point for each row."""
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.5, 1], ["0", "50 %", "100 %"])
    axes.grid(axis="x", color=TRACK, linewidth=0.8)
    axes.plot(shares, range(len(shares)), color=ACCENT, linewidth=1.6, marker="o", markersize=3.4, clip_on=False)
    first, _, last = axes.get_xticklabels()  # kept within the panel
    first.set_horizontalalignment("left")
    last.set_horizontalalignment("right")


def _header(card: Sheet, left: float, text: str, **options: str) -> None:
    """Write the name of a column in a drawn table."""
    card.write(left, 0, text, size=SMALL, color=MUTED, va="top", **options)


def _signed(value: float, decimals: int) -> str:
    """Write a number with its sign beside a ranking's bar."""
    return "–" if np.isnan(value) else f"{value:z.{decimals}f}".replace("-", "−")


_TABLE_ROW, _TABLE_GAP = 0.25, 0.4  # inches of a row, and between the columns


def draw_table(rows: Sequence[tuple[str, str]], *, title: str = "") -> Figure:
    """Draw a table without bars: rows of a name and its value.

    Values have a fixed-width face, so that digits stand under digits.

    >>> figure = draw_table([("patches", "196 × 768"), ("with class token", "197 × 768")], title="Shapes")
    >>> [text.get_text() for text in figure.texts]
    ['Shapes', 'patches', '196 × 768', 'with class token', '197 × 768']
    """
    if not rows or any(len(row) != 2 for row in rows):
        got = "none" if not rows else next(repr(row) for row in rows if len(row) != 2)
        raise ValueError(f"rows must be pairs of a name and a value, got {got}")
    names = [elide(str(name), 0.55 * WIDTH) for name, _ in rows]
    left = max(text_width(name) for name in names) + _TABLE_GAP
    values = [wrap(str(value), WIDTH - left, family=MONO) or [""] for _, value in rows]
    width = left + max(text_width(line, family=MONO) for lines in values for line in lines)
    top, more = 0.0, line_height(BODY)
    height = len(rows) * _TABLE_ROW + sum(len(lines) - 1 for lines in values) * more
    with new_figure(max(width, 3.2), height, title) as card:
        for name, lines in zip(names, values, strict=True):
            if top:
                card.rule(top)
            card.write(0, top + 0.5 * _TABLE_ROW, name, color=MUTED, va="center_baseline")
            for line in lines:
                card.write(left, top + 0.5 * _TABLE_ROW, line, color=INK, va="center_baseline", family=MONO)
                top += more
            top += _TABLE_ROW - more
    return card


LIMIT = PALETTE[1]
_SPEED_ROW, _PANEL_GAP, _SPEED_NAME = 0.24, 0.26, 2.3  # inches of a row, between panels, and of a name


@dataclass(frozen=True)
class Panel:
    """One panel of a benchmark's figure: a network at one batch size, speeds `[n]` in images a second."""

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
    height = sum(header + _SPEED_ROW * len(rates) + _PANEL_GAP for rates in speeds) - _PANEL_GAP
    names = [elide(name, _SPEED_NAME) for panel in panels for name in panel.names]
    left = max(text_width(name) for name in names) + 0.14
    with new_figure(WIDTH, height + (len(notes) * line_height(SMALL) + 0.14 if notes else 0), title) as card:
        top = 0.0
        for panel, rates in zip(panels, speeds, strict=True):
            _speed_panel(card, panel, rates, top, left, header)
            top += header + _SPEED_ROW * len(rates) + _PANEL_GAP
        for number, line in enumerate(notes):
            card.write(0, height + 0.14 + number * line_height(SMALL), line, size=SMALL, color=MUTED, va="top")
    return card


def _speed_panel(card: Sheet, panel: Panel, rates: Floats, top: float, left: float, header: float) -> None:
    """Draw the bars of one benchmark's speeds, and its ceiling as a line."""
    count = len(rates)
    names = labels_of("names", panel.names, count)
    shares = [percent(rate / panel.ceiling) for rate in rates]
    texts = [f"{_number(rate)}/s" for rate in rates]
    last = max(text_width("of the limit", SMALL), *(text_width(share) for share in shares))
    middle = max(text_width("images", SMALL), *(text_width(text) for text in texts))
    width = WIDTH - left - middle - last - 0.36
    for number, line in enumerate(wrap(panel.title, WIDTH, BODY, "bold", lines=1)):
        card.write(0, top + number * line_height(BODY), line, weight="bold", size=BODY, va="top")
    axes = _rows(card, left, top + header, width, _SPEED_ROW, count)
    axes.set_xlim(0, 1.02 * max(panel.ceiling, float(rates.max())))
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
        down = top + header + (number + 0.5) * _SPEED_ROW
        style = {"va": "center_baseline", "color": INK if panel.ours[number] else MUTED}
        card.write(0, down, elide(name, _SPEED_NAME), **style)
        card.write(WIDTH - last - 0.18, down, texts[number], ha="right", **style)
        card.write(WIDTH, down, shares[number], ha="right", **style)


def _number(rate: float) -> str:
    """Write a benchmark's speed beside its bar with about three digits.

    >>> _number(12458.7), _number(48.26), _number(3.217)
    ('12,459', '48.3', '3.22')
    """
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}" if rate >= 10 else f"{rate:.2f}"
