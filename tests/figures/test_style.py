import hashlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import matplotlib
import numpy as np
import pytest
from drawn import photo, pixels

from vitreous.figures.curves import draw_heads
from vitreous.figures.maps import draw_map
from vitreous.figures.matrix import draw_blocks_heads
from vitreous.figures.style import DIVERGING, HEAT, PALETTE, encode, new_figure, style

FORMATS = ["png", "svg", "pdf"]


def sample():
    return draw_map(photo(), np.arange(16).reshape(4, 4), title="Rollout", label="attention")


def luminance(colours):
    """Relative luminance of colours `[n 3]` in 0..1."""
    linear = np.where(colours <= 0.04045, colours / 12.92, ((colours + 0.055) / 1.055) ** 2.4)
    return linear @ np.array([0.2126, 0.7152, 0.0722])


@pytest.mark.slow
@pytest.mark.parametrize("format", FORMATS)
def test_equal_figures_give_equal_bytes(format):
    figure = sample()
    first = encode(figure, format)
    assert first == encode(figure, format) == encode(sample(), format)
    assert first.startswith({"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[format])
    assert b"CreationDate" not in first
    assert b"dc:date" not in first


SCRIPT = """
import hashlib, sys
import numpy as np
from vitreous.figures import bars, curves, draw_by_kind, maps, matrix, tiles
from vitreous.figures.style import encode
from drawn import photo
figure = maps.draw_map(photo(), np.arange(16).reshape(4, 4), title="Rollout", label="attention")
print(*[hashlib.sha256(encode(figure, format)).hexdigest() for format in ("png", "svg", "pdf")])
print([name for name in ("matplotlib.pyplot", "torch", "torchvision") if name in sys.modules])
"""


@pytest.mark.slow
def test_a_fresh_process_gives_the_same_bytes_and_never_needs_pyplot_or_torch(request):
    folder = request.path.parents[1] / "support"
    run = subprocess.run([sys.executable, "-c", SCRIPT], cwd=folder, capture_output=True, text=True, check=True)
    digests, imported = run.stdout.splitlines()
    assert imported == "[]"
    assert digests.split() == [hashlib.sha256(encode(sample(), format)).hexdigest() for format in FORMATS]
    assert run.stderr == ""


def test_settings_are_left_as_they_were_even_after_an_error():
    before = dict(matplotlib.rcParams)
    encode(sample(), "svg")
    with pytest.raises(ZeroDivisionError), new_figure(1, 1):
        _ = 1 / 0
    assert dict(matplotlib.rcParams) == before


def test_the_users_own_settings_do_not_change_a_figure():
    plain = encode(sample())
    mine = {
        "font.size": 30,
        "axes.facecolor": "red",
        "image.origin": "lower",
        "savefig.bbox": "tight",
        "axes.grid": True,
    }
    with matplotlib.rc_context(mine):
        assert encode(sample()) == plain


@pytest.mark.slow
def test_threads_do_not_disturb_each_other():
    before, alone = dict(matplotlib.rcParams), encode(sample())
    with ThreadPoolExecutor(4) as pool:
        assert all(drawn == alone for drawn in pool.map(lambda _: encode(sample()), range(4)))
    assert dict(matplotlib.rcParams) == before


def test_a_card_is_white_opaque_and_padded():
    image = pixels(sample())
    for edge in (image[:30], image[-30:], image[:, :30], image[:, -30:]):
        assert (edge == 255).all()


def test_resolution_is_what_was_asked_for():
    with new_figure(1.84, 0.84) as card:  # and 0.16 around
        pass
    assert pixels(card).shape == (232, 432, 3)
    assert int.from_bytes(encode(card, dpi=100)[16:20], "big") == 216


def test_unknown_formats_are_refused():
    with pytest.raises(ValueError, match="format must be one of png, svg, pdf, got 'gif'"):
        encode(sample(), "gif")


def test_notebooks_show_a_figure_at_half_its_pixels():
    data, size = sample()._repr_png_()
    assert data == encode(sample())
    assert abs(2 * size["width"] - int.from_bytes(data[16:20], "big")) <= 1


def test_heat_gets_steadily_brighter_and_signed_colours_are_even():
    steps = np.linspace(0, 1, 101)
    assert (np.diff(luminance(HEAT(steps)[:, :3])) > 0).all()
    both = luminance(DIVERGING(steps)[:, :3])
    assert np.argmax(both) in (49, 50, 51)
    assert np.abs(both - both[::-1]).max() < 0.1


def test_every_line_colour_can_be_read_on_white():
    shades = luminance(np.array([matplotlib.colors.to_rgb(colour) for colour in PALETTE]))
    assert ((1.05 / (shades + 0.05)) > 3.5).all()


def test_the_style_is_in_force_inside_alone():
    size = matplotlib.rcParams["font.size"]
    with style():
        assert matplotlib.rcParams["font.size"] != size
    assert matplotlib.rcParams["font.size"] == size


def test_a_narrow_figure_widens_until_two_lines_hold_its_title():
    title = "What switching off the only head of each layer costs"
    lines = [text for text in draw_blocks_heads(np.ones((12, 1)), title=title).texts if text.get_weight() == "bold"]
    assert " ".join(text.get_text() for text in lines) == title
    assert len(lines) == 2


def test_a_long_title_takes_two_lines_and_makes_room_for_itself():
    values = np.ones((4, 3))
    short, long = draw_heads(values, label="x", title="Title"), draw_heads(values, label="x", title="word " * 60)
    assert long.get_size_inches()[1] > short.get_size_inches()[1]
    shown = [text.get_text() for text in long.texts if text.get_text().startswith("word")]
    assert len(shown) == 2
    assert shown[1].endswith("…")
    assert short.axes[0].bbox.height == pytest.approx(long.axes[0].bbox.height)
