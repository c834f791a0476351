"""What a user sees of a failure where several processes run."""

import json
import os
import subprocess
import sys

import pytest

from vitreous import failure
from vitreous.cli import COMMANDS, main


@pytest.fixture
def second(monkeypatch, tmp_path):
    """To be the second of two processes; what torchrun is told."""
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    return tmp_path / "error.json"


def test_a_mistake_has_its_rank_in_front_and_reaches_torchrun(second, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["classify", "x.png", "-o", "parts", "--model", "/nowhere/model.pth"])
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


def test_a_process_that_only_lost_the_others_lets_the_first_failure_speak_first(second, monkeypatch):
    waited = []
    monkeypatch.setattr(failure.time, "sleep", waited.append)
    failure.tell(ValueError("my own mistake"))
    assert waited == []
    failure.tell(RuntimeError("[third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer"))
    assert waited == [failure.PATIENCE]


def test_alone_nothing_is_recorded_and_no_rank_is_named(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    failure.tell(ValueError("a line\nand another"))
    assert capsys.readouterr().err == "vitreous: a line and another\n"
    assert not list(tmp_path.iterdir())


def test_the_others_keep_quiet(second, capsys):
    from vitreous.verbs.options import messages

    messages().print("a remark")
    with pytest.raises(SystemExit):
        main(["classify", "--nonsense"])
    assert capsys.readouterr() == ("", "")


def test_torchrun_shows_the_mistake_in_its_summary(tmp_path):
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    words = ["-m", "vitreous", "embed", "nothing", "-o", "features"]
    environment = os.environ | {"VITREOUS_CACHE": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, *launch, *words], capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=120
    )
    assert done.returncode != 0
    summary = done.stderr.split("Root Cause")[1]
    assert "traceback : nothing: no such file or folder" in summary
    assert "vitreous: rank" in done.stderr
    assert not list(tmp_path.iterdir())
