"""Draw a model as boxes and arrows: its parts from image to answer, one block enlarged, and the steps of its story."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from vitreous.figures.kinds import Diagram, Part, StoryStep
from vitreous.figures.style import (
    ACCENT,
    BODY,
    FAINT,
    INK,
    MONO,
    MUTED,
    PAPER,
    SMALL,
    TINY,
    TRACK,
    WIDTH,
    elide,
    line_height,
    new_figure,
    text_width,
    wrap,
)

_BOX, _STEP = 0.42, 0.64  # inches: the height of a box, and from one box to the next
_WIDE, _NARROW = 2.6, 1.5  # inches: a box of the whole, a box of a block


def draw_architecture(diagram: Diagram) -> Figure:
    """Draw the parts of a model with the shape that leaves each; beside them one block, pre-norm and post-norm.

    >>> image, norm, attention, mlp = (Part(name, "", "5 × 8") for name in ("image", "norm", "attention", "MLP"))
    >>> figure = draw_architecture(Diagram([image], (norm, attention, norm, mlp), "Model"))
    >>> [text.get_text() for text in figure.axes[0].texts][:2]
    ['image', '5 × 8']
    """
    rows = max(len(diagram.whole), 7)
    height = 0.3 + rows * _STEP
    with new_figure(WIDTH, height, diagram.title) as card:
        axes = card.axes_at(0, 0, WIDTH, height)
        axes.set(xlim=(0, WIDTH), ylim=(height, 0))
        axes.set_axis_off()
        for number, part in enumerate(diagram.whole):
            top = 0.3 + number * _STEP
            _box(axes, 0, top, _WIDE, part, strong="blocks" in part.name)
            if number + 1 < len(diagram.whole):
                _arrow(axes, (_WIDE / 2, top + _BOX), (_WIDE / 2, top + _STEP))
        norm, attention, second, mlp = diagram.block
        left, right = 3.2, 5.12
        first = [norm, attention, Part("+", "", ""), second, mlp, Part("+", "", "")]
        last = [attention, Part("+", "", ""), norm, mlp, Part("+", "", ""), second]
        _block(axes, left, "A block here: pre-norm", first, [(0, 2), (3, 5)])
        _block(axes, right, "The first Transformer: post-norm", last, [(0, 1), (3, 4)], faint=True)
    return card


def draw_story(steps: Sequence[StoryStep], *, title: str = "") -> Figure:
    """Draw the steps of a model's story: numbered, each with its sentence, its equation and its shapes.

    >>> step = StoryStep("Image", "The image is cropped.", "x", (("image", "224 × 224 × 3"),), "image")
    >>> [text.get_text() for text in draw_story([step]).texts][:2]
    ['0', 'Image']
    """
    left, middle = 0.3, 4.2
    texts = [wrap(step.text, middle - left - 0.2, SMALL, lines=4) for step in steps]
    rows = [max(line_height(BODY) + len(lines) * line_height(SMALL), 3 * line_height(SMALL)) + 0.16 for lines in texts]
    with new_figure(WIDTH, sum(rows), title) as card:
        top = 0.0
        for number, (step, lines, row) in enumerate(zip(steps, texts, rows, strict=True)):
            if number:
                card.rule(top - 0.06)
            card.write(0, top, str(number), color=ACCENT, weight="bold", va="top")
            card.write(left, top, step.title, weight="bold", va="top")
            for i, line in enumerate(lines):
                down = top + line_height(BODY) + i * line_height(SMALL)
                card.write(left, down, line, size=SMALL, color=MUTED, va="top")
            card.write(middle, top, elide(step.equation, WIDTH - middle, SMALL), size=SMALL, color=INK, va="top")
            for i, (name, shape) in enumerate(step.shapes, start=1):
                down = top + i * line_height(SMALL) + 0.03
                card.write(middle, down, name, size=TINY, color=MUTED, va="top")
                card.write(WIDTH, down, shape, size=TINY, color=INK, va="top", ha="right", family=MONO)
            top += row
    return card


def _block(
    axes: Axes, left: float, title: str, parts: Sequence[Part], jumps: Sequence[tuple[int, int]], faint: bool = False
) -> None:
    """Draw a block's parts one below the other; a jump leads past those between its two ends."""
    middle = left + _NARROW / 2
    for number, line in enumerate(wrap(title, _NARROW + 0.2, SMALL, lines=2)):
        axes.text(left, 0.02 + number * line_height(SMALL), line, size=SMALL, color=MUTED if faint else INK, va="top")
    start = 0.62
    for number, part in enumerate(parts):
        top = start + number * _STEP
        if part.name == "+":
            axes.text(middle, top + _BOX / 2, "+", size=12, ha="center", va="center", color=INK, weight="bold")
        else:
            _box(axes, left, top, _NARROW, part, faint=faint)
        if number + 1 < len(parts):
            _arrow(axes, (middle, top + _BOX), (middle, top + _STEP))
    for begin, end in jumps:
        top, bottom = start + begin * _STEP - 0.11, start + end * _STEP + _BOX / 2
        side = left + _NARROW + 0.16
        axes.plot([middle, side, side], [top, top, bottom], color=ACCENT, linewidth=1.1, solid_capstyle="round")
        _arrow(axes, (side, bottom), (middle + 0.12, bottom), ACCENT)


def _box(
    axes: Axes, left: float, top: float, width: float, part: Part, *, strong: bool = False, faint: bool = False
) -> None:
    """Draw one part of a model as a box with its name."""
    edge = ACCENT if strong else FAINT
    shape = FancyBboxPatch(
        (left, top), width, _BOX, "round,pad=0,rounding_size=0.06", fc=PAPER if faint else TRACK, ec=edge
    )
    axes.add_patch(shape).set_linewidth(1.2 if strong else 0.8)
    wide = width - 0.16
    room = wide - text_width(part.shape, TINY) - 0.1 if width == _WIDE else wide
    lines = (_BOX / 2, None) if not part.detail else (0.14, 0.3)
    look: dict[str, Any] = {"va": "center_baseline", "color": MUTED if faint else INK}
    axes.text(left + 0.08, top + lines[0], elide(part.name, room, SMALL, "bold"), size=SMALL, weight="bold", **look)
    if width == _WIDE:
        axes.text(
            left + width - 0.08, top + lines[0], part.shape, size=TINY, color=MUTED, ha="right", va="center_baseline"
        )
    if lines[1] is not None:
        detail = elide(part.detail, wide, TINY)
        axes.text(left + 0.08, top + lines[1], detail, size=TINY, color=MUTED, va="center_baseline")


def _arrow(axes: Axes, begin: tuple[float, float], end: tuple[float, float], colour: str = MUTED) -> None:
    """Draw an arrow from one part of a model to the next."""
    axes.add_patch(
        FancyArrowPatch(
            begin, end, arrowstyle="-|>", mutation_scale=6, color=colour, linewidth=0.9, shrinkA=0, shrinkB=0
        )
    )
