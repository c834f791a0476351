"""Runs of a study: interrupted and resumed, shared by two processes, waited for; and their predictions."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tiny_studies import MODELS, Heard, budget_of, make_zoo, states, tiny

from vitreous.comparison import runs
from vitreous.comparison.runs import Predictions, finish
from vitreous.comparison.study import open_study
from vitreous.training.run_folder import RunFolder
from vitreous.training.step import TrainStep

pytestmark = pytest.mark.slow


def test_a_finished_run_holds_a_prediction_for_every_test_image(tmp_path):
    study = open_study(tmp_path / "study", MODELS, budget_of(make_zoo(tmp_path / "zoo")), 1, device="cpu")
    finish(study.runs()[0], None, [], print)
    path = study.runs()[0].folder / "predictions.npz"
    predictions = Predictions.read(path)
    with np.load(path) as plain:
        assert sorted(plain) == ["correct", "label", "predicted", "probability"]
        assert np.array_equal(plain["correct"], predictions.correct)
    assert len(predictions.label) == 11
    assert ((predictions.probability > 0) & (predictions.probability <= 1)).all()


class Crash(Exception):
    pass


def test_an_interrupted_study_resumes_and_leaves_finished_runs_as_they_are(tmp_path, monkeypatch):
    zoo, folder = make_zoo(tmp_path / "zoo"), tmp_path / "study"
    plain, calls = TrainStep.__call__, []

    def call(self, *arguments):
        plain(self, *arguments)
        calls.append(1)
        if len(calls) == 10:  # the first run has 6 updates: this is in the second
            raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(TrainStep, "__call__", call)
        with pytest.raises(Crash):
            tiny(zoo, folder)
    before = states(folder)
    assert {path.parts[1] for path in before} == {f"{MODELS[0]}-seed0"}
    found = tiny(zoo, folder)
    assert {path: time for path, time in states(folder).items() if path in before} == before
    assert len(found.tables[0]["rows"][1]["accuracies"]) == 2
    whole = tiny(zoo, tmp_path / "whole")
    assert [row["accuracies"] for row in found.tables[0]["rows"]] == [
        row["accuracies"] for row in whole.tables[0]["rows"]
    ]


COMMAND = """
import sys, time, torch
torch.set_num_threads(1)
from tiny_studies import Heard, tiny

class Stuck(Heard):
    def epoch(self, row, parts):
        while sys.argv[3] == "stuck":
            time.sleep(1)

tiny(sys.argv[1], sys.argv[2], listeners=[Stuck()])
"""


def start(zoo, folder, how):
    tests = Path(__file__).parents[1]
    paths = os.pathsep.join([str(tests / "support"), str(tests.parent / "src")])
    words = [sys.executable, "-c", COMMAND, str(zoo), str(folder), how]
    return subprocess.Popen(words, env={**os.environ, "PYTHONPATH": paths}, stderr=subprocess.PIPE, text=True)


def wait_for(what, seconds=120):
    until = time.monotonic() + seconds
    while not what() and time.monotonic() < until:
        time.sleep(0.05)
    assert what()


def test_two_processes_share_a_study_and_a_killed_one_is_replaced(tmp_path):
    zoo, folder = make_zoo(tmp_path / "zoo"), tmp_path / "study"
    first = start(zoo, folder, "stuck")
    wait_for(lambda: list(folder.glob("runs/*/metrics.jsonl")))
    second = start(zoo, folder, "on")
    wait_for(lambda: len(list(folder.glob("runs/*/predictions.npz"))) == 3)  # all but the one that the first holds
    assert not (folder / f"runs/{MODELS[0]}-seed0/result.json").exists()
    first.send_signal(signal.SIGKILL)
    first.communicate()
    _, errors = second.communicate(timeout=120)
    assert second.returncode == 0, errors
    written = json.loads((folder / "comparison.json").read_text())
    assert [len(row["accuracies"]) for row in written["tables"][0]["rows"]] == [2, 2]


def test_runs_held_by_other_processes_are_waited_for(tmp_path, monkeypatch):
    zoo, folder, heard = make_zoo(tmp_path / "zoo"), tmp_path / "study", Heard()
    study = open_study(folder, MODELS, budget_of(zoo), 2, device="cpu")
    run = RunFolder(folder / f"runs/{MODELS[1]}-seed1")
    run.begin(study.runs()[-1].config)
    lock = run.lock()
    waiting, naps = "1 run(s) are held by other processes: waiting for them", []

    def nap(seconds):
        naps.append(heard.lines.count(waiting))
        if len(naps) == 2:
            lock.__exit__(None, None, None)

    lock.__enter__()
    monkeypatch.setattr(runs, "time", SimpleNamespace(sleep=nap, monotonic=time.monotonic))  # not that of the lock
    found = tiny(zoo, folder, listeners=[heard])
    assert naps == [1, 1]  # said before the first, and once
    assert sum(line.endswith(f"{MODELS[1]}, seed 1") for line in heard.lines) == 1
    assert len(found.tables[0]["rows"][1]["accuracies"]) == 2
