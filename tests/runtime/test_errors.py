"""Errors as one line, with the rank if several processes run."""

import json
import os
import subprocess
import sys

import pytest
from PIL import Image

from vitreous.cli.main import COMMANDS, main
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.runtime import errors
from vitreous.weights.save import save


@pytest.fixture
def second(monkeypatch, tmp_path):
    """Make this process rank 1 of 2; return torchrun's error file."""
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    return tmp_path / "error.json"


def test_a_mistake_has_its_rank_in_front_and_reaches_torchrun(second, capsys, tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "x.png")
    with pytest.raises(SystemExit) as stop:
        main(["classify", str(tmp_path / "x.png"), "-o", str(tmp_path / "parts"), "--model", "/nowhere/model.pth"])
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("vitreous: rank 1: there is no file or folder")
    message = json.loads(second.read_text())["message"]
    assert message["extraInfo"]["py_callstack"] == message["message"] == line.removeprefix("vitreous: rank 1: ")
    assert int(message["extraInfo"]["timestamp"]) > 0


def test_a_defect_reaches_torchrun_with_its_traceback(second, monkeypatch, capsys):
    def views() -> None:
        """Break.

        Nothing else.
        """
        raise RuntimeError("broken")

    monkeypatch.setitem(COMMANDS, "views", views)
    with pytest.raises(RuntimeError, match="broken"):
        main(["views"])
    assert capsys.readouterr().err == "vitreous: rank 1: broken\n"
    assert "in views" in json.loads(second.read_text())["message"]["extraInfo"]["py_callstack"]


def test_a_process_that_only_lost_the_others_waits_so_that_the_first_failure_is_reported_first(second, monkeypatch):
    waited = []
    monkeypatch.setattr(errors.time, "sleep", waited.append)
    errors.report_error(ValueError("my own mistake"))
    assert waited == []
    errors.report_error(RuntimeError("[third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer"))
    assert waited == [errors.PEER_WAIT]


def test_alone_nothing_is_recorded_and_no_rank_is_named(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    errors.report_error(ValueError("a line\nand another"))
    assert capsys.readouterr().err == "vitreous: a line and another\n"
    assert not list(tmp_path.iterdir())


def test_ranks_other_than_the_first_print_nothing(second, capsys):
    from vitreous.cli.console import messages

    messages().print("a remark")
    with pytest.raises(SystemExit):
        main(["classify", "--nonsense"])
    assert capsys.readouterr() == ("", "")


ONE_FAILS = """
from vitreous.cli import main as cli
from vitreous.predict import evaluate as evaluation
from vitreous.runtime.distributed import this_rank

def refuse(*arguments):
    raise ValueError("the disk is full")

if this_rank().rank == 1:
    evaluation.decode_batches = refuse
cli.main(["evaluate", "--data", "digits", "--limit", "20", "--device", "cpu", "--model", "model"])
"""


@pytest.mark.slow
def test_one_failing_process_ends_all_and_its_mistake_is_torchruns_root_cause(tmp_path):
    save(ViT(ViTConfig(image_size=32, patch_size=8, width=48, depth=1, heads=4, classes=10)), tmp_path / "model")
    (tmp_path / "script.py").write_text(ONE_FAILS)
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "script.py"]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.returncode != 0
    lines = [line for line in done.stderr.splitlines() if line.startswith("vitreous: ")]
    assert lines == ["vitreous: rank 1: the disk is full"]  # the other, which lost it, adds nothing
    cause = done.stderr.split("Root Cause")[1]
    assert "rank      : 1 " in cause
    assert "traceback : the disk is full" in cause


def test_a_process_that_only_lost_the_others_says_what_to_do_without_a_traceback(second, monkeypatch, capsys):
    def views() -> None:
        """Break.

        Nothing else.
        """
        raise RuntimeError("[third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer")

    monkeypatch.setitem(COMMANDS, "views", views)
    monkeypatch.setattr(errors, "PEER_WAIT", 0)
    with pytest.raises(SystemExit) as stop:
        main(["views"])
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("vitreous: rank 1: lost the other processes, which ended first: run all of them again")


def test_without_torchrun_there_is_no_wait(second, monkeypatch):
    waited = []
    monkeypatch.setattr(errors.time, "sleep", waited.append)
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE")
    errors.report_error(RuntimeError("[third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer"))
    assert waited == []


OPEN_GROUP = """
import atexit, sys
import torch.distributed
from vitreous.runtime.errors import exit_process
if sys.argv[1] == "open":
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
atexit.register(print, "the usual exit")
print("printed before")
exit_process(2)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("group", "usual"), [("open", False), ("none", True)])
def test_with_an_open_group_exit_skips_cleanup_and_loses_no_output(group, usual):
    """A thread of gloo, met in the middle of a message by the usual exit, has turned exit code 2 into an abort."""
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    words = [sys.executable, "-c", OPEN_GROUP, group]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=60, env=buffered)
    assert ended.returncode == 2, ended.stderr
    assert "printed before" in ended.stdout
    assert ("the usual exit" in ended.stdout) == usual


LEFT_BEHIND = """
import multiprocessing, sys, time
import torch.distributed
from vitreous.runtime.errors import exit_process

def work():
    time.sleep(20)
    print("still here", flush=True)

if __name__ == "__main__":
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    multiprocessing.get_context("fork").Process(target=work, daemon=True).start()
    exit_process(2)
"""


@pytest.mark.slow
def test_an_exit_without_cleanup_leaves_no_child_behind():
    ended = subprocess.run([sys.executable, "-c", LEFT_BEHIND], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2, ended.stderr
    assert ended.stdout == ""  # which is read until the last process that holds it is gone
