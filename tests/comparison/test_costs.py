"""What training costs: epochs that fit a time, energy that is told only when it was read in whole, and speeds."""

import json

import pytest
import torch
from tiny_studies import MODELS, Heard, make_zoo, tiny

from vitreous.comparison import budget, meter, speed
from vitreous.comparison.meter import Meter, read_meter
from vitreous.training.config import TrainConfig
from vitreous.training.loop import train
from vitreous.weights.load import load


def tiny_run(data, **changes):
    known = {"data": str(data), "epochs": 2, "batch_size": 8, "snapshots": 0, "save_every": 0, "device": "cpu"}
    return TrainConfig(**{**known, **changes})


def test_minutes_become_epochs_that_are_written_down_and_stay(tmp_path, monkeypatch):
    zoo, folder = make_zoo(tmp_path / "zoo"), tmp_path / "study"
    monkeypatch.setattr(budget, "time_update", lambda parts: 0.5 if parts.config.model == MODELS[0] else 1.0)
    monkeypatch.setattr(budget, "time_look", lambda parts: 0.5)
    monkeypatch.setattr(budget.time, "monotonic", lambda: 0.0)  # getting ready takes no time
    message = tiny(zoo, folder, epochs=None, minutes=0.1, seeds=1)  # 6 s; three updates an epoch and a look
    assert [row["epochs"] for row in message["tables"][0]["rows"]] == [3, 1]
    assert message["tables"][0]["minutes"] == 0.1
    monkeypatch.setattr(budget, "time_update", lambda parts: pytest.fail("timed again"))
    again = tiny(zoo, folder, epochs=None, minutes=0.1, seeds=1)
    assert [row["epochs"] for row in again["tables"][0]["rows"]] == [3, 1]


def test_timing_looks_at_real_updates(tmp_path):
    heard = Heard()
    config = budget.epochs_for(tiny_run(make_zoo(tmp_path / "zoo"), epochs=10, warmup=1), 0.05, None, heard)
    assert config.epochs >= 1
    assert config.warmup == pytest.approx(config.epochs / 10, abs=1e-3)
    assert "updates of" in heard.lines[-1]


def counter(*values):
    left = list(values)
    return lambda device: left.pop(0)


def test_energy_is_the_difference_of_two_readings(tmp_path, monkeypatch):
    monkeypatch.setattr(meter, "joules", counter(100.0, 350.0))
    train(tiny_run(make_zoo(tmp_path / "zoo")), tmp_path / "run", listeners=[Meter()])
    assert read_meter(tmp_path / "run")["joules"] == 250.0


def test_energy_of_a_run_that_went_on_is_not_told(tmp_path, monkeypatch):
    class Stop(Heard):
        def epoch(self, row, parts):
            raise KeyboardInterrupt

    monkeypatch.setattr(meter, "joules", counter(100.0, 0.0, 50.0))
    config = tiny_run(make_zoo(tmp_path / "zoo"))
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "run", listeners=[Meter(), Stop()])
    assert read_meter(tmp_path / "run")["joules"] is None
    train(config, tmp_path / "run", listeners=[Meter()])
    message = read_meter(tmp_path / "run")
    assert (message["joules"], message["why"]) == (None, "the run was interrupted and went on")
    assert message["learning"] > 0


def test_energy_of_a_crowded_device_is_not_told(tmp_path, monkeypatch):
    monkeypatch.setattr(meter, "joules", counter(100.0, 350.0))
    seen = iter([False, True])
    train(tiny_run(make_zoo(tmp_path / "zoo")), tmp_path / "run", listeners=[Meter(lambda: next(seen))])
    assert json.loads((tmp_path / "run/meter.json").read_text())["joules"] is None


def test_speeds_are_told_eager_and_without_a_compiler_why_not(monkeypatch):
    def refuse(model, **options):
        def call(x):
            raise RuntimeError("InvalidCxxCompiler: No working C++ compiler found / not found")

        return call

    monkeypatch.setattr(speed.torch, "compile", refuse)
    found = speed.time_models({"packaged": load()}, torch.device("cpu"), rounds=2, batch=2)
    assert found["packaged"].eager > 0
    assert found["packaged"].compiled is None
    assert found["packaged"].why == "no C++ compiler here"


def test_a_compiled_model_is_timed_beside_the_eager_one(monkeypatch):
    monkeypatch.setattr(speed.torch, "compile", lambda model, **options: model)
    found = speed.time_models({"packaged": load()}, torch.device("cpu"), rounds=3, batch=2)
    assert found["packaged"].compiled > 0
    assert found["packaged"].why == ""
