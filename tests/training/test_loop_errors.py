"""Errors and signals in the middle of a run: one line, and the run can be resumed."""

import os
import shutil
import signal

import pytest
from tiny_runs import Crash, after_update, bits, crash, differing, make_images, parts_of, tiny

from vitreous.training import checkpoint, loop
from vitreous.training.evaluation import Evaluator
from vitreous.training.loop import Stopped, train


@pytest.fixture
def zoo(tmp_path):
    return make_images(tmp_path / "zoo")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run that nobody disturbs, on the same images in another place."""
    root = tmp_path_factory.mktemp("whole")
    train(often(make_images(root / "zoo")), root / "run")
    return bits(root / "run")


def often(zoo, **changes):
    """Images read anew in each epoch, and a checkpoint after each update."""
    return tiny(zoo, resident="no", save_every=0, **changes)


def left_over(folder):
    return [path for path in folder.rglob("*") if path.name.startswith(".")]


# --- images ---------------------------------------------------------------------------------------------------------


def forbid(path):
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("whoever runs this may read everything")


def folder_instead(path):
    path.unlink()
    path.mkdir()


def pipe_instead(path):
    if not hasattr(os, "mkfifo"):
        pytest.skip("there are no named pipes here")
    path.unlink()
    os.mkfifo(path)


SPOILT = {
    "deleted": (lambda path: path.unlink(), "no such file or folder"),
    "cut short": (lambda path: os.truncate(path, 60), "truncated"),
    "emptied": (lambda path: os.truncate(path, 0), "empty file"),
    "a folder": (folder_instead, "is a folder, not an image"),
    "a pipe": (pipe_instead, "not a regular file"),
    "forbidden": (forbid, "permission denied"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("how", "which"), [*((how, "train_data") for how in SPOILT), ("deleted", "test_data")])
def test_an_image_gone_bad_is_named_and_the_run_resumes_when_it_is_back(zoo, whole, tmp_path, monkeypatch, how, which):
    spoil, message = SPOILT[how]
    config, folder, copy = often(zoo), tmp_path / "run", tmp_path / "copy"
    image = getattr(parts_of(config), which).image(0)
    shutil.copytree(zoo, copy)
    with monkeypatch.context() as patch:
        after_update(patch, 1, lambda: spoil(image))
        with pytest.raises(ValueError, match=rf"{image.name}: .*{message}.*\. Repair the image and run the same"):
            train(config, folder)
    assert checkpoint.latest(folder / "checkpoints")[0].update >= 1
    shutil.rmtree(zoo)
    shutil.copytree(copy, zoo)
    train(config, folder)
    assert differing(whole, bits(folder)) == []


def test_a_reading_thread_that_dies_ends_the_run_instead_of_hanging_it(zoo, tmp_path, monkeypatch):
    """Threads cannot be killed from outside; whatever ends one comes out where its image was waited for."""

    def die(*arguments):
        raise SystemExit("a thread's own end")

    after_update(monkeypatch, 1, lambda: monkeypatch.setattr("vitreous.data.masks.read_image", die))
    with pytest.raises(SystemExit, match="a thread's own end"):
        train(often(zoo), tmp_path / "run")


# --- signals ----------------------------------------------------------------------------------------------------------


def kill_before(patch, owner, name, number, times=1):
    """Be sent a signal when `name` is first called, and then go on with it."""
    real, calls = getattr(owner, name), []

    def call(*arguments, **options):
        calls.append(1)
        if len(calls) == 1:
            for _ in range(times):
                os.kill(os.getpid(), number)
        return real(*arguments, **options)

    patch.setattr(owner, name, call)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    ("owner", "name", "update"),
    [(Evaluator, "__call__", 3), (checkpoint, "write_safetensors", 1), (checkpoint, "write_json", 1)],
    ids=["evaluation", "the first weights", "the first description"],
)
def test_a_signal_in_the_middle_of_something_waits_for_its_end(
    zoo, whole, tmp_path, monkeypatch, number, owner, name, update
):
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        kill_before(patch, owner, name, number)
        with pytest.raises(Stopped, match="stopped and saved at epoch"):
            train(often(zoo), folder)
    assert checkpoint.latest(folder / "checkpoints")[0].update in (update, update + 1)
    assert not left_over(folder)
    train(often(zoo), folder)
    assert differing(whole, bits(folder)) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["write_safetensors", "write_json"])
def test_two_signals_in_the_first_checkpoint_end_at_once_and_leave_no_half_of_it(
    zoo, whole, tmp_path, monkeypatch, name
):
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        kill_before(patch, checkpoint, name, signal.SIGINT, times=2)
        with pytest.raises(KeyboardInterrupt):
            train(often(zoo), folder)
    assert not left_over(folder)
    assert checkpoint.latest(folder / "checkpoints") is None
    train(often(zoo), folder)
    assert differing(whole, bits(folder)) == []


def test_a_second_sigterm_does_what_it_did_before_the_run(zoo, tmp_path, monkeypatch):
    before = signal.signal(signal.SIGTERM, lambda *arguments: crash())
    try:
        kill_before(monkeypatch, Evaluator, "__call__", signal.SIGTERM, times=2)
        with pytest.raises(Crash):
            train(often(zoo), tmp_path / "run")
    finally:
        signal.signal(signal.SIGTERM, before)


def test_what_a_kill_left_is_removed_when_the_run_resumes_not_at_its_next_checkpoint(zoo, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        after_update(patch, 2, crash)
        with pytest.raises(Crash):
            train(often(zoo), folder)
    (folder / "checkpoints/.step-000000002.safetensors.x0_9abcd").write_bytes(b"half of it")
    (folder / "checkpoints/.step-000000002").mkdir()
    (folder / "checkpoints/step-000000002.safetensors").write_bytes(b"its .json was never written")
    monkeypatch.setattr(loop, "run", lambda *arguments: crash())
    with pytest.raises(Crash):
        train(often(zoo), folder)
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == [
        "step-000000001.json",
        "step-000000001.safetensors",
    ]
