import numpy as np
import pytest

from vitreous.figures.matrix import draw_blocks_heads, draw_matrix, draw_similarity


def bar_label(figure):
    return next(text.get_text() for text in figure.texts if text.get_rotation() == 90)


def test_the_matrix_is_drawn_row_0_on_top():
    matrix = np.random.default_rng(0).random((5, 5))
    axes = draw_matrix(matrix).axes[0]
    np.testing.assert_array_equal(axes.images[0].get_array(), matrix)
    assert axes.get_ylim() == (4.5, -0.5)
    assert axes.get_xlim() == (-0.5, 4.5)
    assert (axes.get_ylabel(), axes.get_xlabel()) == ("query token", "key token")


@pytest.mark.parametrize(("prefix", "places"), [(0, []), (1, [0.5]), (5, [4.5]), (9, [])])
def test_a_line_parts_the_prefix_tokens_from_the_patches(prefix, places):
    lines = draw_matrix(np.ones((9, 9)), prefix=prefix).axes[0].lines
    across = [line.get_ydata()[0] for line in lines if line.get_ydata()[0] == line.get_ydata()[1]]
    down = [line.get_xdata()[0] for line in lines if line.get_xdata()[0] == line.get_xdata()[1]]
    assert across == places
    assert down == places


def test_the_bar_says_how_the_numbers_were_transformed():
    assert bar_label(draw_matrix(np.eye(3))) == "attention weight"
    assert "log" in bar_label(draw_matrix(np.eye(30), scale="log"))


def test_tokens_are_counted_in_even_steps():
    axes = draw_matrix(np.ones((197, 197))).axes[0]
    for labels, places in (
        (axes.get_xticklabels(), axes.get_xticks()),
        (axes.get_yticklabels(), axes.get_yticks()),
    ):
        assert [int(text.get_text()) for text in labels] == places.tolist() == list(range(0, 197, 20))


def test_each_number_stands_in_its_own_cell():
    values = np.array([[0.11, -0.22, 0.33], [0.44, 0.55, np.nan]])
    axes = draw_blocks_heads(values, diverging=True).axes[0]
    np.testing.assert_array_equal(axes.images[0].get_array(), values)
    written = {text.get_position(): text.get_text() for text in axes.texts}
    assert written == {(0, 0): "0.11", (1, 0): "−0.22", (2, 0): "0.33", (0, 1): "0.44", (1, 1): "0.55", (2, 1): ""}
    norm = axes.images[0].norm
    assert norm.vmin == -norm.vmax == -0.55


def test_numbers_are_written_only_where_they_fit():
    many, few = np.random.default_rng(0).random((48, 25)), np.random.default_rng(0).random((4, 3))
    assert len(draw_blocks_heads(many).axes[0].texts) == 0
    assert len(draw_blocks_heads(few).axes[0].texts) == 12


def test_numbers_contrast_with_their_cells():
    low, high = draw_blocks_heads([[0.0, 1.0]]).axes[0].texts
    assert low.get_color() == "#ffffff"
    assert high.get_color() != "#ffffff"


def test_similarity_has_its_labels_in_order_and_runs_from_0_to_1():
    axes = draw_similarity(np.eye(3) * 0.5, ["embedding", "block 0", "block 1"]).axes[0]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["embedding", "block 0", "block 1"]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["embedding", "block 0", "block 1"]
    assert (axes.images[0].norm.vmin, axes.images[0].norm.vmax) == (0, 1)


def test_similarity_beyond_0_to_1_is_not_cut_off():
    norm = draw_similarity([[1, -0.5], [-0.5, 1]], ["a", "b"]).axes[0].images[0].norm
    assert (norm.vmin, norm.vmax) == (-0.5, 1)


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: draw_matrix(np.ones((3, 4))), r"matrix must have shape \[tokens tokens\], got \[3 4\]"),
        (lambda: draw_matrix(np.ones((3, 3)), prefix=4), "prefix must be a number of tokens from 0 to 3, got 4"),
        (lambda: draw_matrix(np.ones((3, 3)), scale="cube"), "scale must be one of raw, log, layer-norm, got 'cube'"),
        (lambda: draw_blocks_heads(np.ones(3)), r"values must have shape \[blocks heads\], got \[3\]"),
        (lambda: draw_similarity(np.ones((2, 3)), ["a", "b"]), r"values must have shape \[n n\], got \[2 3\]"),
        (lambda: draw_similarity(np.ones((2, 2)), ["a"]), "labels must be 2 strings, got 1"),
    ],
)
def test_wrong_input_is_refused_with_what_was_expected_and_what_came(draw, message):
    with pytest.raises(ValueError, match=message):
        draw()
