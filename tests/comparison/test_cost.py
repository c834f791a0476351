"""Speeds, minutes that become epochs, and energy that is reported only if it was measured over the whole run."""

import json

import pytest
import torch
from tiny_studies import MODELS, Heard, make_zoo, tiny, tiny_run

from vitreous.comparison import cost
from vitreous.comparison.cost import Meter, read_meter
from vitreous.training.loop import train
from vitreous.weights.load import load


def counter(*values):
    left = list(values)
    return lambda device: left.pop(0)


@pytest.mark.slow
def test_energy_is_the_difference_of_two_readings(tmp_path, monkeypatch):
    monkeypatch.setattr(cost, "joules", counter(100.0, 350.0))
    train(tiny_run(make_zoo(tmp_path / "zoo")), tmp_path / "run", listeners=[Meter()])
    assert read_meter(tmp_path / "run")["joules"] == 250.0


@pytest.mark.slow
def test_energy_of_a_resumed_run_is_unknown(tmp_path, monkeypatch):
    class Stop(Heard):
        def epoch(self, row, parts):
            raise KeyboardInterrupt

    monkeypatch.setattr(cost, "joules", counter(100.0, 0.0, 50.0))
    config = tiny_run(make_zoo(tmp_path / "zoo"))
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "run", listeners=[Meter(), Stop()])
    assert read_meter(tmp_path / "run")["joules"] is None
    train(config, tmp_path / "run", listeners=[Meter()])
    values = read_meter(tmp_path / "run")
    assert (values["joules"], values["why"]) == (None, "the run was interrupted and resumed")
    assert values["learning"] > 0


@pytest.mark.slow
def test_energy_on_a_crowded_device_is_unknown(tmp_path, monkeypatch):
    monkeypatch.setattr(cost, "joules", counter(100.0, 350.0))
    seen = iter([False, True])
    train(tiny_run(make_zoo(tmp_path / "zoo")), tmp_path / "run", listeners=[Meter(lambda: next(seen))])
    assert json.loads((tmp_path / "run/meter.json").read_text())["joules"] is None


def test_without_a_compiler_the_speed_is_eager_and_says_why(monkeypatch):
    def refuse(model, **options):
        def call(x):
            raise RuntimeError("InvalidCxxCompiler: No working C++ compiler found / not found")

        return call

    monkeypatch.setattr(cost.torch, "compile", refuse)
    found = cost.time_models({"packaged": load("packaged:cifar10")}, torch.device("cpu"), rounds=2, batch=2)
    assert found["packaged"].eager > 0
    assert found["packaged"].compiled is None
    assert found["packaged"].why == "no C++ compiler here"


@pytest.mark.slow
def test_a_compiled_model_is_timed_beside_the_eager_one(monkeypatch):
    monkeypatch.setattr(cost.torch, "compile", lambda model, **options: model)
    found = cost.time_models({"packaged": load("packaged:cifar10")}, torch.device("cpu"), rounds=3, batch=2)
    assert found["packaged"].compiled > 0
    assert found["packaged"].why == ""


@pytest.mark.slow
def test_minutes_become_epochs_that_are_written_down_and_stay(tmp_path, monkeypatch):
    zoo, folder = make_zoo(tmp_path / "zoo"), tmp_path / "study"
    monkeypatch.setattr(cost, "time_update", lambda parts: 0.5 if parts.config.model == MODELS[0] else 1.0)
    monkeypatch.setattr(cost, "time_evaluation", lambda parts: 0.5)
    monkeypatch.setattr(cost.time, "monotonic", lambda: 0.0)  # getting ready takes no time
    found = tiny(zoo, folder, epochs=None, minutes=0.1, seeds=1)  # 6 s; three updates an epoch and an evaluation
    assert [row["epochs"] for row in found.tables[0]["rows"]] == [3, 1]
    assert found.tables[0]["minutes"] == 0.1
    monkeypatch.setattr(cost, "time_update", lambda parts: pytest.fail("timed again"))
    again = tiny(zoo, folder, epochs=None, minutes=0.1, seeds=1)
    assert [row["epochs"] for row in again.tables[0]["rows"]] == [3, 1]


def test_real_updates_are_timed(tmp_path):
    heard = Heard()
    config = cost.epochs_for(tiny_run(make_zoo(tmp_path / "zoo"), epochs=10, warmup=1), 0.05, None, heard)
    assert config.epochs >= 1
    assert config.warmup == pytest.approx(config.epochs / 10, abs=1e-3)
    assert "updates of" in heard.lines[-1]
