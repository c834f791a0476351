"""`draw`: draw any result of a view as a matplotlib figure, one function for each kind of result."""

from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from vitreous.figures.architecture import draw_architecture, draw_story
from vitreous.figures.bars import draw_lens, draw_predictions, draw_ranking, draw_table
from vitreous.figures.checks import Bytes
from vitreous.figures.curves import draw_faithfulness, draw_heads, draw_removal
from vitreous.figures.kinds import (
    Bars,
    Crop,
    Diagram,
    Dots,
    Lines,
    Map,
    Mask,
    Matrix,
    Removal,
    Result,
    Steps,
    Story,
    Table,
    Tiles,
)
from vitreous.figures.maps import draw_colours, draw_crop, draw_grid, draw_map, draw_maps, draw_mask, draw_patches
from vitreous.figures.matrix import draw_blocks_heads, draw_matrix, draw_similarity
from vitreous.figures.selection import select
from vitreous.figures.style import footer_of_figures
from vitreous.figures.tiles import draw_filters, draw_similarity_one, draw_similarity_tiles
from vitreous.runtime.wording import percent

ARTIFACTS = "Outlined or grey: artifact tokens, left out of the colours."
CLIPPED = "Colours end at the 97th percentile."


def draw(result: Result, image: Bytes | None = None, *, footer: str = "") -> Figure:
    """Draw a result; `image`, uint8 `[H W 3]`, is what heat is laid over; `footer` names model and image.

    >>> draw(Table([("patches", "196×768")], title="Shapes")).texts[0].get_text()
    'Shapes'
    """
    with footer_of_figures(footer):
        return _map(result, image) if isinstance(result, Map) else DRAWERS[type(result)](result)


def _map(result: Map, image: Bytes | None) -> Figure:
    """Choose how a `Map` is drawn: as heat over the image, or in a grid of its own."""
    title = result.filled_title
    if not result.over_image:
        if result.panels:
            return draw_similarity_tiles(result.shown(("query",)).reshape(*result.grid, *result.grid), title=title)
        return draw_similarity_one(result.shown(), result.query_patch or (0, 0), title=title)
    assert image is not None, "heat over an image needs the image"
    if result.colours:
        return draw_colours(image, result.shown(), title=title)
    if not result.panels:
        scale: dict[str, Any] = {"label": result.label, "diverging": result.signed, "limits": result.limits}
        clipped = result.signed and result.limits is None  # a few strong patches would pale all others
        scale |= {"from_zero": result.from_zero, "outliers": result.left_out(), "clipped": clipped}
        notes = [CLIPPED if clipped else "", ARTIFACTS if result.left_out() else ""]
        with footer_of_figures(" ".join(filter(None, notes))):
            return draw_map(image, result.shown(), title=title, **scale)
    with footer_of_figures(_notes(result)):
        return _panels(result, image, title)


def _notes(result: Map) -> str:
    """Choose the notes that are drawn under a `Map` of several panels."""
    notes = [] if result.limits else ["Own scale for each tile, from 0 to its 97th percentile."]
    if result.prefix and len(result.panels) == 1:
        before = "class token" if result.prefix == 1 else f"{result.prefix} tokens before the patches"
        notes.append(f"In percent: the share that goes to the {before}, which no tile shows.")
    blocks = range(len(result.shown(("block",)))) if "block" in result.panels else (None,)
    if any(result.left_out(block) for block in blocks):
        notes.append(ARTIFACTS)
    return " ".join(notes)


def _panels(result: Map, image: Bytes, title: str) -> Figure:
    """Choose how a `Map` of several panels is drawn: a grid of blocks × heads, or named panels of one axis."""
    heats = result.shown(result.panels)
    if len(result.panels) == 2:
        first, second = result.panels
        rows, columns = ([str(i) for i in range(count)] for count in heats.shape[:2])
        gone = [result.left_out(block) for block in range(len(rows))] if first == "block" else []
        return draw_grid(
            heats, rows, columns, title=title, label=result.label, axis_names=(first, second), outliers=gone
        )
    (axis,) = result.panels
    chosen = list(range(len(heats)) if result.chosen is None else result.chosen)
    names = [f"{axis} {i}{share}" for i, share in zip(chosen, _prefix_shares(result)[chosen], strict=True)]
    return draw_maps(
        image,
        heats[chosen],
        names,
        title=title,
        label=result.label,
        marked=result.query_patch,
        limits=result.limits,
        outliers=[result.left_out(i if axis == "block" else None) for i in chosen],
    )


def _prefix_shares(result: Map) -> np.ndarray:
    """Write the share of each panel's attention that is not on patches, to draw a result of the kind `Map`.

    It is that of the tokens before the patches, and is drawn after the panel's name.
    """
    values = select(result.values, result.axes, result.at, result.panels, result.prefix)
    if not result.prefix:
        return np.full(len(values), "", dtype=object)
    return np.array([f" · {percent(share)}" for share in values[..., : result.prefix].sum(axis=-1)], dtype=object)


def _matrix(result: Matrix) -> Figure:
    """Choose how a `Matrix` is drawn: as attention from token to token, heads of blocks, or similarity."""
    title, values = result.filled_title, result.shown()
    if result.prefix is not None:
        return draw_matrix(values, prefix=result.prefix, scale=result.scale, title=title)
    if (result.rows, result.columns) == ("block", "head"):
        return draw_blocks_heads(values, title=title, label=result.label, diverging=result.signed)
    return draw_similarity(values, [str(i) for i in range(len(values))], title=title)


def _bars(result: Bars) -> Figure:
    """Choose how `Bars` are drawn: as predictions if they have logits, else as a ranking."""
    if result.logits is not None:
        classes: dict[str, Any] = {"indices": result.indices, "everything": result.everything}
        return draw_predictions(result.names, result.values, result.logits, title=result.title, **classes)
    return draw_ranking(result.names, result.values, title=result.title, label=result.label, limits=result.limits)


def _steps(result: Steps) -> Figure:
    """Draw the kind of result `Steps`: the logit lens, with the first class's probability."""
    target, label = result.curves[0], result.names["class"][0]
    return draw_lens(result.steps, result.answers, result.probabilities, target, label, title=result.title)


def _removal(result: Removal) -> Figure:
    """Draw the kind of result `Removal`: up to five answers, with the first map's patches hidden or shown alone."""
    shown = min(5, len(result.labels))
    hidden, alone = result.hidden[0, :, :shown], result.alone[0, :, :shown]
    return draw_removal(result.counts, hidden, alone, result.labels[:shown], title=result.title, note=result.sentence())


def _lines(result: Lines) -> Figure:
    """Choose how `Lines` are drawn: deletion beside insertion, method by method."""
    deletion, insertion = result.panels
    return draw_faithfulness(
        {name: (deletion.series[name], insertion.series[name]) for name in deletion.series},
        {name: (deletion.areas[name], insertion.areas[name]) for name in deletion.areas},
        title=result.title,
        plain=result.baselines,
        note=result.verdict,
    )


def _tiles(result: Tiles) -> Figure:
    """Choose how `Tiles` are drawn: as an image cut into patches if they have a grid, else as filters."""
    if result.grid is not None:
        return draw_patches(result.images[0], result.grid, title=result.title)
    return draw_filters(result.images, explained=result.shares, title=result.title)


DRAWERS: dict[type, Callable[[Any], Figure]] = {
    Matrix: _matrix,
    Dots: lambda dots: draw_heads(dots.values, label=dots.label, ceiling=dots.ceiling, title=dots.title),
    Bars: _bars,
    Steps: _steps,
    Removal: _removal,
    Lines: _lines,
    Tiles: _tiles,
    Crop: lambda crop: draw_crop(crop.image, crop.box, crop.seen, crop.captions, title=crop.title),
    Mask: lambda mask: draw_mask(mask.image, mask.colours, mask.legend, title=mask.title),
    Diagram: draw_architecture,
    Story: lambda story: draw_story(story.steps, title=story.title),
    Table: lambda table: draw_table(table.rows, title=table.title),
}
"""Kind of result → how it is drawn; a `Map` is laid over the image."""
