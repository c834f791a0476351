import numpy as np
import pytest
from drawn import texts_of

from vitreous.figures.bars import LIMIT, Panel, draw_lens, draw_predictions, draw_ranking, draw_speeds, draw_table
from vitreous.figures.style import ABOVE, ACCENT, BELOW, MISSING, PALE, encode


def words(figure):
    return [text.get_text() for text in texts_of(figure)]


def heights(figure, *names):
    """How far up the card each text stands."""
    return [next(text.get_position()[1] for text in figure.texts if text.get_text() == name) for name in names]


def test_the_first_class_is_on_top_and_has_the_accent():
    figure = draw_predictions(["tabby", "lynx", "web"], [0.7, 0.2, 0.0003], [9.5, -1.25, 0.0], title="Cat")
    bars = figure.axes[0].containers[1]
    assert [bar.get_width() for bar in bars] == [0.7, 0.2, 0.0003]
    assert [bar.get_y() + bar.get_height() / 2 for bar in bars] == pytest.approx([0, 1, 2])
    assert figure.axes[0].get_ylim() == (2.5, -0.5)
    tabby, lynx, web = heights(figure, "tabby", "lynx", "web")
    assert tabby > lynx > web
    assert [bar.get_facecolor()[:3] != bars[1].get_facecolor()[:3] for bar in bars] == [True, False, False]
    assert {"70.0 %", "20.0 %", "< 0.1 %", "9.50", "−1.25", "0.00"} <= set(words(figure))


def test_bars_are_shares_of_the_whole():
    assert draw_predictions(["a"], [0.2], [1.0]).axes[0].get_xlim() == (0, 1)


def test_names_with_dollars_and_line_breaks_are_words():
    figure = draw_predictions(["cash $5\nand $10"], [1.0], [1.0])
    text = next(text for text in figure.texts if "cash" in text.get_text())
    assert text.get_text() == "cash $5 and $10"
    assert not text.get_parse_math()


def test_long_names_are_elided():
    name = "a name that goes on, " * 5
    shown = next(word for word in words(draw_predictions([name], [1.0], [1.0])) if word.startswith("a name"))
    assert shown.endswith("…")
    assert name.startswith(shown[:-1])


def test_the_lens_has_one_row_a_layer_and_the_curve_beside_them():
    labels, best, target = ["web", "cat", "cat"], [0.1, 0.4, 0.9], [0.0, 0.4, 0.9]
    figure = draw_lens(["embedding", "block 0", "block 1"], labels, best, target, "cat")
    rows, beside = figure.axes
    assert [bar.get_width() for bar in rows.containers[1]] == best
    np.testing.assert_array_equal(beside.lines[0].get_xdata(), target)
    np.testing.assert_array_equal(beside.lines[0].get_ydata(), [0, 1, 2])
    assert rows.get_ylim() == beside.get_ylim() == (2.5, -0.5)
    assert rows.bbox.y0 == pytest.approx(beside.bbox.y0)
    assert rows.bbox.y1 == pytest.approx(beside.bbox.y1)
    embedding, first, second = heights(figure, "embedding", "block 0", "block 1")
    assert embedding > first > second


def test_layers_that_say_the_final_class_stand_out():
    bars = draw_lens(["0", "1"], ["web", "cat"], [0.1, 0.9], [0.0, 0.9], "cat").axes[0].containers[1]
    colours = ["#" + "".join(f"{round(255 * c):02x}" for c in bar.get_facecolor()[:3]) for bar in bars]
    assert colours == [PALE, ACCENT]


def test_ranking_keeps_the_order_and_colours_the_sign():
    figure = draw_ranking(["a", "b", "c"], [0.5, -0.25, np.nan], label="accuracy lost")
    bars = figure.axes[0].containers[0]
    assert [bar.get_width() for bar in bars][:2] == [0.5, -0.25]
    colours = ["#" + "".join(f"{round(255 * c):02x}" for c in bar.get_facecolor()[:3]) for bar in bars]
    assert colours[:2] == [ABOVE, BELOW]
    assert heights(figure, "a", "b", "c") == sorted(heights(figure, "a", "b", "c"), reverse=True)
    assert {"0.500", "−0.250", "–"} <= set(words(figure))
    assert figure.axes[0].get_xlim() == (-0.25, 0.5)


def test_nothing_is_never_less_than_nothing():
    assert "0.000" in words(draw_ranking(["a"], [-1e-9]))


def test_table_rows_come_in_order():
    figure = draw_table([("patches", "196 × 768"), ("attention", "12 × 197 × 197")], title="Shapes")
    assert words(figure) == ["Shapes", "patches", "196 × 768", "attention", "12 × 197 × 197"]
    patches, attention = heights(figure, "patches", "attention")
    assert patches > attention
    assert heights(figure, "196 × 768") == [patches]


def test_a_long_value_of_a_table_goes_on_in_a_second_line():
    value = " ".join(f"number{i}" for i in range(14))
    figure = draw_table([("head", value), ("next", "b")])
    shown = words(figure)
    assert " ".join(shown[1:3]) == value
    head, first, second, after = heights(figure, "head", shown[1], shown[2], "next")
    assert head == first > second > after


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "draw",
    [
        lambda: draw_predictions(["a"], [np.nan], [np.nan]),
        lambda: draw_lens(["0"], ["a"], [np.nan], [np.nan], "a"),
        lambda: draw_ranking(["a"], [0.0]),
    ],
)
def test_degenerate_bars_are_drawn_without_a_warning(draw):
    assert encode(draw(), dpi=50).startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: draw_predictions(["a"], [0.5, 0.5], [1, 2]), "labels must be 2 strings, got 1"),
        (lambda: draw_predictions(["a"], [[0.5]], [1]), r"probabilities must have shape \[n\], got \[1 1\]"),
        (lambda: draw_predictions(["a"], [0.5], [1, 2]), "logits must be 1 numbers, .*, got 2"),
        (lambda: draw_lens(["0"], ["a"], [0.5], [0.5, 1], "a"), "target must be 1 numbers, .*, got 2"),
        (lambda: draw_lens(["0", "1"], ["a"], [0.5], [0.5], "a"), "steps must be 1 strings, got 2"),
        (lambda: draw_ranking(["a"], [1, 2]), "names must be 2 strings, got 1"),
        (lambda: draw_table([]), "rows must be pairs of a name and a value, got none"),
        (lambda: draw_table([("a", "b", "c")]), r"rows must be pairs .*, got \('a', 'b', 'c'\)"),
    ],
)
def test_wrong_input_is_refused_with_what_was_expected_and_what_came(draw, message):
    with pytest.raises(ValueError, match=message):
        draw()


# --- speeds -----------------------------------------------------------------------------------------------------------

PANEL = Panel("ViT-Ti, batch 8", ["vitreous, compiled", "timm"], [120.0, 100.0], [True, False], 200.0)


def test_bars_are_as_long_as_speeds_and_ours_stands_out():
    (axes,) = draw_speeds([PANEL]).axes
    bars = axes.containers[0]
    assert [bar.get_width() for bar in bars] == [120.0, 100.0]
    colours = ["#" + "".join(f"{round(255 * part):02x}" for part in bar.get_facecolor()[:3]) for bar in bars]
    assert colours == [ACCENT, MISSING]


def test_the_ceiling_is_a_line_within_the_axes_even_when_it_is_exceeded():
    for ceiling in (200.0, 90.0):
        (axes,) = draw_speeds([Panel("", PANEL.names, PANEL.rates, PANEL.ours, ceiling)]).axes
        (line,) = (line for line in axes.lines if line.get_color() == LIMIT)
        assert line.get_xdata()[0] == ceiling < axes.get_xlim()[1]
        assert axes.get_xlim()[1] > 120


def test_every_text_of_the_speeds_lies_within_the_card():
    panel = Panel("A title", ["a very long name of a library, compiled and captured", "b"], [1e6, 1.0], [1, 0], 1.1e6)
    figure = draw_speeds([panel, PANEL, PANEL], title="Speeds", note="where and when " * 20)
    figure.canvas.draw()
    for text in figure.texts:
        box = text.get_window_extent()
        assert 0 <= box.x0 <= box.x1 <= figure.bbox.width, text.get_text()
        assert 0 <= box.y0 <= box.y1 <= figure.bbox.height, text.get_text()


def test_no_speeds_to_draw_is_an_error():
    with pytest.raises(ValueError, match="nothing to draw"):
        draw_speeds([])
