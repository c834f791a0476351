import numpy as np
import pytest
from drawn import texts_of
from hypothesis import given
from hypothesis import strategies as st

from vitreous.figures.curves import draw_faithfulness, draw_heads, spread
from vitreous.figures.style import encode


@given(st.lists(st.floats(0, 10), max_size=8), st.floats(0.1, 1))
def test_spread_names_keep_their_order_their_distance_and_the_frame(wanted, gap):
    places = spread(wanted, gap, top=10)
    order = np.argsort(wanted, kind="stable")
    ranked = np.array(places)[order]
    assert (np.diff(ranked) >= gap - 1e-6).all()
    assert all(-1e-6 <= place <= 10 + 1e-6 for place in places)


@given(st.lists(st.integers(0, 9), max_size=8, unique=True))
def test_names_that_are_apart_stay_where_they_are(wanted):
    assert spread(wanted, gap=1.0, top=9) == pytest.approx(wanted)


def test_every_head_is_a_dot_over_its_layer_and_the_line_is_their_mean():
    distances = np.array([[10.0, 30.0], [20.0, 60.0], [np.nan, 5.0]])
    axes = draw_heads(distances, label="mean attention distance (px)").axes[0]
    dots = axes.collections[0].get_offsets()
    assert dots[~np.ma.getmaskarray(dots)[:, 1]].tolist() == [[0, 10], [0, 30], [1, 20], [1, 60], [2, 5]]
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), [20, 40, 5])
    np.testing.assert_array_equal(axes.lines[0].get_xdata(), [0, 1, 2])


def test_the_unit_is_named():
    assert "mean attention distance (patches)" in {
        t.get_text() for t in texts_of(draw_heads([[1.0]], label="mean attention distance (patches)"))
    }


def test_uniform_attention_is_the_ceiling():
    axes = draw_heads(np.ones((4, 3)), label="entropy (nats)", ceiling=np.log(197)).axes[0]
    assert axes.lines[1].get_ydata() == pytest.approx([np.log(197)] * 2)
    assert axes.get_ylim()[1] > np.log(197)
    assert [text.get_text() for text in axes.texts] == ["mean of heads", "uniform attention"]
    assert len(draw_heads(np.ones((4, 3)), label="entropy (nats)").axes[0].lines) == 1


CURVES = {"good": ([0.9, 0.2, 0.1], [0.1, 0.8, 0.9]), "poor": ([0.9, 0.6, 0.1], [0.1, 0.3, 0.9])}


def test_deletion_is_on_the_left_and_insertion_on_the_right():
    left, right = draw_faithfulness(CURVES, {"good": (0.4, 0.6), "poor": (0.5, 0.4)}).axes
    for side, axes in enumerate((left, right)):
        for line, pair in zip(axes.lines, CURVES.values(), strict=True):
            np.testing.assert_array_equal(line.get_ydata(), pair[side])
            np.testing.assert_array_equal(line.get_xdata(), [0, 50, 100])
    assert left.texts[0].get_text().startswith("Deletion")
    assert left.bbox.x1 < right.bbox.x0


def test_methods_are_ranked_best_first_on_both_sides():
    figure = draw_faithfulness(CURVES, {"good": (0.41, 0.62), "poor": (0.53, 0.44)})
    words = [text.get_text() for text in figure.texts]
    ranked = [word for word in words if word.startswith("●") or word[:2] == "0."]
    assert ranked == ["● good", "0.410", "● poor", "0.530", "● good", "0.620", "● poor", "0.440"]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "draw",
    [
        lambda: draw_heads([[3.0]], label="x"),
        lambda: draw_heads([[np.nan, np.nan]], label="x", ceiling=1.0),
    ],
)
def test_one_layer_one_head_nothing_finite_is_drawn_without_a_warning(draw):
    assert encode(draw(), dpi=50).startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: draw_heads([1.0], label="x"), r"values must have shape \[blocks heads\], got \[1\]"),
        (lambda: draw_heads(np.ones((1, 2, 3)), label="x"), r"values must have shape \[blocks heads\], got \[1 2 3\]"),
        (lambda: draw_faithfulness(CURVES, {"good": (0, 0)}), r"same methods, got \['good', 'poor'\] and \['good'\]"),
        (
            lambda: draw_faithfulness({"a": ([1], [1])}, {"a": (0, 0)}),
            "deletion of a must have at least 2 points, .* got 1",
        ),
    ],
)
def test_wrong_input_is_refused_with_what_was_expected_and_what_came(draw, message):
    with pytest.raises(ValueError, match=message):
        draw()
