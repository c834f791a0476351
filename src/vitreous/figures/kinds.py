"""The kinds of result that a view may compute (`Map`, `Matrix`, `Bars`, …): arrays and words, nothing drawn yet.

Each kind is drawn twice: by `figures/draw_by_kind.py` with matplotlib, and by the page's `kinds.js`. A result may hold
a value for every class, block, head or query token. `axes` names those leading axes; `at` says which index of each is
shown (None: the mean over it). A figure shows just that; the page begins there and lets the reader move.

Shapes:  n patches · t tokens · r c rows and columns of patches
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from vitreous.figures.checks import Floats
from vitreous.figures.selection import SCALES, At, Axis, MatrixScale, Names, fill_title, select
from vitreous.runtime.wording import format_number, percent


@dataclass(frozen=True)
class Map:
    """A heat map over the patches of the image: one value a patch, for every index of the axes."""

    values: Floats
    """`[*axes t]` or `[*axes n]`; `[*axes n 3]` in 0 to 1 for colours."""
    grid: tuple[int, int]
    title: str
    axes: tuple[Axis, ...] = ()
    at: At = field(default_factory=dict)
    names: Names = field(default_factory=dict)
    prefix: int = 0
    """How many values stand before the first patch: class and register tokens."""
    label: str = ""
    signed: bool = False
    limits: tuple[float, float] | None = None
    from_zero: bool = True
    """Whether the page's colours begin at zero, rather than at the smallest value."""
    panels: tuple[Axis, ...] = ()
    """Axes that a figure lays out side by side, and the page as tiles."""
    chosen: tuple[int, ...] | None = None
    """Which of the first panel axis to lay out; without it, all."""
    colours: bool = False
    over_image: bool = True
    """Whether a figure lays the heat over the image; if not, it shows crisp cells alone."""
    symmetric: bool = False
    """Whether values `[*axes n]` with queries are the same both ways, so that the page stores them once."""
    outliers: tuple[int, ...] = ()
    """Patches whose tokens are artifacts: outlined, and left out of the scale of colours."""
    outliers_from: int = 0
    """The first block in which they are, where `block` is an axis."""
    says: str = "Strongest at {peak}."
    """What the page says of the map it shows; `{peak}` is the strongest patch, `{place}` its row and
    column, `{value}` its value in percent, `{change}` what hiding it does."""
    points: str = "{patch}: {number} {label}, number {rank} of {count}."
    """What the page says of the patch that is pointed at."""
    ends: tuple[str, str] | None = None
    """Words for the two ends of the page's scale of colours; its numbers then stand beside the map's title."""

    kind = "map"

    def shown(self, keep: Sequence[Axis] = ()) -> Floats:
        """Return the values of a result if its kind is `Map`, as chosen: `[*keep r c]`, `[*keep r c 3]` for colours."""
        values = select(self.values, self.axes, self.at, keep, self.prefix)
        tail = (3,) if self.colours else ()
        patches = values if self.colours else values[..., self.prefix :]
        return patches.reshape(*values.shape[: len(keep)], *self.grid, *tail)

    def left_out(self, block: int | None = None) -> tuple[int, ...]:
        """List the patches without a colour in a result if its kind is `Map`, in one block or the one shown."""
        block = self.at.get("block") if block is None else block
        early = "block" in self.axes and block is not None and block < self.outliers_from
        return () if early else self.outliers

    @property
    def query_patch(self) -> tuple[int, int] | None:
        """Row and column of the query that a result of the kind `Map` shows, where it is a patch."""
        query = self.at.get("query") if "query" in self.axes or "query" in self.at else None
        if query is None or query < self.prefix:
            return None
        row, column = divmod(query - self.prefix, self.grid[1])
        return row, column

    @property
    def filled_title(self) -> str:
        return fill_title(self.title, self.at, self.names, self.panels)


@dataclass(frozen=True)
class Matrix:
    """A kind of result: values in rows and columns, such as attention from token to token, or a number for a head."""

    values: Floats
    """`[*axes rows columns]`"""
    title: str
    rows: str
    columns: str
    """What rows and columns count, such as `block` and `head`."""
    axes: tuple[Axis, ...] = ()
    at: At = field(default_factory=dict)
    names: Names = field(default_factory=dict)
    label: str = ""
    signed: bool = False
    scale: MatrixScale = "raw"
    """How values are transformed before they are shown."""
    prefix: int | None = None
    """For attention: how many tokens come before the first patch. A thin line parts them."""

    kind = "matrix"

    def shown(self) -> Floats:
        """Return the values of a result if its kind is `Matrix`, as chosen and scaled: `[rows columns]`."""
        values = select(self.values, self.axes, self.at)
        return SCALES[self.scale](values)

    @property
    def filled_title(self) -> str:
        return fill_title(self.title, self.at, self.names)


@dataclass(frozen=True)
class Dots:
    """A kind of result: a number for each head of each block, as dots over the blocks with their mean as a line."""

    values: Floats
    """`[blocks heads]`"""
    title: str
    label: str
    unit: str = ""
    ceiling: float | None = None
    """A dashed line: the largest value possible."""

    kind = "dots"


@dataclass(frozen=True)
class Bars:
    """A kind of result: named values as bars, in the order to be read."""

    names: Sequence[str]
    values: Floats
    title: str
    label: str = ""
    logits: Floats | None = None
    """Beside probabilities; then bars are shares of 1."""
    limits: tuple[float, float] | None = None
    indices: Sequence[int] | None = None
    """The class that each bar belongs to."""
    everything: Floats | None = None
    """The probability of every class, `[classes]`: a strip below the bars."""
    positions: Sequence[tuple[int, int]] | None = None
    """Block and head of each bar, where bars are heads: the page shows that head on a click."""

    kind = "bars"


@dataclass(frozen=True)
class Steps:
    """A kind of result: what the model would answer after each step, and how the probability of some classes grows."""

    steps: Sequence[str]
    answers: Sequence[str]
    probabilities: Floats
    """Of each step's answer: `[steps]`."""
    curves: Floats
    """`[class steps]`: the probability of each class of `names["class"]`; a figure shows the first."""
    names: Names
    title: str
    axes: tuple[Axis, ...] = ("class",)

    kind = "steps"


@dataclass(frozen=True)
class RemovedNumber:
    """What a number becomes while patches are hidden, or shown alone: part of a `Removal`."""

    name: str
    hidden: Sequence[float]
    """With so many patches hidden: `[steps]`."""
    alone: Sequence[float]
    """With only those patches shown."""
    random: Sequence[float]
    """With as many random patches hidden, mean over draws: `[class]`."""
    centre: Sequence[float]


@dataclass(frozen=True)
class Removal:
    """A kind of result: the answers while the strongest patches of a map are hidden, and while they are shown alone."""

    counts: Sequence[int]
    """How many patches: `[steps]`, from none to all."""
    order: np.ndarray
    """Patches, the strongest first: `[class n]`."""
    hidden: Floats
    """Probabilities with so many patches hidden: `[class steps answers]`."""
    alone: Floats
    """The same with only those patches shown."""
    best: Sequence[Sequence[Sequence[tuple[str, float]]]]
    """The likeliest class of all: `[class][hidden, alone][step]`."""
    names: Names
    """The `class` whose map it is."""
    answers: Sequence[int]
    """Indices of the classes that probabilities are given of; those in `names` come first."""
    labels: Sequence[str]
    """Their names."""
    chosen: Sequence[int]
    """The step that tells most, for each class."""
    random: Floats
    """The class's probability with as many random patches hidden, mean over draws: `[class]`."""
    centre: Floats
    """The same with patches at the centre."""
    passed: Sequence[bool]
    """Whether hiding the strongest patches costs more than hiding random and central ones."""
    colour: tuple[int, int, int]
    """What hidden patches are filled with."""
    title: str
    hide: str = "Hide the {count} strongest of {patches} patches, and “{class}” {moves} {now}."
    show: str = "Show only these {count} of {patches} patches, and “{class}” {moves} {now}."
    good: str = "Hiding {count} random ones leaves {random}, {count} at the centre {centre}: the map finds what counts."
    bad: str = (
        "Hiding {count} random ones leaves {random} on average, {count} at the centre {centre}, and one such choice "
        "does as well as the map: do not rely on it."
    )

    number: RemovedNumber | None = None
    """Of a model that gives numbers: the number that is asked about, which the sentences then name."""

    kind = "removal"

    def sentence(self) -> str:
        """Write the sentence that a result has if its kind is `Removal`: what hiding patches does to an answer.

        Its end says whether the map does better than random and central patches.
        """
        step, number = self.chosen[0], self.number
        of = self if number is None else number
        write = percent if number is None else (lambda value: format_number(value).replace("-", "−"))
        line = self.hidden[0, :, 0] if number is None else number.hidden
        whole, now = float(line[0]), float(line[step])
        direction = "rises" if now > whole else "falls"
        words = {
            "count": self.counts[step],
            "patches": self.counts[-1],
            "class": self.names["class"][0] if number is None else number.name,
            "moves": "stays at" if write(now) == write(whole) else f"{direction} from {write(whole)} to",
            "now": write(now),
            "random": write(float(of.random[0])),
            "centre": write(float(of.centre[0])),
        }
        return " ".join(text.format(**words) for text in (self.hide, self.good if self.passed[0] else self.bad))


@dataclass(frozen=True)
class LinePanel:
    """One chart of the result `Lines`: values `[steps]` by name."""

    title: str
    label: str
    series: Mapping[str, Floats]
    areas: Mapping[str, float]
    """Area under each line."""
    better: Literal["lower", "higher"]


@dataclass(frozen=True)
class Lines:
    """A kind of result: charts of named lines over 0 to 100 %, ranked by the area under them."""

    panels: tuple[LinePanel, LinePanel]
    title: str
    baselines: tuple[str, ...] = ()
    """Lines that any good one should beat: drawn in grey."""
    verdict: str = ""
    """What they say, in a sentence or two."""

    kind = "lines"


@dataclass(frozen=True)
class Tiles:
    """A kind of result: small images side by side, or one image cut into a grid of patches."""

    images: np.ndarray
    """`[n h w 3]` or `[n h w 1]` in 0 to 1; with `grid`, one image as uint8 `[1 H W 3]`."""
    title: str
    shares: Sequence[float] | None = None
    """The share of the variance that each explains."""
    grid: tuple[int, int] | None = None
    """Rows and columns that the image is cut into."""

    kind = "tiles"


@dataclass(frozen=True)
class Crop:
    """A kind of result: an image, the part of it that the model gets, and what the model gets."""

    image: np.ndarray
    """uint8 `[H W 3]`, perhaps smaller than the file."""
    box: tuple[float, float, float, float]
    """Left, top, right and bottom of that part as shares of the image's sides; beyond 0 to 1 the model sees black."""
    seen: np.ndarray
    """uint8 `[h w 3]`"""
    captions: tuple[str, str]
    title: str

    kind = "crop"


@dataclass(frozen=True)
class Mask:
    """A kind of result: the class of each pixel in colours over the image, and what the colours mean."""

    image: np.ndarray
    """What the model sees: uint8 `[H W 3]`."""
    colours: np.ndarray
    """The colour of each pixel's class: uint8 `[H W 3]`."""
    legend: Sequence[tuple[str, str, float]]
    """Name, colour (`#rrggbb`) and share of the pixels of each class that there is, the largest first."""
    indices: Sequence[int]
    """The classes of the legend, as the model counts."""
    title: str

    kind = "mask"


@dataclass(frozen=True)
class Part:
    """One box of the result `Diagram`: a part of a model and the shape that leaves it."""

    name: str
    detail: str
    shape: str
    """The shape that leaves it."""


@dataclass(frozen=True)
class Diagram:
    """A kind of result: the parts of a model in order, and a block's four parts: norm, attention, norm, MLP."""

    whole: Sequence[Part]
    block: tuple[Part, Part, Part, Part]
    title: str

    kind = "diagram"


@dataclass(frozen=True)
class StoryStep:
    """One step of a `Story`: its words, its equation, its shapes, and which drawing belongs to it."""

    title: str
    text: str
    equation: str
    shapes: tuple[tuple[str, str], ...]
    drawing: str


@dataclass(frozen=True)
class Story:
    """A kind of result: an image on its way through a model, step by step."""

    steps: Sequence[StoryStep]
    embedding: Floats
    """The first numbers of each patch times the embedding's matrix: `[n m]`."""
    positions: Floats | None
    """What is added to them: `[n m]`."""
    q: Floats
    k: Floats
    """Queries and keys of one head: `[t k]`."""
    added: Floats
    """Length of what attention and MLP add to each patch's token in that block: `[2 n]`."""
    prefix: int
    block: int
    title: str

    kind = "story"


@dataclass(frozen=True)
class Table:
    """A kind of result: rows of a label and a text."""

    rows: Sequence[tuple[str, str]]
    title: str

    kind = "table"


Result = Map | Matrix | Dots | Bars | Steps | Removal | Lines | Tiles | Crop | Mask | Diagram | Story | Table
Results = Mapping[str, Result]
"""Results by what sets them apart within the view; one alone has the name ''."""
