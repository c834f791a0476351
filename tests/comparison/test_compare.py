"""A whole study: end to end, cut short and gone on with, refused, and made by two processes at once."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tiny_studies import MODELS, Heard, budget_of, make_zoo, states, tiny

from vitreous.comparison import work
from vitreous.comparison.predictions import Predictions
from vitreous.comparison.study import open_study
from vitreous.training.folder import RunFolder
from vitreous.training.update import Update


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("digits") / "study"
    return folder, tiny("digits", folder, batch_size=64)


def test_a_study_leaves_its_runs_a_table_and_a_page(study):
    folder, message = study
    kept = sorted(path.name for path in folder.iterdir())
    assert kept == ["comparison.html", "comparison.json", "runs", "speed.json", "study.json"]
    runs = sorted(path.name for path in (folder / "runs").iterdir())
    assert runs == sorted(f"{model}-seed{seed}" for model in MODELS for seed in (0, 1))
    saved = json.loads((folder / "comparison.json").read_text())
    assert "folder" not in saved["tables"][0]
    assert [row["model"] for row in saved["tables"][0]["rows"]] == list(MODELS)
    assert message["tables"][0]["images"] == 360


def test_the_table_says_what_the_runs_say(study):
    folder, message = study
    for row in message["tables"][0]["rows"]:
        results = [json.loads((folder / f"runs/{row['model']}-seed{i}/result.json").read_text()) for i in (0, 1)]
        assert row["accuracies"] == pytest.approx([result["top1"] for result in results], abs=1e-6)
        assert row["accuracy"] == pytest.approx(np.mean(row["accuracies"]))
        assert (row["start"], row["interval_over"], row["epochs"]) == ("from scratch", "seeds", 2)
        assert row["learning"] == row["parameters"]
        assert row["memory"] is None
        assert row["joules"] is None
        assert row["joules_why"] == "the device does not tell"
        assert row["eager"] > 0
        assert row["compiled"] is None


def test_the_page_tells_the_batch_size_that_was_used(tmp_path):
    message = tiny(
        make_zoo(tmp_path / "zoo"), tmp_path / "study", models=MODELS[::-1], batch_size=999, seeds=1, epochs=1
    )
    size = message["tables"][0]["common"]["batch_size"]
    assert 0 < size < 36
    page = (tmp_path / "study/comparison.html").read_text()
    assert f"batches of {size} " in page
    assert "; 1 epoch; one seed a model" in page


def test_predictions_are_kept_for_every_image(study):
    folder, _ = study
    path = folder / f"runs/{MODELS[0]}-seed1/predictions.npz"
    said = Predictions.read(path)
    with np.load(path) as plain:
        assert sorted(plain) == ["correct", "label", "predicted", "probability"]
        assert np.array_equal(plain["correct"], said.correct)
    assert len(said.label) == 360
    assert ((said.probability > 0) & (said.probability <= 1)).all()


def test_disagreements_are_images_that_every_seed_of_one_and_no_seed_of_the_other_gets_right(study):
    folder, message = study
    right = {
        m: np.stack([Predictions.read(folder / f"runs/{m}-seed{i}/predictions.npz").correct for i in (0, 1)])
        for m in MODELS
    }
    (pair,) = message["tables"][0]["pairs"]
    one, other = right[MODELS[0]], right[MODELS[1]]
    assert pair["disagreements"]["one"]["count"] == (one.all(axis=0) & ~other.any(axis=0)).sum()
    assert pair["disagreements"]["other"]["count"] == (other.all(axis=0) & ~one.any(axis=0)).sum()
    assert pair["disagreements"]["other"]["count"] > 0
    for each in pair["disagreements"]["other"]["images"]:
        assert other[:, each["image"]].all()
        assert not one[:, each["image"]].any()


def test_the_page_is_whole_and_asks_nobody_for_anything(study):
    folder, _ = study
    text = (folder / "comparison.html").read_text()
    assert text.count("<img ") == text.count('src="data:image/png')
    assert not re.search(r"<script src|<link|(src|href)=.?http|url\(", text)
    for heading in ("Over epochs", "Over seconds", "Class by class", "is right and", "What was not the same for all"):
        assert heading in text, heading


def test_the_same_command_again_changes_no_run(study):
    folder, message = study
    before = states(folder)
    again = tiny("digits", folder, batch_size=64)
    assert states(folder) == before
    assert again["tables"][0]["rows"] == message["tables"][0]["rows"]


def test_another_study_in_the_folder_is_refused_in_one_line(study):
    folder, _ = study
    with pytest.raises(ValueError, match=r"holds another study \(epochs 2 → 3\): choose another --output"):
        tiny("digits", folder, batch_size=64, epochs=3)
    with pytest.raises(ValueError, match=r"seeds 2 → 5"):
        tiny("digits", folder, batch_size=64, seeds=5)


def test_a_study_of_another_version_is_refused_in_one_line(study, tmp_path):
    message = json.loads((study[0] / "study.json").read_text())
    (tmp_path / "study.json").write_text(json.dumps({**message, "version": 99}))
    with pytest.raises(ValueError, match=r"study\.json was written by another version \(99\): choose another --output"):
        tiny("digits", tmp_path, batch_size=64)


def test_a_folder_of_others_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(ValueError, match=r"holds no study, but thesis.tex"):
        tiny("digits", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


class Crash(Exception):
    pass


def test_a_study_cut_short_goes_on_and_leaves_finished_runs_as_they_are(tmp_path, monkeypatch):
    zoo, folder = make_zoo(tmp_path / "zoo"), tmp_path / "study"
    plain, calls = Update.__call__, []

    def call(self, *arguments):
        plain(self, *arguments)
        calls.append(1)
        if len(calls) == 10:  # the first run has 6 updates: this is in the second
            raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(Update, "__call__", call)
        with pytest.raises(Crash):
            tiny(zoo, folder)
    before = states(folder)
    assert {path.parts[1] for path in before} == {f"{MODELS[0]}-seed0"}
    message = tiny(zoo, folder)
    assert {path: time for path, time in states(folder).items() if path in before} == before
    assert len(message["tables"][0]["rows"][1]["accuracies"]) == 2
    whole = tiny(zoo, tmp_path / "whole")
    assert [row["accuracies"] for row in message["tables"][0]["rows"]] == [
        row["accuracies"] for row in whole["tables"][0]["rows"]
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
    here = Path(__file__).parent
    paths = os.pathsep.join([str(here), str(here.parents[1] / "src")])
    words = [sys.executable, "-c", COMMAND, str(zoo), str(folder), how]
    return subprocess.Popen(words, env={**os.environ, "PYTHONPATH": paths}, stderr=subprocess.PIPE, text=True)


def wait_for(what, seconds=120):
    until = time.monotonic() + seconds
    while not what() and time.monotonic() < until:
        time.sleep(0.05)
    assert what()


def test_two_processes_share_a_study_and_one_that_is_killed_is_taken_over_from(tmp_path):
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
    message = json.loads((folder / "comparison.json").read_text())
    assert [len(row["accuracies"]) for row in message["tables"][0]["rows"]] == [2, 2]


def test_runs_that_others_hold_are_waited_for(tmp_path, monkeypatch):
    zoo, folder, heard = make_zoo(tmp_path / "zoo"), tmp_path / "study", Heard()
    study = open_study(folder, MODELS, budget_of(zoo), 2, device="cpu")
    run = RunFolder(folder / f"runs/{MODELS[1]}-seed1")
    run.begin(study.runs()[-1].config)
    lock = run.claimed()
    waiting, naps = "1 run(s) are held by other processes: waiting for them", []

    def nap(seconds):
        naps.append(heard.lines.count(waiting))
        if len(naps) == 2:
            lock.__exit__(None, None, None)

    lock.__enter__()
    monkeypatch.setattr(work.time, "sleep", nap)
    message = tiny(zoo, folder, listeners=[heard])
    assert naps == [1, 1]  # told before the first, and once
    assert heard.lines.count(f"{MODELS[1]}, seed 1") == 1
    assert len(message["tables"][0]["rows"][1]["accuracies"]) == 2
