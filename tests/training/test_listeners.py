"""A run on a terminal and in a log."""

import io
import json
import re
import sys
from types import SimpleNamespace

import pytest
from rich.console import Console
from tiny_runs import break_off, make_images, make_task, plain

from vitreous.training import listeners, loop
from vitreous.training.listeners import LOG_LINES, ProgressDisplay, TensorBoard
from vitreous.training.loop import train


def watch(config, folder, **options):
    console = Console(file=io.StringIO(), width=400, highlight=False, **options)
    with ProgressDisplay(console) as display:
        result = train(config, folder, listeners=[display])
    return console.file.getvalue(), result


def test_a_log_has_a_line_for_each_look_and_the_last_is_the_result(tmp_path):
    config = plain(make_images(tmp_path / "zoo [red]"), epochs=3)
    text, result = watch(config, tmp_path / "run [bold]")
    looks = re.findall(r"epoch +(\d+)/3  loss \d\.\d{4}  held out (\d+\.\d\d)%", text)
    assert [int(epoch) for epoch, _ in looks] == [1, 2, 3]
    assert float(looks[-1][1]) / 100 == round(result["top1"], 4)
    assert re.search(
        r"parameters learn from \d\d images of 3 classes: 'cat', 'dog', 'owl' \(\d+ held out\), on cpu", text
    )
    assert "run [bold]" in text  # no markup
    assert "\x1b" not in text
    assert all(text.splitlines())  # no empty lines


@pytest.mark.slow
def test_a_long_log_stays_short(tmp_path):
    config = plain(make_images(tmp_path / "zoo"), epochs=LOG_LINES * 2, batch_size=27)
    text, _ = watch(config, tmp_path / "run")
    assert 10 <= text.count("held out") <= LOG_LINES + 1
    assert f"epoch   {LOG_LINES * 2}/{LOG_LINES * 2}" in text


@pytest.mark.parametrize(
    ("seconds", "rest"), [(20.0, "about 20 s"), (600.0, "about 10 min 00 s; --epochs shortens it")]
)
def test_a_long_run_names_the_flag_that_shortens_it(seconds, rest, tmp_path, monkeypatch):
    monkeypatch.setattr(listeners, "expected_seconds", lambda parts: seconds)
    text, _ = watch(plain(make_images(tmp_path / "zoo"), epochs=1), tmp_path / "run")
    assert re.search(rf"1 epoch of .*: {rest}$", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("task", "share"),
    [("classify", "accuracy"), ("multilabel", "label accuracy"), ("segment", "pixel accuracy"), ("regress", None)],
)
def test_the_progress_line_names_its_share_of_correct_answers(task, share, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "STEP_EVENT_SECONDS", 0.0)
    monkeypatch.setattr(listeners.LogPace, "is_due", lambda pace: True)
    data = make_images(tmp_path / "zoo") if task == "classify" else make_task(tmp_path / "zoo", task)
    text, _ = watch(plain(data, epochs=1), tmp_path / "run")
    (line, *_) = [line for line in text.splitlines() if line.startswith("step ")]
    assert re.search(rf"· loss \d\.\d+ · {share + r' [0-9.]+% · ' if share else ''}[0-9,]+ images/s", line)


def test_trainable_parameters_are_shown_as_a_share_of_all(tmp_path):
    config = plain(make_images(tmp_path / "zoo"), epochs=1, policy="head")
    text, _ = watch(config, tmp_path / "run")
    assert re.search(r"vit_pico_patch2_8: 195 of \d\d\d,\d\d\d parameters learn", text)


def test_a_terminal_shows_bars_and_takes_them_down(tmp_path):
    text, _ = watch(plain(make_images(tmp_path / "zoo")), tmp_path / "run", force_terminal=True)
    assert "training" in text
    assert text.rstrip().endswith(("\x1b[?25h", "\x1b[2K"))


def test_bars_are_taken_down_after_an_error(tmp_path):
    console = Console(file=io.StringIO(), force_terminal=True)
    display = ProgressDisplay(console)
    try:
        with display:
            raise KeyError
    except KeyError:
        assert not display.bars.live.is_started


def read(folder):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: {e.step: e.value for e in events.Scalars(tag)} for tag in events.Tags()["scalars"]}


@pytest.mark.slow
def test_every_number_of_the_metrics_is_there_also_after_a_restart(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    config = plain(make_images(tmp_path / "zoo"), epochs=4, batch_size=6, save_every=0)
    break_off(config, tmp_path / "run", monkeypatch, 6, listeners=[TensorBoard()])
    train(config, tmp_path / "run", listeners=[TensorBoard()])
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows] == [1, 2, 3, 4]
    found = read(tmp_path / "run")
    assert set(found) == {"loss/train", "top1/train", "learning_rate/train", "seconds/train"} | {
        f"{name}/test" for name in ("loss", "top1", "top5")
    }
    assert found["loss/train"] == pytest.approx({row["epoch"]: row["loss"] for row in rows})
    assert found["top1/test"] == pytest.approx({row["epoch"]: row["test_top1"] for row in rows})


def test_the_errors_of_several_numbers_have_their_names(tmp_path):
    pytest.importorskip("tensorboard")
    parts = SimpleNamespace(state=SimpleNamespace(epoch=0), train_data=SimpleNamespace(class_names=("age", "height")))
    board = TensorBoard()
    board.begin(parts, None, SimpleNamespace(path=tmp_path))
    board.epoch({"epoch": 1, "loss": 0.5, "test_mae_0": 4.0, "test_mae_1": 0.25}, parts)
    board.end({}, None)
    assert read(tmp_path) == {"loss/train": {1: 0.5}, "mae_age/test": {1: 4.0}, "mae_height/test": {1: 0.25}}


def test_without_tensorboard_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match=r"vitreous\[log\]"):
        TensorBoard()
