"""`Scale`: how numbers become colours, the round ticks, and the slim colour bar beside a map that says how."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vitreous.figures.checks import Bytes, Floats
from vitreous.figures.style import DIVERGING, FAINT, HEAT, MUTED, SMALL, TINY, elide, line_height, text_width

_BAR, _GAP, _TICK = 0.09, 0.1, 0.05  # inches: the bar, the space before it, the space before its numbers
SHORTEST_BAR = 1.1
"""Inches that a bar has at least, to hold its label, even beside a map that is lower."""
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Scale:
    """A colour scale: colours from `low` to `high`, and what the numbers are."""

    low: float
    high: float
    label: str = ""
    diverging: bool = False
    ends: tuple[str, str] | None = None
    """Words at the two ends in place of numbers, where every map has a scale of its own."""

    @property
    def colours(self) -> Colormap:
        return DIVERGING if self.diverging else HEAT

    @property
    def norm(self) -> Normalize:
        return Normalize(self.low, self.high)

    def paint(self, values: Floats) -> Bytes:
        """Turn numbers `[…]` into colours `[… 4]` by a colour scale; grey where there is none."""
        painted: Bytes = self.colours(self.norm(np.ma.masked_invalid(values)), bytes=True)
        return painted

    @property
    def ticks(self) -> dict[float, str]:
        """Places on the colour bar and the words there."""
        if self.ends:
            return dict(zip((self.low, self.high), self.ends, strict=True))
        ticks = round_ticks(self.low, self.high)
        if min(ticks, default=self.low) - self.low > 0.15 * (self.high - self.low):  # else nothing says where it begins
            ticks = dict(zip((self.low, *ticks), short_numbers([_two_digits(self.low), *ticks]), strict=True))
        return ticks

    @property
    def room(self) -> float:
        """Inches that the colour bar with its numbers and label takes to the right of a map."""
        widest = max(text_width(tick, TINY) for tick in self.ticks.values())
        return _GAP + _BAR + _TICK + widest + (0.06 + line_height(SMALL) if self.label else 0)

    def bar_beside(self, axes: Axes, height: float | None = None) -> Axes:
        """Draw the colour bar to the right of `axes` from their top down: `height` inches, or as tall as they are.

        Beside a very tall map a bar of that height would say no more than a short one.
        """
        figure = axes.figure
        assert isinstance(figure, Figure)
        across, down = figure.get_size_inches()
        box = axes.get_position()
        height = height or (3.0 if box.height * down > 6.5 else max(box.height * down, SHORTEST_BAR))
        bottom = box.y1 - height / down
        bar = figure.add_axes((box.x1 + _GAP / across, bottom, _BAR / across, height / down))
        steps = np.linspace(self.low, self.high, 256)[:, None]
        bar.imshow(
            steps, cmap=self.colours, norm=self.norm, origin="lower", aspect="auto", extent=(0, 1, self.low, self.high)
        )
        bar.set_xticks([])
        ticks = self.ticks
        bar.set_yticks(list(ticks), list(ticks.values()))
        bar.yaxis.tick_right()
        bar.tick_params(length=0, pad=_TICK * 72, labelsize=TINY, labelcolor=MUTED)
        for tick, text in zip(ticks, bar.get_yticklabels(), strict=True):  # the end ones stay within the bar's height
            share = (tick - self.low) / (self.high - self.low)
            text.set_verticalalignment("bottom" if share < 0.03 else "top" if share > 0.97 else "center_baseline")
        for spine in bar.spines.values():
            spine.set(color=FAINT, linewidth=0.6)
        if self.label:
            label = elide(self.label, height, SMALL)
            left = box.x1 + (self.room - line_height(SMALL) / 2) / across
            figure.text(
                left, (bottom + box.y1) / 2, label, size=SMALL, color=MUTED, rotation=90, ha="center", va="center"
            )
        return bar


def scale_of(
    values: Floats,
    label: str = "",
    diverging: bool = False,
    limits: tuple[float, float] | None = None,
    *,
    from_zero: bool = True,
    clipped: bool = False,
) -> Scale:
    """Choose the colour scale that shows all of `values`: from zero, or even on both sides of zero if diverging.

    Without `from_zero` it begins at the smallest. `clipped` ends it where the page does, at the 97th percentile, so
    that a few large values do not darken all others.

    >>> scale_of(np.array([2.0, 3.0])).low, scale_of(np.array([-2.0, 1.0]), diverging=True).high
    (0.0, 2.0)
    """
    if limits is not None:
        low, high = limits
        if not low < high:
            raise ValueError(f"limits must be (low, high) with low < high, got {limits}")
        return Scale(float(low), float(high), label, diverging)
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    if clipped and finite.size:
        sizes = np.sort(np.abs(finite) if diverging else finite)
        high = float(sizes[int(0.97 * (finite.size - 1))]) or high
        low = max(low, -high) if diverging else low
    largest = max(abs(low), abs(high))
    if largest < 1e-300:  # all zero, or no number at all
        low, high = (-1.0, 1.0) if diverging else (0.0, 1.0)
    elif diverging:
        low, high = -largest, largest
    elif high - low < 1e-6 * largest:  # constant: the middle colour, zero being at one end
        low, high = min(0.0, 2 * low), max(0.0, 2 * high)
    elif low > 0 and (from_zero or low < 0.05 * high):  # nearly from zero: say so
        low = 0.0
    return Scale(low, high, label, diverging)


def own_scales(label: str = "") -> Scale:
    """Make the colour bar of maps that each have a scale of their own, from zero to their 97th percentile."""
    return Scale(0.0, 1.0, label, ends=("0", "high"))


def _two_digits(value: float) -> float:
    """Round the beginning of a colour bar to two digits.

    >>> _two_digits(0.002649)
    0.0026
    """
    return float(f"{value:.1e}")


def round_ticks(low: float, high: float, *, count: int = 4, whole: bool = False) -> dict[float, str]:
    """Choose about `count` round ticks of a colour bar from `low` to `high`, and how each is written.

    >>> round_ticks(0.0, 0.031)
    {0.0: '0', 0.01: '0.01', 0.02: '0.02', 0.03: '0.03'}
    """
    slack = 1e-9 * (high - low)
    steps = [1, 2, 5, 10] if whole else [1, 2, 2.5, 5, 10]
    found = MaxNLocator(count, steps=steps, integer=whole, min_n_ticks=1).tick_values(low, high)
    ticks = [float(tick) for tick in found if low - slack <= tick <= high + slack]
    return dict(zip(ticks, short_numbers(ticks), strict=True))


def short_numbers(values: Sequence[float]) -> list[str]:
    """Write a colour bar's numbers as short as they can be while their steps show, all with the same decimals.

    >>> short_numbers([0, 0.005, 0.01])
    ['0', '0.005', '0.010']
    >>> short_numbers([-2e-5, 0, 2e-5])
    ['−2×10⁻⁵', '0', '2×10⁻⁵']
    """
    largest = max((abs(value) for value in values), default=0.0)
    exponent = int(np.floor(np.log10(largest))) if largest else 0
    if -4 <= exponent < 6:
        exponent = 0
    scaled = [value / 10.0**exponent for value in values]
    distinct = sorted(set(scaled))
    step = min((b - a for a, b in pairwise(distinct)), default=max(map(abs, scaled), default=1.0))
    decimals = next((d for d in range(10) if all(abs(round(v, d) - v) <= 0.01 * step for v in scaled)), 9)
    power = f"×10{str(exponent).translate(_SUPERSCRIPT)}" if exponent else ""
    texts = (f"{value:z.{decimals}f}" for value in scaled)
    return ["0" if not value else (text + power).replace("-", "−") for value, text in zip(scaled, texts, strict=True)]
