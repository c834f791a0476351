"""Draw charts: a number for each head by depth, deletion and insertion curves, answers as patches are hidden."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from vitreous.figures.checks import Floats, array_of, curve_of, labels_of
from vitreous.figures.colour_scale import round_ticks
from vitreous.figures.style import (
    ACCENT,
    CAPTION,
    INK,
    MUTED,
    PALETTE,
    SMALL,
    TRACK,
    WIDTH,
    Sheet,
    caption,
    elide,
    line_height,
    new_figure,
    text_width,
    tidy,
    wrap,
)

_TALL = 2.9  # inches of a chart
_ROW = line_height(SMALL)
_BELOW = 0.06 + _ROW + _ROW  # inches under a chart for its numbers and its name
_DASHES = ("-", "--", ":")


def draw_heads(values: ArrayLike, *, label: str, ceiling: float | None = None, title: str = "") -> Figure:
    """Draw a number for each head `[blocks heads]` as a dot over its block, the mean as a line, perhaps a ceiling.

    >>> len(draw_heads(np.random.rand(12, 3) * 100, label="mean attention distance (px)").axes[0].lines)
    1
    >>> len(draw_heads(np.random.rand(12, 3), label="entropy (nats)", ceiling=np.log(197)).axes[0].lines)
    2
    """
    values = array_of("values", values, "blocks heads")
    blocks, heads = values.shape
    high = max(float(np.nanmax(values, initial=0)), ceiling or 0) * 1.06 or 1.0
    low = min(float(np.nanmin(values, initial=0)) * 1.06, 0.0)
    names, ends, colours = (["mean of heads"], [_end(_mean(values))], [INK]) if heads > 1 else ([], [], [])
    if ceiling is not None:
        names, ends, colours = [*names, "uniform attention"], [*ends, ceiling], [*colours, MUTED]
    room = max((text_width(name, SMALL) for name in names), default=0.0) + 0.1
    with new_figure(WIDTH, _TALL + _BELOW, title) as card:
        axes = _chart(card, (0, 0, WIDTH - room, _TALL), (-0.5, blocks - 0.5), (low, high), "block", label, whole=True)
        depth = np.arange(blocks)
        look: dict[str, Any] = {"alpha": 0.55, "linewidth": 0, "zorder": 2, "clip_on": False}
        axes.scatter(depth.repeat(heads), values.ravel(), s=16, color=ACCENT, **look)
        axes.plot(depth, _mean(values), color=INK if heads > 1 else ACCENT, linewidth=1.4, zorder=3)
        if ceiling is not None:
            axes.axhline(ceiling, color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
        _name_ends(axes, names, ends, colours, _TALL)
    return card


def draw_faithfulness(
    curves: Mapping[str, tuple[ArrayLike, ArrayLike]],
    areas: Mapping[str, tuple[float, float]],
    *,
    title: str = "",
    plain: Sequence[str] = (),
    note: str = "",
) -> Figure:
    """Draw the faithfulness of maps: the class's probability as the highest patches are deleted, and inserted.

    `curves` holds (deletion y `[n]`, insertion y `[n]`), over 0 to 100 % of the patches; `areas` the areas under both.
    Under each panel the methods are ranked, the best first. Those named in `plain` are drawn in grey: what to beat.
    `note` stands below.

    >>> curves = {"rollout": ([0.9, 0.3, 0.1], [0.1, 0.6, 0.9]), "random": ([0.9, 0.6, 0.1], [0.1, 0.4, 0.9])}
    >>> figure = draw_faithfulness(curves, {"rollout": (0.4, 0.55), "random": (0.55, 0.45)})
    >>> len(figure.axes)
    2
    """
    if not curves or curves.keys() != areas.keys():
        raise ValueError(f"curves and areas must name the same methods, got {list(curves)} and {list(areas)}")
    lines = {
        name: [curve_of(f"{kind} of {name}", y) for kind, y in zip(("deletion", "insertion"), pair, strict=True)]
        for name, pair in curves.items()
    }
    coloured = [name for name in lines if name not in plain]
    colours = {name: MUTED if name in plain else PALETTE[coloured.index(name) % len(PALETTE)] for name in lines}
    dashes = {name: _DASHES[1 + list(plain).index(name) % 2] if name in plain else "-" for name in lines}
    high = max(1.0, *(np.nanmax(y, initial=0) for pair in lines.values() for y in pair))
    low = min(0.0, *(np.nanmin(y, initial=0) for pair in lines.values() for y in pair))
    gap, tall, ylabel = 0.24, 2.2, "probability of the class"
    wide = (WIDTH - gap) / 2 - 0.06
    under = CAPTION + tall + _BELOW + 0.1  # where the ranking begins
    panels = (
        ("Deletion: lower is better", "patches deleted (%)"),
        ("Insertion: higher is better", "patches inserted (%)"),
    )
    notes = wrap(note, WIDTH, SMALL, lines=3)
    bottom = under + (len(lines) + 1) * _ROW + 0.08
    with new_figure(WIDTH, bottom + len(notes) * _ROW, title) as card:
        for number, text in enumerate(notes):
            card.write(0, bottom + number * _ROW, text, size=SMALL, color=INK, va="top")
        for side, (name, xlabel) in enumerate(panels):
            left = side * (wide + gap)
            axes = _chart(card, (left, CAPTION, wide, tall), (0, 100), (low, high), xlabel, "" if side else ylabel)
            caption(axes, name)
            for name, pair in lines.items():
                x = np.linspace(0, 100, len(pair[side]))
                axes.plot(x, pair[side], dashes[name], color=colours[name], linewidth=1.6, clip_on=False)
            start = left + _beside((low, high), "" if side else ylabel)
            ranked = sorted(lines, key=lambda method: areas[method][side] * (-1 if side else 1))
            card.write(left + wide, under, "area", size=SMALL, color=MUTED, ha="right", va="top")
            for row, method in enumerate(ranked, start=1):
                look = {"size": SMALL, "color": colours[method], "va": "top"}
                mark = {"-": "●", "--": "╌", ":": "┈"}[dashes[method]]
                card.write(start, under + row * _ROW, f"{mark} {elide(method, 2.2, SMALL)}", **look)
                card.write(left + wide, under + row * _ROW, f"{areas[method][side]:.3f}", ha="right", **look)
    return card


def draw_removal(
    counts: Sequence[int], hidden: ArrayLike, alone: ArrayLike, names: Sequence[str], *, title: str = "", note: str = ""
) -> Figure:
    """Draw curves of the probabilities `[steps answers]` with the strongest patches hidden, and with them shown alone.

    >>> figure = draw_removal([0, 5, 10], [[0.9], [0.2], [0.0]], [[0.0], [0.8], [0.9]], ["dome"])
    >>> [line.get_ydata().tolist() for line in figure.axes[0].lines]
    [[0.9, 0.2, 0.0]]
    """
    both = [array_of(name, values, "steps answers") for name, values in (("hidden", hidden), ("alone", alone))]
    names = labels_of("names", names, both[0].shape[1])
    gap, tall, ylabel = 0.24, 2.2, "probability"
    wide = (WIDTH - gap) / 2 - 0.06
    notes = wrap(note, WIDTH, SMALL, lines=3)
    under = CAPTION + tall + _BELOW + 0.1
    columns = 3
    rows = -(-len(names) // columns)
    with new_figure(WIDTH, under + (rows + len(notes)) * _ROW + (0.08 if notes else 0), title) as card:
        for side, (name, values) in enumerate(zip(("Hidden", "Shown alone"), both, strict=True)):
            box = (side * (wide + gap), CAPTION, wide, tall)
            x_limits = (0.0, float(counts[-1]))
            axes = _chart(card, box, x_limits, (0, 1), "patches, the strongest first", "" if side else ylabel)
            caption(axes, name)
            for number, line in enumerate(values.T):
                axes.plot(counts, line, color=PALETTE[number % len(PALETTE)], linewidth=1.6, clip_on=False)
        for number, name in enumerate(names):
            row, column = divmod(number, columns)
            corner = column * WIDTH / columns, under + row * _ROW
            text = f"● {elide(name, WIDTH / columns - 0.3, SMALL)}"
            card.write(*corner, text, size=SMALL, color=PALETTE[number % len(PALETTE)], va="top")
        for number, line in enumerate(notes):
            card.write(0, under + (rows + number) * _ROW + 0.08, line, size=SMALL, color=INK, va="top")
    return card


def _mean(values: Floats) -> Floats:
    """Compute the line in a chart of heads: the mean over those that have a number."""
    counts = np.isfinite(values).sum(axis=1)
    return np.where(counts, np.nansum(values, axis=1) / np.maximum(counts, 1), np.nan)


def _chart(
    card: Sheet,
    box: tuple[float, float, float, float],
    x_limits: tuple[float, float],
    y_limits: tuple[float, float],
    xlabel: str,
    ylabel: str,
    whole: bool = False,
) -> Axes:
    """Make the axes that curves are drawn on, with ticks and names, in a box (left, top, width, height).

    The numbers and the name of the y axis lie within the box, those of the x axis below it.
    """
    left, top, width, height = box
    beside = _beside(y_limits, ylabel)
    axes = card.axes_at(left + beside, top, width - beside, height)
    tidy(axes)
    axes.grid(axis="y", color=TRACK, linewidth=0.8)  # faint lines to read values by
    x_ticks, y_ticks = round_ticks(*x_limits, count=12 if whole else 8, whole=whole), round_ticks(*y_limits, count=6)
    axes.set_xticks(list(x_ticks), list(x_ticks.values()))
    axes.set_yticks(list(y_ticks), list(y_ticks.values()))
    axes.set(xlim=x_limits, ylim=y_limits)
    axes.set_xlabel(xlabel, size=SMALL, color=MUTED, labelpad=3)
    card.write(left, top + height / 2, elide(ylabel, height, SMALL), size=SMALL, color=MUTED, rotation=90, va="center")
    return axes


def _beside(limits: tuple[float, float], ylabel: str) -> float:
    """Measure the inches to the left of a chart for its numbers and its name."""
    widest = max(text_width(text, SMALL) for text in round_ticks(*limits, count=6).values())
    return widest + 0.08 + (_ROW + 0.04 if ylabel else 0)


def _end(y: Floats) -> float:
    """Return the end of a chart's line: its last point that has a number."""
    finite = y[np.isfinite(y)]
    return float(finite[-1]) if len(finite) else 0.0


def _name_ends(axes: Axes, names: Sequence[str], ends: Sequence[float], colours: Sequence[str], tall: float) -> None:
    """Write the names of lines to the right of a chart, each as near to its line's end as the others let it."""
    low, high = axes.get_ylim()
    wanted = [float(np.clip((end - low) / (high - low), 0, 1)) * tall for end in ends]
    for name, height, colour in zip(names, spread(wanted, _ROW, tall), colours, strict=True):
        axes.annotate(
            name,
            (1, height / tall),
            xytext=(6, 0),
            xycoords="axes fraction",
            textcoords="offset points",
            size=SMALL,
            color=colour,
            va="center",
            annotation_clip=False,
        )


def spread(wanted: Sequence[float], gap: float, top: float) -> list[float]:
    """Move the names at the ends of a chart's lines at least `gap` apart, as near to the wanted heights as can be.

    >>> spread([1.0, 1.0, 5.0], gap=1.0, top=5.0)
    [0.5, 1.5, 5.0]
    """
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    # without the gaps, the problem is to make a sequence not decrease: neighbours that do are pooled at their mean
    pools: list[list[float]] = []
    for rank, i in enumerate(order):
        pools.append([wanted[i] - rank * gap])
        while len(pools) > 1 and np.mean(pools[-2]) > np.mean(pools[-1]):
            last = pools.pop()
            pools[-1] += last
    limit = max(top - (len(wanted) - 1) * gap, 0.0)
    level = [float(np.clip(np.mean(pool), 0.0, limit)) for pool in pools for _ in pool]
    heights = [0.0] * len(wanted)
    for rank, i in enumerate(order):
        heights[i] = level[rank] + rank * gap
    return heights
