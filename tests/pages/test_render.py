"""Lines on a page: what is written is what was given, and it cannot break out of the page."""

import json

import pytest

from vitreous.pages.render import Line, line_chart


def chart(*lines, **options):
    text = line_chart(lines, **({"title": "Loss", "x_label": "epoch", "y_label": "loss"} | options))
    return json.loads(text.removeprefix('<div class="curves"><script type="application/json">').split("</script>")[0])


def test_lines_arrive_with_their_bands():
    band = Line("ViT", [1, 2], [0.5, 0.25], low=[0.4, 0.2], high=[0.6, 0.3])
    found = chart(band, Line("ResNet", [2], [0.1]), unit=" %", x_from=0)
    assert found["series"][0] == {"label": "ViT", "x": [1, 2], "y": [0.5, 0.25], "low": [0.4, 0.2], "high": [0.6, 0.3]}
    assert found["series"][1] == {"label": "ResNet", "x": [2], "y": [0.1]}
    assert (found["unit"], found["xFrom"]) == (" %", 0)


def test_what_is_no_number_is_a_gap():
    assert chart(Line("a", [1, 2, 3], [1.0, float("nan"), float("inf")]))["series"][0]["y"] == [1.0, None, None]


def test_a_name_cannot_end_the_script():
    text = line_chart([Line("</script><b>", [1], [1])], title="<!--", x_label="x", y_label="y")
    assert text.count("</script>") == 1
    assert "<!--" not in text
    assert json.loads(text.split(">", 2)[2].split("</script>")[0])["series"][0]["label"] == "</script><b>"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"x": [1, 2], "y": [1]}, "y of 'a' must hold 2 numbers, got 1"),
        ({"x": [1], "y": [1], "low": [1]}, "a band needs low and high"),
        ({"x": [1], "y": [1], "low": [1], "high": [1, 2]}, "high of 'a' must hold 1 numbers, got 2"),
    ],
)
def test_lines_of_unlike_lengths_are_refused(line, message):
    with pytest.raises(ValueError, match=message):
        Line("a", **line)
