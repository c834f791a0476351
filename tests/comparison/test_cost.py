"""Speeds, and energy that is reported only if it was measured over the whole run."""

import json

import pytest
import torch
from tiny_studies import Heard, make_zoo, tiny_run

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
    found = cost.time_models({"packaged": load()}, torch.device("cpu"), rounds=2, batch=2)
    assert found["packaged"].eager > 0
    assert found["packaged"].compiled is None
    assert found["packaged"].why == "no C++ compiler here"


@pytest.mark.slow
def test_a_compiled_model_is_timed_beside_the_eager_one(monkeypatch):
    monkeypatch.setattr(cost.torch, "compile", lambda model, **options: model)
    found = cost.time_models({"packaged": load()}, torch.device("cpu"), rounds=3, batch=2)
    assert found["packaged"].compiled > 0
    assert found["packaged"].why == ""
