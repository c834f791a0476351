"""Two models beside each other on a study's page: what separates them class by class, and images they disagree on."""

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from PIL.Image import Image

from vitreous.comparison.table import capital, evidence
from vitreous.pages.comparison_charts import class_gaps, colour
from vitreous.pages.comparison_maps import draw_image, draw_look, what
from vitreous.pages.page import figure_image
from vitreous.weights.load import Model

Table = Mapping[str, Any]
Pair = Mapping[str, Any]
Models = Mapping[str, Model]
"""By label: the first seed's."""
OPPOSITE = {"one": "other", "other": "one"}
"""The two sides of a pair."""


def beside(table: Table, pair: Pair, models: Models, image: Callable[[int], Image]) -> str:
    """All that is shown of a pair, as HTML; `image` opens a test image by its number."""
    one, other = (escape(_names(table)[pair[side]]) for side in OPPOSITE)
    strips = "".join(_strip(table, side, pair, models, image) for side in OPPOSITE)
    return f"<h2>{one} and {other}</h2>{_classes(table, pair)}{strips}\n"


def _names(table: Table) -> dict[str, str]:
    return {row["model"]: row["name"] for row in table["rows"]}


def _classes(table: Table, pair: Pair) -> str:
    """Where one knows a class better, and where the other does."""
    names, classes = _names(table), table["classes"]
    accuracies = [classes["accuracy"][pair[side]] for side in OPPOSITE]
    gaps = class_gaps(classes["names"], *accuracies)
    right, left = (colour(list(names).index(pair[side])) for side in OPPOSITE)
    one, other = (escape(names[pair[side]]) for side in OPPOSITE)
    shown = "" if len(gaps) == len(classes["names"]) else f" The {len(gaps)} classes that differ most."
    return (
        f"<section><h3>Class by class</h3>{_bars(gaps, right, left)}"
        f"<p>The accuracy of {one} less that of {other} in points, over all seeds: to the right "
        f"where {one} knows a class better, to the left where {other} does.{shown}</p>"
        '<p class="beware">Short bars say little: a class has few images. '
        f"{escape(capital(evidence(pair)))}.</p></section>"
    )


def _bars(gaps: Sequence[tuple[str, float]], right: str, left: str) -> str:
    """Bars to both sides of a middle line, in the page's own type: sharp on a phone, and dark where the page is."""
    most = max((abs(gap) for _, gap in gaps), default=0.0) or 1.0
    rows = []
    for name, gap in gaps:
        wide = 50 * abs(gap) / most
        place = f"left: {50 - (wide if gap < 0 else 0):.2f}%; width: {wide:.2f}%"
        bar = f'<i><b style="{place}; background: {right if gap > 0 else left}"></b></i>'
        rows.append(f"<span>{escape(name)}</span>{bar}<span>{_signed(gap)}</span>")
    return f'<div class="bars">{"".join(rows)}</div>'


def _signed(points: float) -> str:
    return f"{points:+.1f}".replace("-", "−")


def _strip(table: Table, side: str, pair: Pair, models: Models, image: Callable[[int], Image]) -> str:
    """Images that one side gets right and the other wrong, each with what both say and where they look."""
    better, worse = pair[side], pair[OPPOSITE[side]]
    names, found = _names(table), pair["disagreements"][side]
    head = f"<h3>{escape(names[better])} is right and {escape(names[worse])} is wrong</h3>"
    every = "with every seed" if table["seeds"] > 1 else "with its one seed"
    images = "image" if found["count"] == 1 else "images"
    message = f"<p>{found['count']:,} {images} of {table['images']:,}, {every}."
    if not found["count"]:
        return f"<section>{head}{message}</p></section>"
    tiles = "".join(_tile(table, side, pair, models, each, image(each["image"])) for each in found["images"])
    kinds = {label: what(models[label]) for label in (better, worse)}
    alike = "Each map runs over all colours by itself."
    if kinds[better] != kinds[worse]:
        alike = "The two kinds of map are made differently, and each runs over all colours by itself."
    shown_first = "" if found["count"] == len(found["images"]) else " Shown are those they were surest of."
    return (
        f'<section>{head}{message}{shown_first}</p><div class="strips">{tiles}</div>'
        f"<p>Each time: the image and its class; what {escape(names[better])} says, with its map "
        f"({kinds[better]}); what {escape(names[worse])} says, with its own ({kinds[worse]}). Maps are of the "
        "first seed, for the class that it names.</p>"
        '<p class="beware">A map shows what speaks for an answer, not why one model is right. '
        f"{alike}</p></section>"
    )


def _tile(table: Table, side: str, pair: Pair, models: Models, each: Mapping[str, Any], shown: Image) -> str:
    """One image, then what the model that is right says of it, then the other."""
    names = _names(table)
    panels = [
        f"<figure>{figure_image(draw_image(models[pair[side]], shown), 'the image')}"
        f"<figcaption>{escape(_class(table, each['label']))}</figcaption></figure>"
    ]
    for key in (side, OPPOSITE[side]):
        label, (said, sure) = pair[key], each[key]
        drawn = draw_look(models[label], shown, said)
        alt = f"{what(models[label])} of {names[label]} for {_class(table, said)}"
        mark = "right" if said == each["label"] else "wrong"
        panels.append(
            f'<figure>{figure_image(drawn, alt)}<figcaption class="{mark}">{escape(_class(table, said))} '
            f"<small>{100 * sure:.0f}&nbsp;%</small></figcaption></figure>"
        )
    return f'<div class="three">{"".join(panels)}</div>'


def _class(table: Table, index: int) -> str:
    names = table["classes"]["names"]
    return names[index] if index < len(names) else f"class {index}"
