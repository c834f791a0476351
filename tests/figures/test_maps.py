import io

import numpy as np
import pytest
from drawn import colours_at, photo, tiles_of
from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle
from PIL import Image

from vitreous.figures.colour_scale import scale_of
from vitreous.figures.maps import draw_colours, draw_grid, draw_map, draw_maps, draw_overlay, draw_patches
from vitreous.figures.style import HEAT, MISSING, encode

GREY = np.round(np.array(to_rgb(MISSING)) * 255)


def hot(rows, columns, row, column):
    heat = np.zeros((rows, columns))
    heat[row, column] = 1
    return heat


def warmth(colour):
    return colour.max() - colour.min()  # a grey image under no heat has none


def test_the_three_panels_show_what_was_given():
    image, heat = photo(40, 60), np.random.default_rng(0).random((4, 6))
    left, middle, right, _ = draw_map(image, heat, label="attention").axes
    np.testing.assert_array_equal(left.images[0].get_array(), image)
    np.testing.assert_array_equal(middle.images[1].get_array(), heat)
    np.testing.assert_array_equal(right.images[0].get_array(), heat)


def test_row_0_is_on_top_and_column_0_on_the_left():
    figure = draw_map(photo(40, 60), hot(4, 6, 0, 1))
    _, middle, right, _ = figure.axes
    bright, dark = colours_at(figure, right, (1, 0), (1, 3))
    assert bright.min() > 150
    assert dark.max() < 10
    cells = [(10 * column + 5, 10 * row + 5) for row in range(4) for column in range(6)]
    assert np.argmax([warmth(colour) for colour in colours_at(figure, middle, *cells)]) == 1


def test_the_overlay_covers_the_image_exactly():
    for height, width in ((32, 32), (20, 50), (2000, 1000)):
        _, middle, *_ = draw_map(photo(height, width), np.ones((3, 7))).axes
        assert {tuple(image.get_extent()) for image in middle.images} == {(-0.5, width - 0.5, height - 0.5, -0.5)}
        assert middle.get_xlim() == (-0.5, width - 0.5)
        assert middle.get_ylim() == (height - 0.5, -0.5)


def test_panels_have_the_images_proportions():
    figure = draw_map(photo(40, 60), np.ones((4, 6)))
    for axes in figure.axes[:3]:
        box = axes.bbox
        assert box.height / box.width == pytest.approx(40 / 60, rel=0.02)


@pytest.mark.parametrize("place", [(3, 2), (0, 0), (5, 0), (5, 5)], ids=str)
def test_a_single_hot_cell_is_drawn_at_its_own_value_inside_and_in_a_corner(place):
    grey = np.full((60, 60, 3), 128, np.uint8)
    figure = draw_overlay(grey, hot(6, 6, *place))
    pixels = np.asarray(Image.open(io.BytesIO(encode(figure))).convert("RGB")).astype(int)
    side = pixels.shape[0] / 6
    one = 0.78 * np.array(HEAT(1.0)[:3]) * 255 + 0.22 * 128
    none = 0.36 * np.array(HEAT(0.0)[:3]) * 255 + 0.64 * 128
    for row in range(6):
        for column in range(6):
            cell = pixels[round(row * side) + 2 : round((row + 1) * side) - 2, round(column * side) + 2 :]
            cell = cell[:, : round(side) - 4].reshape(-1, 3)
            wanted = one if (row, column) == place else none
            assert np.abs(cell - wanted).max() <= 2, (row, column)  # all of the cell, not its middle alone


def test_outliers_are_grey_and_left_out_of_the_scale():
    heat = np.full((4, 4), 0.5)
    heat[0, 0] = 100
    figure = draw_map(np.zeros((40, 40, 3), np.uint8), heat, outliers=[0])
    overlay, alone = figure.axes[1].images[1], figure.axes[2].images[0]
    assert overlay.norm.vmax == alone.norm.vmax == 1.0  # a constant map: its constant is in the middle
    assert np.isnan(alone.get_array().filled(np.nan)[0, 0])
    assert len(figure.axes[1].patches) == 2  # an outline is two squares


def test_signed_heat_is_centred_at_zero():
    norm = draw_map(photo(), [[-0.5, 2.0]], diverging=True).axes[2].images[0].norm
    assert (norm.vmin, norm.vmax) == (-2, 2)


def test_limits_are_kept():
    norm = draw_map(photo(), [[0.1, 0.2]], limits=(0, 1)).axes[2].images[0].norm
    assert (norm.vmin, norm.vmax) == (0, 1)


def test_a_missing_number_is_grey_in_its_cell_and_nowhere_else():
    heat = np.full((4, 4), 0.7)
    heat[0, 0], heat[2, 1] = 0, np.nan
    figure = draw_map(photo(), heat)
    _, middle, right, _ = figure.axes
    for axes, size in ((middle, 8), (right, 1)):
        places = (np.array([(1, 2), (1, 1), (2, 2), (1, 3), (0, 2)]) + 0.5) * size - 0.5
        missing = [np.abs(colour - GREY).max() <= 1 for colour in colours_at(figure, axes, *places)]
        assert missing == [True, False, False, False, False]


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "heat", [[[0.3]], np.zeros((2, 3)), np.full((3, 2), 1 / 6), np.full((2, 2), np.nan), [[np.inf, 1]], [[1e-9, 3e-9]]]
)
@pytest.mark.parametrize("diverging", [False, True])
def test_degenerate_maps_are_drawn_without_a_warning(heat, diverging):
    encode(draw_map(photo(), heat, label="x", diverging=diverging), dpi=50)


def test_a_constant_map_says_what_its_constant_is():
    norm = draw_map(photo(), np.full((2, 2), 0.25)).axes[2].images[0].norm
    assert norm.vmin < 0.25 < norm.vmax


def test_maps_come_in_order_with_their_titles():
    heats = np.random.default_rng(0).random((5, 3, 3))
    figure = draw_maps(photo(), heats, [f"head {i}" for i in range(5)])
    panels = [axes for axes in figure.axes if len(axes.images) == 2]
    for axes, heat, name in zip(panels, heats, ["head 0", "head 1", "head 2", "head 3", "head 4"], strict=True):
        np.testing.assert_array_equal(axes.images[1].get_array(), heat)
        assert [text.get_text() for text in axes.texts] == [name]
    lefts, tops = zip(*[(round(axes.bbox.x0), round(axes.bbox.y1)) for axes in panels], strict=True)
    assert lefts[:2] == lefts[3:]
    assert tops[0] == tops[2] > tops[3] == tops[4]


def test_each_map_has_a_scale_of_its_own():
    figure = draw_maps(photo(), np.stack([np.eye(3), 5 * np.eye(3)]), ["a", "b"])
    assert [axes.images[1].norm.vmax for axes in figure.axes if len(axes.images) == 2] == [1, 5]
    assert "high" in [text.get_text() for text in figure.axes[-1].get_yticklabels()]


def test_the_marked_square_is_around_its_patch_in_every_map():
    figure = draw_maps(photo(30, 80), np.ones((2, 3, 4)), ["a", "b"], marked=(2, 1))
    for axes in figure.axes[:2]:
        squares = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
        assert {(s.get_x(), s.get_y(), s.get_width(), s.get_height()) for s in squares} == {(19.5, 19.5, 20, 10)}


@pytest.mark.parametrize("grid", [(4, 4), (3, 5)])
def test_every_tiny_map_stands_in_its_row_and_column_in_its_colours(grid):
    heats = np.random.default_rng(0).random((2, 3, *grid)) * np.arange(1, 7).reshape(2, 3, 1, 1)
    axes = draw_grid(heats, ["a", "b"], ["c", "d", "e"]).axes[0]
    painted = [[scale_of(h, clipped=True).paint(h) for h in row] for row in heats]
    np.testing.assert_array_equal(tiles_of(axes, *grid), painted)
    assert [text.get_text() for text in axes.get_yticklabels()] == ["a", "b"]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["c", "d", "e"]
    assert axes.get_ylim()[0] > axes.get_ylim()[1]


def test_many_layers_are_made_small_enough_for_a_page():
    figure = draw_grid(np.ones((48, 2, 4, 4)), [str(i) for i in range(48)], ["0", "1"])
    assert figure.get_size_inches()[1] < 11
    assert len(figure.axes[0].get_yticklabels()) == 48


def test_patches_are_the_images_own():
    image = photo(12, 20)
    whole, apart = draw_patches(image, (3, 4)).axes
    cut = apart.images[0].get_array()
    assert cut.shape == (12 + 2, 20 + 3, 3)
    np.testing.assert_array_equal(cut[5:9, 12:17], image[4:8, 10:15])  # row 1, column 2
    assert (cut[4] == 225).all()
    lines = [{point for segment in group.get_segments() for point in segment[:, axis]} for axis, group in
             zip((1, 0), whole.collections, strict=True)]  # fmt: skip
    assert lines == [{3.5, 7.5}, {4.5, 9.5, 14.5}]


def test_colours_are_shown_as_they_are():
    rgb = np.random.default_rng(0).random((2, 3, 3))
    rgb[1, 1] = np.nan
    _, right = draw_colours(photo(), rgb).axes
    shown = right.images[0].get_array()
    np.testing.assert_array_equal(shown[0], rgb[0])
    np.testing.assert_allclose(shown[1, 1], to_rgb(MISSING))


def test_bytes_are_colours_too():
    rgb = np.array([[[0, 51, 255]]], np.uint8)
    np.testing.assert_allclose(draw_colours(photo(), rgb).axes[1].images[0].get_array(), [[[0, 0.2, 1]]])


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (
            lambda: draw_map(photo() / 255, np.eye(2)),
            r"image must be uint8 .*\[height width 3\], got float64 of shape \[32 32 3\]",
        ),
        (lambda: draw_map(photo()[..., 0], np.eye(2)), r"image must have shape \[height width 3\], got \[32 32\]"),
        (lambda: draw_map(photo(), np.zeros((1, 2, 2))), r"heat must have shape \[rows columns\], got \[1 2 2\]"),
        (
            lambda: draw_map(photo(), np.zeros((0, 2))),
            r"heat must have shape \[rows columns\], none of them 0, got \[0 2\]",
        ),
        (lambda: draw_map(photo(), [["a"]]), "heat must hold real numbers, got <U1"),
        (lambda: draw_map(photo(), np.eye(2), limits=(1, 1)), r"limits must be .*, got \(1, 1\)"),
        (lambda: draw_maps(photo(), np.zeros((2, 2, 2)), ["a"]), "names must be 2 strings, got 1"),
        (lambda: draw_maps(photo(), np.zeros((2, 2, 2)), "ab"), "names must be 2 strings, got 'ab'"),
        (lambda: draw_maps(photo(), np.zeros((1, 2, 3)), ["a"], marked=(2, 0)), r"marked must be .* 2×3, got \(2, 0\)"),
        (lambda: draw_grid(np.zeros((2, 2, 2, 2)), ["a", "b"], ["a"]), "column_labels must be 2 strings, got 1"),
        (
            lambda: draw_grid(np.zeros((2, 2)), ["a", "b"], ["a"]),
            r"heats must have shape \[n m rows columns\], got \[2 2\]",
        ),
        (lambda: draw_patches(photo(32, 30), (4, 4)), "grid must divide the image's 32×30 pixels evenly, got 4×4"),
        (lambda: draw_colours(photo(), np.zeros((2, 2, 4))), r"rgb must have shape \[rows columns 3\], got \[2 2 4\]"),
        (lambda: draw_colours(photo(), np.full((2, 2, 3), 7.0)), "rgb must be scaled to 0..1, got 7 to 7"),
    ],
)
def test_wrong_input_is_refused_with_what_was_expected_and_what_came(draw, message):
    with pytest.raises(ValueError, match=message):
        draw()


def test_an_overlay_has_the_images_proportions_and_the_maps_numbers():
    (bare,) = draw_overlay(photo(20, 40)).axes
    box = bare.get_window_extent()
    assert box.width / box.height == pytest.approx(2, rel=0.02)
    heat = np.arange(4.0).reshape(2, 2)
    (over,) = draw_overlay(photo(20, 40), heat).axes
    np.testing.assert_array_equal(over.images[1].get_array(), heat)
    assert (over.images[1].norm.vmin, over.images[1].norm.vmax) == (0, 3)
