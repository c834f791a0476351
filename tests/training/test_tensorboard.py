"""TensorBoard's files hold what metrics.jsonl holds."""

import json
import sys

import pytest
from tiny_runs import break_off, make_images, plain

from vitreous.training.loop import train


def read(folder):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: {e.step: e.value for e in events.Scalars(tag)} for tag in events.Tags()["scalars"]}


def test_every_number_of_the_metrics_is_there_also_after_a_restart(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    from vitreous.training.tensorboard import TensorBoard

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


def test_without_tensorboard_the_extra_is_named(monkeypatch):
    from vitreous.training.tensorboard import TensorBoard

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match=r"vitreous\[log\]"):
        TensorBoard()
