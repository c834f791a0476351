"""Draw heat maps of patches beside and over the image; grids of small maps, the image's patches and crop, colours.

A map of 14×14 patches has 14×14 crisp cells, alone and over the photograph: a smooth map would show values that nobody
computed. The photograph is grey, so that all colour is heat.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb, to_rgba
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from vitreous.figures.checks import Bytes, Floats, array_of, check_position, colours_of, image_of, labels_of
from vitreous.figures.colour_scale import SHORTEST_BAR, Scale, own_scales, scale_of
from vitreous.figures.style import (
    CAPTION,
    DPI,
    MISSING,
    PAPER,
    SMALL,
    TALLEST,
    WIDTH,
    caption,
    elide,
    frame,
    new_figure,
    outline,
    style,
)
from vitreous.figures.tiles import draw_tiles, mosaic
from vitreous.runtime.wording import percent

_GAP, _SPACE = 0.12, 0.06  # inches between panels: beside each other, and above the next one's caption
_NARROWEST = 0.8  # inches that a panel's caption has, however narrow the image
_TINY = 64  # pixels: smaller images are shown pixel by pixel
_STRIP = 140  # pixels of the width of an overlay
_FINEST = 900  # pixels of an image's longer side that a panel can show


def draw_map(
    image: ArrayLike,
    heat: ArrayLike,
    *,
    title: str = "",
    label: str = "",
    diverging: bool = False,
    limits: tuple[float, float] | None = None,
    from_zero: bool = True,
    clipped: bool = False,
    outliers: Sequence[int] = (),
) -> Figure:
    """Draw the image, the heat over it, and the heat alone with its scale: uint8 `[height width 3]`, `[rows columns]`.

    Patches in `outliers` are outlined, without colour, and left out of the scale; a `clipped` scale ends at the 97th
    percentile, as the page's does.

    >>> figure = draw_map(np.zeros((32, 32, 3), np.uint8), np.eye(4), title="Rollout", label="attention")
    >>> len(figure.axes)  # three panels and a colour bar
    4
    """
    image, heat = image_of(image), array_of("heat", heat, "rows columns")
    heat = _without(heat, outliers)
    scale, small = scale_of(heat, label, diverging, limits, from_zero=from_zero, clipped=clipped), _shrink(image)
    width, height = _panel(image, columns=3, room=scale.room, cells=heat.shape[1])
    slot = max(width, _NARROWEST) + _GAP
    with new_figure(2 * slot + width + scale.room, CAPTION + max(height, SHORTEST_BAR), title) as card:
        left, middle, right = (card.axes_at(i * slot, CAPTION, width, height) for i in range(3))
        _show(left, small, image.shape)
        _lay_over(middle, _grey(small, diverging), image.shape, heat, scale, outliers)
        right.imshow(heat, cmap=scale.colours, norm=scale.norm, interpolation="nearest", aspect="auto")
        for axes, name in ((left, "Image"), (middle, "Overlay"), (right, "Map")):
            caption(axes, name)
            frame(axes)
        _outline(middle, image.shape, heat.shape, outliers)
        scale.bar_beside(right)
    return card


def draw_maps(
    image: ArrayLike,
    heats: ArrayLike,
    names: Sequence[str],
    *,
    title: str = "",
    label: str = "",
    marked: tuple[int, int] | None = None,
    limits: tuple[float, float] | None = None,
    outliers: Sequence[Sequence[int]] = (),
) -> Figure:
    """Draw several maps `[n rows columns]` over one image under their names, each with its own scale or `limits`.

    `marked` outlines one patch in all of them; `outliers` are patches of each that are left out of its scale.

    >>> figure = draw_maps(np.zeros((32, 32, 3), np.uint8), np.ones((2, 4, 4)), ["head 0", "head 1"], marked=(0, 3))
    >>> len(figure.axes)  # two panels and a colour bar
    3
    """
    image, heats = image_of(image), array_of("heats", heats, "n rows columns")
    names = labels_of("names", names, len(heats))
    if marked is not None:
        check_position("marked", marked, heats.shape[1:])
    count, bar = len(heats), own_scales(label) if limits is None else scale_of(heats, label, limits=limits)
    left_out = list(outliers) or [()] * count
    columns = count if count <= 4 else 3 if count in (5, 6, 9) else 4 if count <= 16 else 6
    rows = -(-count // columns)
    tallest = min(3.2, max(TALLEST / rows - CAPTION, 0.5))
    width, height = _panel(image, columns, bar.room, cells=heats.shape[2], tallest=tallest)
    across, down = max(width, 0.4) + _GAP, height + _SPACE + CAPTION
    beside = next((k for k in range(1, rows) if k * down > 1.8), rows)  # rows that make the bar long enough
    tall = max(beside * down - _SPACE - CAPTION, SHORTEST_BAR)
    grey = _grey(_shrink(image), False)
    body = (columns - 1) * across + width + bar.room, max(rows * down - _SPACE, CAPTION + tall)
    with new_figure(*body, title) as card:
        for number, (heat, name) in enumerate(zip(heats, names, strict=True)):
            row, column = divmod(number, columns)
            axes = card.axes_at(column * across, row * down + CAPTION, width, height)
            caption(axes, elide(name, across - _GAP, SMALL))
            heat = _without(heat, left_out[number])
            scale = scale_of(heat, clipped=True) if limits is None else bar
            _lay_over(axes, grey, image.shape, heat, scale, left_out[number])
            _outline(axes, image.shape, heat.shape, left_out[number])
            if marked is not None:
                _outline(axes, image.shape, heat.shape, [marked[0] * heat.shape[1] + marked[1]])
            frame(axes)
            if number == columns - 1:  # one bar for all, to the right of the first rows
                bar.bar_beside(axes, tall)
    return card


def draw_overlay(image: ArrayLike, heat: ArrayLike | None = None) -> Figure:
    """Draw one heat map `[rows columns]` over its image `[height width 3]`, or that alone; no card and no margin.

    >>> len(draw_overlay(np.zeros((32, 32, 3), np.uint8), np.random.rand(4, 4)).axes)
    1
    """
    image = image_of(image)
    height, width, _ = image.shape
    pixels = _STRIP, max(round(_STRIP * height / width), 1)
    figure = Figure(figsize=((pixels[0] + 1e-6) / DPI, (pixels[1] + 1e-6) / DPI), dpi=100, facecolor="none")
    with style():
        axes = figure.add_axes((0, 0, 1, 1))
        if heat is None:
            _show(axes, _shrink(image), image.shape)
        else:
            values = array_of("heat", heat, "rows columns")
            _lay_over(axes, _grey(_shrink(image), False), image.shape, values, scale_of(values))
        axes.set_axis_off()
    return figure


def draw_grid(
    heats: ArrayLike,
    row_labels: Sequence[str],
    column_labels: Sequence[str],
    *,
    title: str = "",
    label: str = "",
    axis_names: tuple[str, str] = ("block", "head"),
    outliers: Sequence[Sequence[int]] = (),
) -> Figure:
    """Draw a grid of heat maps `[n m rows columns]`, such as every head's in every block, each with its own scale.

    `outliers` are patches of each row of tiles that are grey and left out of the scales.

    >>> len(draw_grid(np.random.rand(2, 3, 4, 4), ["0", "1"], ["0", "1", "2"]).axes)
    2
    """
    heats = array_of("heats", heats, "n m rows columns")
    left_out = list(outliers) or [()] * len(heats)
    kept = [[_without(heat, gone) for heat in row] for row, gone in zip(heats, left_out, strict=True)]
    tiles = [scale_of(heat, clipped=True).paint(heat) for row in kept for heat in row]
    rows = labels_of("row_labels", row_labels, heats.shape[0])
    columns = labels_of("column_labels", column_labels, heats.shape[1])
    painted = np.stack(tiles).reshape(*heats.shape, 4)
    return draw_tiles(painted, own_scales(label), rows, columns, axis_names, title)


def draw_patches(image: ArrayLike, grid: tuple[int, int], *, title: str = "") -> Figure:
    """Draw the image under the grid that heat maps have, and cut into its patches.

    `grid` is the rows and columns of patches, which are what the model reads.

    >>> len(draw_patches(np.zeros((32, 32, 3), np.uint8), grid=(4, 4)).axes)
    2
    """
    image = image_of(image)
    (rows, columns), (height, width, _) = grid, image.shape
    if rows < 1 or columns < 1 or height % rows or width % columns:
        raise ValueError(f"grid must divide the image's {height}×{width} pixels evenly, got {rows}×{columns}")
    down, across = height // rows, width // columns
    patches = image.reshape(rows, down, columns, across, 3).transpose(0, 2, 1, 3, 4)
    cut = mosaic(patches, gap=max(round(0.12 * min(down, across)), 1))
    panel_width, panel_height = _panel(image, columns=2, room=_GAP)
    slot = max(panel_width, 2.6) + 2 * _GAP
    with new_figure(2 * slot - 2 * _GAP, CAPTION + panel_height, title) as card:
        whole, apart = (card.axes_at(i * slot, CAPTION, panel_width, panel_height) for i in range(2))
        _show(whole, _shrink(image), image.shape)
        whole.hlines(np.arange(1, rows) * down - 0.5, -0.5, width - 0.5, color=PAPER, linewidth=0.5, alpha=0.7)
        whole.vlines(np.arange(1, columns) * across - 0.5, -0.5, height - 0.5, color=PAPER, linewidth=0.5, alpha=0.7)
        _show(apart, _shrink(cut), cut.shape, "auto")
        caption(whole, f"{height} × {width} pixels")
        caption(apart, f"{rows} × {columns} patches of {down} × {across} pixels")
        frame(whole)
        frame(apart)
        apart.spines[:].set_visible(False)
    return card


def draw_crop(
    image: ArrayLike,
    box: tuple[float, float, float, float],
    seen: ArrayLike,
    captions: tuple[str, str] = ("", ""),
    *,
    title: str = "",
) -> Figure:
    """Draw the image with the part that the model gets outlined, beside what it gets; `box` in shares of the sides.

    >>> len(draw_crop(np.zeros((30, 40, 3), np.uint8), (0.1, 0, 0.9, 1), np.zeros((16, 16, 3), np.uint8)).axes)
    2
    """
    image, seen = image_of(image), image_of(seen)
    (left_width, left_height), (right_width, right_height) = (
        _panel(each, columns=2, room=_GAP) for each in (image, seen)
    )
    slot = max(left_width, 2.6) + 2 * _GAP
    body = slot + max(right_width, 2.6), CAPTION + max(left_height, right_height)
    with new_figure(*body, title) as card:
        left = card.axes_at(0, CAPTION, left_width, left_height)
        right = card.axes_at(slot, CAPTION, right_width, right_height)
        _show(left, _shrink(image), image.shape)
        left.set(xlim=left.get_xlim(), ylim=left.get_ylim())
        height, width, _ = image.shape
        outline(
            left, box[0] * width - 0.5, box[1] * height - 0.5, (box[2] - box[0]) * width, (box[3] - box[1]) * height
        )
        _show(right, _shrink(seen), seen.shape)
        for axes, text in zip((left, right), captions, strict=True):
            caption(axes, elide(text, slot - 2 * _GAP, SMALL))
            frame(axes)
    return card


def draw_mask(
    image: ArrayLike, colours: ArrayLike, legend: Sequence[tuple[str, str, float]], *, title: str = ""
) -> Figure:
    """Draw the image beside its mask, uint8 `[H W 3]` each; `legend` has name, colour and share of each class.

    >>> image = np.zeros((30, 40, 3), np.uint8)
    >>> [text.get_text() for text in draw_mask(image, image, [("box", "#e69f00", 0.25)]).texts[-2:]]
    ['■', 'box 25.0 %']
    """
    image, colours = image_of(image), image_of(colours)
    mixed = ((image.astype(np.uint16) + colours) // 2).astype(np.uint8)
    width, height = _panel(image, columns=2, room=_GAP)
    columns, row = 3, 0.2  # of the legend, and inches of its row
    slot, under = max(width, 2.6) + 2 * _GAP, CAPTION + height + 0.12
    with new_figure(2 * slot - 2 * _GAP, under + -(-len(legend) // columns) * row, title) as card:
        for side, (each, text) in enumerate(((image, "what the model sees"), (mixed, "the class of each pixel"))):
            axes = card.axes_at(side * slot, CAPTION, width, height)
            _show(axes, _shrink(each), each.shape)
            caption(axes, text)
            frame(axes)
        wide = (2 * slot - 2 * _GAP) / columns
        for number, (name, colour, share) in enumerate(legend):
            left, top = number % columns * wide, under + number // columns * row
            card.write(left, top, "■", size=SMALL, color=colour, va="top")
            card.write(left + 0.16, top, elide(f"{name} {percent(share)}", wide - 0.3, SMALL), size=SMALL, va="top")
    return card


def draw_colours(image: ArrayLike, rgb: ArrayLike, *, title: str = "") -> Figure:
    """Draw the image beside one colour for each patch, such as three principal components: `[rows columns 3]` in 0..1.

    >>> len(draw_colours(np.zeros((32, 32, 3), np.uint8), np.random.rand(4, 4, 3)).axes)
    2
    """
    image, rgb = image_of(image), colours_of("rgb", rgb, "rows columns 3")
    rgb = np.where(np.isnan(rgb).any(axis=-1, keepdims=True), to_rgb(MISSING), rgb)
    width, height = _panel(image, columns=2, room=0, cells=rgb.shape[1])
    slot = max(width, 1.6) + _GAP
    with new_figure(2 * slot - _GAP, CAPTION + height, title) as card:
        left, right = (card.axes_at(i * slot, CAPTION, width, height) for i in range(2))
        _show(left, _shrink(image), image.shape)
        right.imshow(rgb, interpolation="nearest", aspect="auto")
        for axes, name in ((left, "Image"), (right, "Patches")):
            caption(axes, name)
            frame(axes)
    return card


def _panel(image: Bytes, columns: int, room: float, cells: int = 1, tallest: float = 3.4) -> tuple[float, float]:
    """Compute width and height in inches of each of `columns` maps in the image's proportions.

    A whole number of pixels for each of `cells` columns of patches makes all cells of a map equal.
    """
    height, width, _ = image.shape
    across = min((WIDTH - room - (columns - 1) * _GAP) / columns, 3.4, tallest * width / height)
    pixels = max(int(across * DPI), 1)
    across = (pixels - pixels % cells if pixels >= cells else pixels) / DPI
    return across, min(max(across * height / width, 0.05), tallest)


def _show(axes: Axes, image: Bytes, size: tuple[int, ...], interpolation: str = "") -> None:
    """Draw the image beside or under a heat map, perhaps a smaller copy, at the coordinates of its `size` in pixels."""
    smooth = _TINY <= max(size[:2]) <= _FINEST / 2  # pixels of a digit stay visible, those of a photograph do not
    interpolation = interpolation or ("bicubic" if smooth else "auto")
    axes.imshow(image, extent=_extent(size), aspect="auto", interpolation=interpolation)


def _without(heat: Floats, outliers: Sequence[int]) -> Floats:
    """Draw nothing in some patches of a heat map `[rows columns]`: they become nan."""
    kept = heat.copy()
    kept.flat[list(outliers)] = np.nan
    return kept


def _outline(axes: Axes, size: tuple[int, ...], grid: tuple[int, ...], patches: Sequence[int]) -> None:
    """Outline patches of a heat map's overlay."""
    high, wide = size[0] / grid[0], size[1] / grid[1]
    for row, column in (divmod(patch, grid[1]) for patch in patches):
        outline(axes, column * wide - 0.5, row * high - 0.5, wide, high)


def _lay_over(
    axes: Axes, grey: Bytes, size: tuple[int, ...], heat: Floats, scale: Scale, bare: Sequence[int] = ()
) -> None:
    """Draw the heat on the grey image: it covers more where there is more of it, and nothing at patches in `bare`."""
    _show(axes, grey, size)
    missing = np.isnan(heat)
    heat = np.where(missing, (scale.low + scale.high) / 2 if scale.diverging else scale.low, heat)
    share = np.clip((heat - scale.low) / (scale.high - scale.low), 0, 1)
    cover = 0.08 + 0.8 * np.abs(2 * share - 1) ** 0.6 if scale.diverging else 0.36 + 0.42 * share
    cover.flat[list(bare)], missing.flat[list(bare)] = 0.0, False
    look: dict[str, Any] = {"interpolation": "nearest", "aspect": "auto", "extent": _extent(size)}
    axes.imshow(heat, cmap=scale.colours, norm=scale.norm, alpha=cover, **look)
    if missing.any():
        axes.imshow(np.where(missing[..., None], to_rgba(MISSING), 0.0), **look)


def _shrink(image: Bytes) -> Bytes:
    """Resize a large image under a heat map to as many pixels as a panel can show."""
    height, width, _ = image.shape
    step = min(max(height, width) // _FINEST, height, width)
    if step < 2:
        return image
    diagonal = [image[i::step, i::step][: height // step, : width // step] for i in range(step)]  # of each block
    shrunk: Bytes = np.mean(diagonal, axis=0).astype(np.uint8)  # not all of its pixels, but enough to soften edges
    return shrunk


def _grey(image: Bytes, pale: bool) -> Bytes:
    """Take the colours out of the image under a heat map; pale under signed heat, which has white for zero."""
    grey = image @ np.array([0.299, 0.587, 0.114])
    grey = 0.65 * grey + 0.35 * 255 if pale else grey
    shown: Bytes = grey.astype(np.uint8)[..., None].repeat(3, axis=2)
    return shown


def _extent(size: tuple[int, ...]) -> tuple[float, float, float, float]:
    """Return the extent of an image under a heat map in pixel coordinates."""
    return -0.5, size[1] - 0.5, size[0] - 0.5, -0.5
