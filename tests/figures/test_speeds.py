import pytest

from vitreous.figures.speeds import LIMIT, Panel, draw_speeds
from vitreous.figures.style import ACCENT, MISSING

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


def test_every_text_lies_within_the_card():
    panel = Panel("A title", ["a very long name of a library, compiled and captured", "b"], [1e6, 1.0], [1, 0], 1.1e6)
    figure = draw_speeds([panel, PANEL, PANEL], title="Speeds", note="where and when " * 20)
    figure.canvas.draw()
    for text in figure.texts:
        box = text.get_window_extent()
        assert 0 <= box.x0 <= box.x1 <= figure.bbox.width, text.get_text()
        assert 0 <= box.y0 <= box.y1 <= figure.bbox.height, text.get_text()


def test_nothing_to_draw_is_said():
    with pytest.raises(ValueError, match="nothing to draw"):
        draw_speeds([])
