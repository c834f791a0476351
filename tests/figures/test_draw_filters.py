import numpy as np
import pytest

from vitreous.figures.filters import draw_filters


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
    assert [text.get_text() for text in axes.texts if text.get_text()] == [str(i + 1) for i in range(28)]


def test_grey_filters_are_grey():
    filters = np.random.default_rng(0).random((3, 2, 5, 1))
    for image, given in zip(draw_filters(filters).axes[0].images, filters, strict=True):
        np.testing.assert_array_equal(image.get_array(), given.repeat(3, axis=-1))


def test_explained_variance_stands_beside_the_number():
    texts = [text.get_text() for text in draw_filters(np.ones((2, 4, 4, 3)), explained=[0.25, 0.031]).axes[0].texts]
    assert texts == ["1", "25.0 %", "2", "3.1 %"]


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: draw_filters(np.ones((4, 4, 3))), r"filters must have shape \[n height width 3\], got \[4 4 3\]"),
        (lambda: draw_filters(np.ones((2, 4, 4, 2))), r"filters must have shape \[n height width 3\], got \[2 4 4 2\]"),
        (lambda: draw_filters(np.full((2, 4, 4, 3), -1.0)), "filters must be scaled to 0..1, got -1 to -1"),
        (lambda: draw_filters(np.ones((2, 4, 4, 3)), explained=[1]), "explained must hold 2 shares, .*, got 1"),
        (lambda: draw_filters(np.ones((2, 4, 4, 3)), columns=0), "columns must be at least 1, got 0"),
    ],
)
def test_wrong_input_is_refused_with_what_was_expected_and_what_came(draw, message):
    with pytest.raises(ValueError, match=message):
        draw()
