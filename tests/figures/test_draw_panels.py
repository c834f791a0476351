"""Panels of one moment: the colours are the numbers, nothing is written, and they are comparable."""

import numpy as np
import pytest
from drawn import assert_legible, photo

from vitreous.figures.curves import draw_distance_panel, draw_lines
from vitreous.figures.maps import draw_overlays
from vitreous.figures.panels import draw_filters_panel, draw_positions_panel, fill_columns
from vitreous.figures.position import COSINE


def inner(image, tile, tiles, cells):
    """One pixel for each cell of a tile of a panel, which has a line around it and clear pixels between."""
    height = (image.shape[0] + 1) / tiles[0]
    top, left = (round(number * height) + 2 for number in tile)
    step = int(height - 4) / cells
    middles = [round((i + 0.5) * step) for i in range(cells)]
    return image[top:, left:][np.ix_(middles, middles)]


def test_a_places_tile_lies_in_its_place_with_its_colours():
    similarity = np.random.default_rng(0).uniform(-1, 1, (2, 2, 4, 4))
    image = draw_positions_panel(similarity).axes[0].images[0].get_array()
    for row in range(2):
        for column in range(2):
            expected = COSINE.paint(similarity[row, column])
            np.testing.assert_array_equal(inner(image, (row, column), (2, 2), 4), expected)


def test_filters_are_drawn_in_reading_order_and_the_rest_is_clear():
    filters = np.zeros((5, 2, 2, 1), np.uint8)
    filters[:, ..., 0] = np.arange(5)[:, None, None] * 50
    image = draw_filters_panel(filters).axes[0].images[0].get_array()
    assert fill_columns(5) == 3
    height, width = image.shape[0] / 2, image.shape[1] / 3
    middles = [image[int((i // 3 + 0.25) * height), int((i % 3 + 0.25) * width)] for i in range(6)]
    assert [int(colour[0]) for colour in middles[:5]] == [0, 50, 100, 150, 200]
    assert middles[5][3] == 0


@pytest.mark.parametrize("count", range(1, 65))
def test_columns_are_never_more_than_the_filters_nor_a_tower(count):
    columns = fill_columns(count)
    assert 1 <= columns <= count
    assert -(-count // columns) <= columns


def test_overlays_are_one_under_the_other_in_the_pictures_proportions():
    pictures = np.stack([photo(20, 40)] * 3)
    bare = draw_overlays(pictures, None)
    boxes = [axes.get_window_extent() for axes in bare.axes]
    assert [box.y0 for box in boxes] == sorted((box.y0 for box in boxes), reverse=True)
    for box in boxes:
        assert box.width / box.height == pytest.approx(2, rel=0.02)
    heats = np.arange(12.0).reshape(3, 2, 2)
    over = draw_overlays(pictures, heats, limits=(0, 20))
    for axes, heat in zip(over.axes, heats, strict=True):
        np.testing.assert_array_equal(axes.images[1].get_array(), heat)
        assert (axes.images[1].norm.vmin, axes.images[1].norm.vmax) == (0, 20)


def test_maps_must_be_as_many_as_the_pictures():
    with pytest.raises(ValueError, match=r"heats must have shape \[2 rows columns\], got \[3 4 4\]"):
        draw_overlays(np.stack([photo()] * 2), np.ones((3, 4, 4)))


@pytest.mark.parametrize("limits", [(0, 1), (3.91, 4.02), (0, 1e-5), (0, 500)])
def test_a_distance_panel_can_be_read(limits):
    figure = draw_distance_panel(np.full((24, 16), np.mean(limits)), limits=limits)
    assert figure.axes[0].get_ylim() == limits
    assert_legible(figure)


@pytest.mark.parametrize("epochs", [1, 2, 40, 800])
def test_curves_of_half_a_pages_width_can_be_read(epochs):
    x = np.arange(1, epochs + 1)
    figure = draw_lines({"training": (x, 1 / x), "held out": (x, 1.1 / x)}, xlabel="epoch", ylabel="loss", width=3.9)
    assert figure.get_size_inches()[0] == pytest.approx(4.22, abs=0.01)
    assert_legible(figure)
