"""Several processes measure exactly what one does: no image twice, none left out."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_sets import colour_folder

from vitreous.cli.main import main
from vitreous.data.sources.class_folder import from_folder
from vitreous.predict.evaluate import evaluate
from vitreous.runtime.distributed import Rank, cpu_group, span
from vitreous.weights.load import load

SCRIPT = """
import json, sys, weakref
from pathlib import Path
import torch
from vitreous.cli.main import main
from vitreous.data.sources.class_folder import from_folder
from vitreous.predict.evaluate import evaluate
from vitreous.runtime.distributed import cpu_group
from vitreous.weights.load import load

data, model, out = sys.argv[1:]
with cpu_group() as rank:
    group, images = weakref.ref(torch.distributed.group.WORLD), from_folder(Path(data))
    for name, part in (("all", images), ("one", images.take([3]))):  # one image for two processes
        result = evaluate(part, load(model), batch_size=4, device="cpu", rank=rank)
        found = {**result.summary(), "correct": result.correct, "problems": [str(p) for p in result.problems]}
        Path(out, f"{name}-{rank.rank}.json").write_text(json.dumps(found))
    main(["evaluate", "--data", data, "--model", model, "--output", f"{out}/command", "--json", "--device", "cpu"])
assert group() is None, "somebody still holds the process group, whose threads may then outlive the interpreter"
"""


@given(st.integers(0, 50), st.integers(1, 9))
def test_the_spans_of_all_processes_are_everything_once(count, ranks):
    spans = [span(count, Rank(rank, ranks)) for rank in range(ranks)]
    assert [i for each in spans for i in each] == list(range(count))
    assert max(map(len, spans)) - min(map(len, spans)) <= 1


def test_alone_no_process_group_is_made():
    with cpu_group() as rank:
        assert rank == Rank()
        assert not torch.distributed.is_initialized()


@pytest.fixture(scope="module")
def model(small_folder):
    return str(small_folder)


def flat(summary):
    """A summary whose interval is two numbers of their own, as `approx` wants it."""
    low, high = summary.get("top1_interval", (0, 0))
    return {key: value for key, value in summary.items() if key != "top1_interval"} | {"low": low, "high": high}


@pytest.mark.slow
def test_two_processes_measure_what_one_does(model, tmp_path, capsys):
    data = colour_folder(tmp_path / "data", ["0", "3", "6"], each=5)
    for name in ("0/broken.png", "6/broken.png"):  # 15 good ones and two more: neither divides by two
        (data / name).touch()
    (tmp_path / "script.py").write_text(SCRIPT)
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(tmp_path / "script.py")]
    done = subprocess.run(
        [sys.executable, *launch, str(data), model, str(tmp_path)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    whole = evaluate(from_folder(data), load(model), batch_size=4, device="cpu")
    expected = {**whole.summary(), "correct": whole.correct, "problems": [str(p) for p in whole.problems]}
    assert (whole.images, len(whole.problems)) == (15, 2)
    for rank in range(2):  # every process knows the whole
        message = json.loads((tmp_path / f"all-{rank}.json").read_text())
        for name, value in expected.items():
            assert message[name] == (pytest.approx(value, abs=1e-6) if isinstance(value, float) else value), name
        assert json.loads((tmp_path / f"one-{rank}.json").read_text())["images"] == 1
    with pytest.raises(SystemExit) as stop:  # under torchrun, it would be reported as a crash
        main(["evaluate", "--data", str(data), "--model", model, "--output", str(tmp_path / "alone"), "--json"])
    assert stop.value.code == 2
    captured = capsys.readouterr()
    (line,) = done.stdout.splitlines()  # the first process alone prints
    assert flat(json.loads(line)) == pytest.approx(flat(json.loads(captured.out)), abs=1e-6)
    assert [line for line in done.stderr.splitlines() if "broken.png" in line] == [
        line for line in captured.err.splitlines() if "broken.png" in line
    ]
    for name in ("result.json", "per_class.json"):
        ours, theirs = (flat(json.loads((tmp_path / where / name).read_text())) for where in ("command", "alone"))
        assert ours == pytest.approx(theirs, abs=1e-6)
    with np.load(tmp_path / "command/confusion.npz") as ours, np.load(tmp_path / "alone/confusion.npz") as theirs:
        assert (ours["confusion"] == theirs["confusion"]).all()
        assert ours["confusion"].sum() == 15


def test_a_probe_is_refused_under_torchrun(model, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SystemExit):
        main(["evaluate", "--data", "digits", "--model", model, "--probe", "knn"])
    assert "without torchrun" in capsys.readouterr().err
