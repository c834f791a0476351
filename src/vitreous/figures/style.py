"""The look of every figure: colours, fonts, axes, frames, text measured and cut, `Sheet` (the white card); saving it.

A figure here is a `Sheet`: opaque, so that it reads on dark pages too, padded, and measured in inches from the top left
corner of its body, so that panels, captions and bars line up to the pixel. `encode` turns it into PNG, SVG or PDF
bytes, the same bytes every time.
"""

import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, Literal

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, get_font_names
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from matplotlib.textpath import text_to_path

WIDTH = 6.88
"""Inches of a full-width body; with the padding a card is 7.2 inches, 1440 pixels, wide."""
TALLEST = 9.5
"""Inches that a body should stay below, where its parts can be made smaller."""
PADDING = 0.16
"""Inches of paper around the body."""
DPI = 200
"""Pixels for an inch: twice what an 800 pixel wide page shows, for sharp screens."""
CAPTION = 0.2
"""Inches above a panel for the line that names it."""

PAPER, INK, MUTED, FAINT, TRACK = "#ffffff", "#1f2328", "#59636e", "#d1d6dc", "#eef0f3"
"""Background; text; secondary text; frames and grid lines; the empty part of a bar."""
MISSING = "#c4c8cd"
"""Where there is no number."""
PALETTE = ("#0072b2", "#d55e00", "#00896a", "#a8538c", "#8a6d00", "#4a4e57", "#5b3fb5", "#9b2226")
"""Colours of things that differ in kind: Okabe and Ito's, some of them darker, to be read as text on white."""
ACCENT, PALE = PALETTE[0], "#a9c9de"
"""The thing to look at, and its likes beside it."""
ABOVE, BELOW = "#b2182b", "#2166ac"
"""More than zero and less, as in `DIVERGING`."""


HEAT = matplotlib.colormaps["inferno"].with_extremes(bad=MISSING)
"""Amounts: dark is little, bright is much."""
DIVERGING = matplotlib.colormaps["RdBu_r"].with_extremes(bad=MISSING)
"""Signed numbers: blue below zero, white at zero, red above."""

TITLE, BODY, SMALL, TINY = 10.5, 9.0, 8.0, 7.0
"""Type sizes in points. A card is at most 7.2 inches wide, so 9 points are 14 pixels on an 800 pixel page."""

MONO = "DejaVu Sans Mono"
_HAN = ("Noto Sans CJK SC", "Noto Sans CJK JP", "Source Han Sans SC", "PingFang SC", "Hiragino Sans", "Microsoft YaHei")


@lru_cache(maxsize=1)
def families() -> list[str]:
    """List the fonts: the one that comes with matplotlib and, for what it lacks, those that this computer has."""
    installed = set(get_font_names())
    return ["DejaVu Sans", *(name for name in _HAN if name in installed)]


def line_height(size: float) -> float:
    """Measure the inches from one line of text to the next."""
    return 1.3 * size / 72


@lru_cache(maxsize=4096)
def text_width(text: str, size: float = BODY, weight: str = "normal", family: str = "") -> float:
    """Measure the inches that one line of text takes.

    >>> 0.6 < text_width("Hello world") < 0.8
    True
    """
    font = FontProperties(family=family or families(), size=size, weight=weight)
    return float(text_to_path.get_text_width_height_descent(text, font, False)[0]) / 72


def elide(text: str, width: float, size: float = BODY, weight: str = "normal", family: str = "") -> str:
    """Cut one line of text with an ellipsis to fit `width` inches, between words where that loses little.

    >>> elide("Maltese dog, Maltese terrier, Maltese", 1.6)
    'Maltese dog, Maltese…'
    """
    text = " ".join(text.split())
    if text_width(text, size, weight, family) <= width:
        return text
    low, high = 0, len(text)  # the longest beginning that fits lies in low..high-1
    while high - low > 1:
        middle = (low + high) // 2
        fits = text_width(text[:middle] + "…", size, weight, family) <= width
        low, high = (middle, high) if fits else (low, middle)
    cut = text[:low]
    space = cut.rfind(" ")
    if not text[low].isspace() and space > 0.6 * low:
        cut = cut[:space]
    return cut.rstrip(" ,;:-–(") + "…"


def wrap(
    text: str, width: float, size: float = BODY, weight: str = "normal", lines: int = 2, family: str = ""
) -> list[str]:
    """Break text between words into at most `lines` lines of `width` inches; the last is elided.

    >>> wrap("Attention of the class token", 1.5, lines=2)
    ['Attention of the class', 'token']
    """
    words = text.split()
    broken: list[str] = []
    while words and len(broken) < lines - 1:
        count = len(words)
        while count > 1 and text_width(" ".join(words[:count]), size, weight, family) > width:
            count -= 1
        broken.append(elide(" ".join(words[:count]), width, size, weight, family))
        words = words[count:]
    return [*broken, elide(" ".join(words), width, size, weight, family)] if words else broken


_LOCK = threading.RLock()  # matplotlib's settings belong to the whole process: one drawing at a time


@contextmanager
def style() -> Iterator[None]:
    """Apply the figures' matplotlib settings inside the `with`, whatever the user's own are.

    >>> with style():
    ...     matplotlib.rcParams["font.size"]
    9.0
    """
    with _LOCK, matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(
            {
                "font.family": families(),
                "font.size": BODY,
                "text.color": INK,
                "text.parse_math": False,  # a class name may hold dollar signs
                "text.hinting": "none",  # words are as wide in pixels as they were measured
                "axes.edgecolor": FAINT,
                "axes.linewidth": 0.6,
                "axes.labelcolor": MUTED,
                "axes.labelsize": SMALL,
                "svg.hashsalt": "vitreous",
                "pdf.fonttype": 42,
            }
        )
        yield


_FOOTER: ContextVar[tuple[str, ...]] = ContextVar("footer", default=())


@contextmanager
def footer_of_figures(*texts: str) -> Iterator[None]:
    """Add lines as a footer to the style of figures: each card made inside the `with` has them at its bottom.

    They stand above those of a `with` around it.
    """
    token = _FOOTER.set((*filter(None, texts), *_FOOTER.get()))
    try:
        yield
    finally:
        _FOOTER.reset(token)


class Sheet(Figure):
    """A white card with a title; its body is measured in inches from the body's top left corner."""

    def __init__(self, width: float, height: float, title: str = "") -> None:
        notes = [line for text in _FOOTER.get() for line in wrap(text, max(width, 3.0), TINY, lines=3)]
        below = 0.08 + len(notes) * line_height(TINY) if notes else 0.0
        width = max(width, min(0.6 * text_width(title, TITLE, "bold"), WIDTH))  # two lines hold the title
        lines = wrap(title, width, TITLE, "bold", lines=2)
        self.top = PADDING + (len(lines) * line_height(TITLE) + 0.08 if lines else 0)
        size = [(round(side * DPI) + 1e-6) / DPI for side in (width + 2 * PADDING, self.top + height + below + PADDING)]
        super().__init__(figsize=(size[0], size[1]), dpi=100, facecolor=PAPER)
        for number, line in enumerate(lines):
            top = PADDING - self.top + number * line_height(TITLE)
            self.write(0, top, line, size=TITLE, weight="bold", va="top")
        for number, line in enumerate(notes):
            down = height + 0.08 + number * line_height(TINY)
            self.write(0, down, line, size=TINY, color=MUTED, va="top")

    def axes_at(self, left: float, top: float, width: float, height: float) -> Axes:
        """Add axes to a card in the figures' style, their corner at (left, top) of its body, in inches.

        All four sides are snapped to whole pixels.
        """
        left, top, width, height = (round(side * DPI) / DPI for side in (left + PADDING, top + self.top, width, height))
        across, down = self.get_size_inches()
        axes = self.add_axes((left / across, 1 - (top + height) / down, width / across, height / down))
        axes.set_facecolor("none")
        return axes

    def write(self, left: float, top: float, text: str, **options: Any) -> Text:
        """Write text on a card in the style's fonts, at (left, top) of its body in inches."""
        across, down = self.get_size_inches()
        return self.text((left + PADDING) / across, 1 - (top + self.top) / down, text, **options)

    def rule(self, top: float) -> None:
        """Rule a thin line across a `Sheet`, the card whose style all figures share."""
        across, down = self.get_size_inches()
        height = 1 - (top + self.top) / down
        ends = [PADDING / across, 1 - PADDING / across]
        self.add_artist(Line2D(ends, [height, height], color=FAINT, linewidth=0.6))

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        """Show a card in a notebook as it is, without pyplot."""
        across, down = self.get_size_inches()
        return encode(self), {"width": round(across * 100), "height": round(down * 100)}


@contextmanager
def new_figure(width: float, height: float, title: str = "") -> Iterator[Sheet]:
    """Make an empty card in the style of all figures, which is filled inside the `with`.

    Its body has `width` × `height` inches, under the title.

    >>> with new_figure(WIDTH, 2.0, "Title") as card:
    ...     axes = card.axes_at(0, 0, 2.0, 2.0)
    >>> round(float(card.get_size_inches()[0]), 3)
    7.2
    """
    with style():
        yield Sheet(width, height, title)


def frame(axes: Axes) -> None:
    """Style an image or a heat map: a thin line around it, without ticks."""
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set(visible=True, color=FAINT, linewidth=0.6)


def tidy(axes: Axes) -> None:
    """Style a chart's axes: small muted ticks and a base line."""
    for side, spine in axes.spines.items():
        spine.set(visible=side == "bottom", color=FAINT, linewidth=0.8)
    axes.tick_params(length=0, labelsize=SMALL, labelcolor=MUTED, pad=4)
    axes.set_axisbelow(True)


def caption(axes: Axes, text: str) -> Text:
    """Write the caption above a panel in the style of all figures, flush with its left edge."""
    return axes.annotate(
        text,
        (0, 1),
        xytext=(0, 3.5),
        xycoords="axes fraction",
        textcoords="offset points",
        size=SMALL,
        color=MUTED,
        va="bottom",
        annotation_clip=False,
    )


def outline(axes: Axes, left: float, top: float, width: float, height: float) -> None:
    """Style the outline of a square so that it shows on any colour: white on a wider dark line."""
    for colour, linewidth in ((INK, 2.2), (PAPER, 1.0)):
        square = Rectangle((left, top), width, height, fill=False, edgecolor=colour, linewidth=linewidth, clip_on=False)
        axes.add_patch(square).set_joinstyle("miter")


def encode(figure: Figure, format: Literal["png", "svg", "pdf"] = "png", dpi: int = DPI) -> bytes:
    """Encode a figure, under the style's settings, as PNG, SVG or PDF bytes.

    Equal figures give equal bytes, for no date or random name goes in.

    >>> with new_figure(1.0, 1.0) as card:
    ...     _ = card.write(0, 0, "hello")
    >>> encode(card)[1:4], encode(card, "pdf")[:4]
    (b'PNG', b'%PDF')
    """
    undated: dict[str, dict[str, Any]] = {
        "png": {"Software": "vitreous"},
        "svg": {"Creator": "vitreous", "Date": None},
        "pdf": {"Creator": "vitreous", "Producer": "matplotlib", "CreationDate": None},
    }
    if format not in undated:
        raise ValueError(f"format must be one of {', '.join(undated)}, got {format!r}")
    buffer = io.BytesIO()
    with style():
        figure.savefig(buffer, format=format, dpi=dpi, metadata=undated[format])
    return buffer.getvalue()
