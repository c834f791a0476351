import numpy as np
import pytest
from drawn import tiles_of

from vitreous.figures.style import DIVERGING
from vitreous.figures.tiles import draw_filters, draw_similarity_one, draw_similarity_tiles


def test_filters_come_in_reading_order_with_their_numbers():
    filters = np.random.default_rng(0).random((28, 4, 4, 3))
    axes = draw_filters(filters).axes[0]
    corners = []
    for image, given in zip(axes.images, filters, strict=True):
        np.testing.assert_array_equal(image.get_array(), given)
        left, _, _, top = image.get_extent()
        corners.append((round(top, 3), round(left, 3)))
    assert corners == sorted(corners)  # down the rows, to the right in each
    assert len({top for top, _ in corners}) == 4
    assert axes.get_ylim()[0] > axes.get_ylim()[1]  # inches count downwards
    assert [text.get_text() for text in axes.texts if text.get_text()] == [str(i) for i in range(28)]


def test_grey_filters_are_grey():
    filters = np.random.default_rng(0).random((3, 2, 5, 1))
    for image, given in zip(draw_filters(filters).axes[0].images, filters, strict=True):
        np.testing.assert_array_equal(image.get_array(), given.repeat(3, axis=-1))


def test_explained_variance_stands_beside_the_number():
    texts = [text.get_text() for text in draw_filters(np.ones((2, 4, 4, 3)), explained=[0.25, 0.031]).axes[0].texts]
    assert texts == ["0", "25.0 %", "1", "3.1 %"]


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: draw_filters(np.ones((4, 4, 3))), r"filters must have shape \[n height width 3\], got \[4 4 3\]"),
        (lambda: draw_filters(np.ones((2, 4, 4, 2))), r"filters must have shape \[n height width 3\], got \[2 4 4 2\]"),
        (lambda: draw_filters(np.full((2, 4, 4, 3), -1.0)), "filters must be scaled to 0..1, got -1 to -1"),
        (lambda: draw_filters(np.ones((2, 4, 4, 3)), explained=[1]), "explained must hold 2 shares, .*, got 1"),
    ],
)
def test_wrong_input_is_refused_with_what_was_expected_and_what_came(draw, message):
    with pytest.raises(ValueError, match=message):
        draw()


@pytest.mark.parametrize("grid", [(3, 5), (14, 14), (1, 1)])
def test_each_tile_shows_its_own_places_similarities(grid):
    similarity = np.random.default_rng(0).uniform(-1, 1, (*grid, *grid))
    axes = draw_similarity_tiles(similarity).axes[0]
    np.testing.assert_array_equal(tiles_of(axes, *grid), DIVERGING((similarity + 1) / 2, bytes=True))
    assert axes.get_ylim()[0] > axes.get_ylim()[1]


def test_large_grids_are_one_image():
    figure = draw_similarity_tiles(np.ones((37, 37, 37, 37)))
    assert [len(axes.images) for axes in figure.axes] == [1, 1]
    assert figure.axes[0].images[0].get_array().shape[0] >= 37 * 37


@pytest.mark.slow
def test_the_own_place_is_outlined():
    similarity = np.random.default_rng(0).random((3, 5))
    axes = draw_similarity_one(similarity, (1, 4)).axes[0]
    np.testing.assert_array_equal(axes.images[0].get_array(), similarity)
    assert {(s.get_x(), s.get_y(), s.get_width(), s.get_height()) for s in axes.patches} == {(3.5, 0.5, 1, 1)}
    assert (axes.images[0].norm.vmin, axes.images[0].norm.vmax) == (-1, 1)


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: draw_similarity_tiles(np.ones((2, 3, 3, 2))), r"\[rows columns rows columns\], got \[2 3 3 2\]"),
        (lambda: draw_similarity_one(np.ones(4), (0, 0)), r"similarity must have shape \[rows columns\], got \[4\]"),
        (lambda: draw_similarity_one(np.ones((2, 2)), (0, 2)), r"position must be .* 2×2, got \(0, 2\)"),
    ],
)
def test_wrong_similarities_are_refused_with_what_was_expected_and_what_came(draw, message):
    with pytest.raises(ValueError, match=message):
        draw()
