"""A run's folder: one writer, one config, complete lines."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny_runs import tiny

from vitreous.cli.main import main
from vitreous.training.loop import train
from vitreous.training.run_folder import LOCK, RunFolder
from vitreous.weights.load import load


@pytest.fixture
def folder(tmp_path):
    made = RunFolder(tmp_path / "run")
    with made.lock():
        made.begin(tiny("digits"))
    return made


def test_two_writers_are_refused_and_the_second_gets_in_when_the_first_has_gone(folder):
    with (
        folder.lock(),
        pytest.raises(ValueError, match="another run is writing to .*another --output"),
        RunFolder(folder.path).lock(),
    ):
        pass
    with RunFolder(folder.path).lock():
        pass


def test_a_writer_that_is_killed_lets_go_of_the_folder(folder):
    code = f"""if True:
        import os
        from vitreous.training.run_folder import RunFolder
        with RunFolder({str(folder.path)!r}).lock():
            print(1, flush=True)
            os.kill(os.getpid(), 9)
    """
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).stdout == b"1\n"
    with folder.lock():
        pass


def test_another_config_is_refused_by_the_fields_that_differ(folder):
    with pytest.raises(ValueError, match=r"holds another run \(epochs 2 → 3, seed 0 → 1\)"):
        folder.check(tiny("digits", epochs=3, seed=1))
    assert folder.check(tiny("digits", save_every=1.0)).save_every == 1.0


def test_a_batch_size_that_was_searched_for_stays(tmp_path):
    folder = RunFolder(tmp_path)
    folder.begin(tiny("digits", batch_size="auto"), tiny("digits", batch_size=32))
    assert folder.check(tiny("digits", batch_size="auto")).batch_size == 32
    with pytest.raises(ValueError, match="batch_size 32 → 64"):
        folder.check(tiny("digits", batch_size=64))


def test_a_batch_size_that_was_cut_is_kept_as_it_was_asked_for(tmp_path):
    folder = RunFolder(tmp_path)
    folder.begin(tiny("digits", batch_size=64), tiny("digits", batch_size=32))
    assert folder.check(tiny("digits", batch_size=64)).batch_size == 64


def test_a_folder_of_other_things_is_left_as_it_was(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    folder = RunFolder(tmp_path)
    with pytest.raises(ValueError, match="not empty and holds no run"), folder.lock():
        folder.check(tiny("digits"))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_run_that_never_began_leaves_no_folder(tmp_path):
    with pytest.raises(KeyError), RunFolder(tmp_path / "run").lock():
        raise KeyError
    assert not list(tmp_path.iterdir())
    with pytest.raises(KeyError), RunFolder(tmp_path / "runs" / "today" / "run").lock():
        raise KeyError
    assert not list(tmp_path.iterdir())
    (tmp_path / "runs").mkdir()  # what was there before stays
    with pytest.raises(KeyError), RunFolder(tmp_path / "runs" / "run").lock():
        raise KeyError
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_a_folder_where_a_process_was_killed_before_it_began_is_vacant(tmp_path):
    (tmp_path / LOCK).touch()
    (tmp_path / ".config.json.k3_x9abc").write_text("{")
    folder = RunFolder(tmp_path)
    folder.check(tiny("digits"))
    folder.begin(tiny("digits"))
    assert {path.name for path in tmp_path.iterdir()} == {LOCK, "config.json"}


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"magic": 1}', '{"epochs": 0}'])
def test_a_config_that_is_not_one_raises(folder, text):
    folder.config.write_text(text)
    with pytest.raises(ValueError, match="does not describe a run"):
        folder.read_config()


def test_a_line_that_was_cut_short_does_not_count(folder):
    for epoch in (1, 2, 3):
        folder.add_metrics({"epoch": epoch, "loss": 1.0})
    with folder.metrics.open("a") as file:
        file.write('{"epoch": 4, "lo')
    assert [row["epoch"] for row in folder.read_metrics()] == [1, 2, 3]
    folder.drop_metrics_after(2)
    assert folder.metrics.read_text().count("\n") == 2
    folder.add_metrics({"epoch": 3, "loss": 2.0})
    assert [row["loss"] for row in folder.read_metrics()] == [1.0, 1.0, 2.0]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_is_one_line_that_says_what_to_do(folder, number):
    with (
        pytest.raises(OSError, match="free some space and run the same command again") as error,
        folder.explain_errors(),
    ):
        raise OSError(number, os.strerror(number))
    assert os.strerror(number) in str(error.value)


def test_other_errors_of_the_system_stay_what_they_are(folder):
    with pytest.raises(FileNotFoundError, match="gone"), folder.explain_errors():
        raise FileNotFoundError(2, "gone")


# --- runs of 0.1 ------------------------------------------------------------------------------------------------------

UNFINISHED_0_1 = Path(__file__).parents[1] / "files/unfinished-run-0.1"
"""A run of three epochs that was killed in its second one, written by 0.1: a ViT of 8,000 parameters."""
RENEW = "was begun by 0.1 of vitreous, whose runs this version does not resume: start it again with another --output"


def test_an_unfinished_run_of_0_1_is_refused_in_one_line_and_left_as_it_was(tmp_path):
    run = tmp_path / "run"
    shutil.copytree(UNFINISHED_0_1, run)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=f"{RENEW}, or finish it with 0.1") as error:
        train(tiny("zoo"), run)
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match=RENEW):
        RunFolder(run).read_config()
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != LOCK} == before


def test_resuming_a_run_of_0_1_is_one_line_at_the_command_line(tmp_path, capsys):
    shutil.copytree(UNFINISHED_0_1, tmp_path / "run")
    with pytest.raises(SystemExit) as stop:
        main(["train", "--resume", str(tmp_path / "run")])
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert RENEW in line


def test_a_checkpoint_of_an_unfinished_run_of_0_1_loads_as_a_model():
    model = load(UNFINISHED_0_1)
    assert model.card.class_names == ("cat", "dog")
    assert model(torch.zeros(1, 3, 8, 8)).shape == (1, 2)


def test_a_finished_run_of_0_1_names_its_model(tmp_path):
    run = tmp_path / "run"
    shutil.copytree(UNFINISHED_0_1, run)
    (run / "result.json").write_text('{"top1": 0.75, "pictures": 4}')
    with pytest.raises(ValueError, match=r"begun by 0.1 .*its model is in .*run/model; choose another --output"):
        train(tiny("zoo"), run)


def test_a_run_of_a_later_version_is_refused(folder):
    written = json.loads(folder.config.read_text())
    folder.config.write_text(json.dumps({**written, "format": 99}))
    with pytest.raises(ValueError, match="begun by another version of vitreous"):
        folder.read_config()
