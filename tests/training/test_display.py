"""A run on a terminal and in a log."""

import io
import re

from rich.console import Console
from tiny_runs import make_images, plain

from vitreous.training.display import LINES, Display
from vitreous.training.loop import train


def watch(config, folder, **options):
    console = Console(file=io.StringIO(), width=400, highlight=False, **options)
    with Display(console) as display:
        result = train(config, folder, listeners=[display])
    return console.file.getvalue(), result


def test_a_log_has_a_line_for_each_look_and_the_last_is_the_result(tmp_path):
    config = plain(make_images(tmp_path / "zoo [red]"), epochs=3)
    text, result = watch(config, tmp_path / "run [bold]")
    looks = re.findall(r"epoch +(\d+)/3  loss \d\.\d{4}  held out (\d+\.\d\d)%", text)
    assert [int(epoch) for epoch, _ in looks] == [1, 2, 3]
    assert float(looks[-1][1]) / 100 == round(result["top1"], 4)
    assert re.search(r"parameters learn from \d\d images of 3 classes, on cpu", text)
    assert "run [bold]" in text  # no markup
    assert "\x1b" not in text
    assert all(text.splitlines())  # no empty lines


def test_a_long_log_stays_short(tmp_path):
    config = plain(make_images(tmp_path / "zoo"), epochs=LINES * 2, batch_size=27)
    text, _ = watch(config, tmp_path / "run")
    assert 10 <= text.count("held out") <= LINES + 1
    assert f"epoch   {LINES * 2}/{LINES * 2}" in text


def test_what_learns_is_told_of_the_whole(tmp_path):
    config = plain(make_images(tmp_path / "zoo"), epochs=1, policy="head")
    text, _ = watch(config, tmp_path / "run")
    assert re.search(r"vit_pico_patch2_8: 195 of \d\d\d,\d\d\d parameters learn", text)


def test_a_terminal_shows_bars_and_takes_them_down(tmp_path):
    text, _ = watch(plain(make_images(tmp_path / "zoo")), tmp_path / "run", force_terminal=True)
    assert "training" in text
    assert text.rstrip().endswith(("\x1b[?25h", "\x1b[2K"))


def test_bars_are_taken_down_after_an_error(tmp_path):
    console = Console(file=io.StringIO(), force_terminal=True)
    display = Display(console)
    try:
        with display:
            raise KeyError
    except KeyError:
        assert not display.bars.live.is_started
