"""The loop: however a run ends, it resumes to the same bits; and every error is one line."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_runs import (
    Crash,
    LogKeeper,
    after_update,
    bits,
    break_off,
    crash,
    differing,
    make_images,
    parts_of,
    plain,
    tiny,
)

import vitreous
from vitreous.training import checkpoint, loop
from vitreous.training.listeners import expected_seconds
from vitreous.training.loop import Stopped, train
from vitreous.training.step import TrainStep

RESUME = Path(__file__).resolve().parents[2] / "benchmarks/resume.py"


@pytest.fixture(scope="module")
def whole(zoo, tmp_path_factory):
    """The run that nobody disturbs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITREOUS_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        folder = tmp_path_factory.mktemp("whole") / "run"
        train(tiny(zoo), folder)
    return folder


def metrics(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


# --- a whole run ------------------------------------------------------------------------------------------------------


def test_a_run_leaves_all_that_was_promised(whole, zoo):
    names = {path.name for path in whole.iterdir()}
    assert names == {"config.json", "model.json", "metrics.jsonl", "checkpoints", "model", "result.json", "run.lock"}
    result = json.loads((whole / "result.json").read_text())
    rows = metrics(whole)
    assert [row["epoch"] for row in rows] == [1, 2]
    assert result["top1"] == rows[-1]["test_top1"]
    assert result["epochs"] == 2
    assert result["seconds"] == rows[-1]["seconds"] > 0
    written = json.loads((whole / "config.json").read_text())
    assert written == {"format": 2, **json.loads(json.dumps(tiny(zoo).to_dict()))}
    model = vitreous.load(whole / "model")
    assert model.card.class_names == ("cat", "dog", "owl")
    assert model.card.training["result"]["top1"] == result["top1"]
    assert model.card.training["config"]["epochs"] == 2


def test_the_saved_model_is_the_one_that_was_measured(whole, zoo):
    parts = parts_of(tiny(zoo))
    model = vitreous.load(whole / "model")
    with torch.no_grad():
        logits = model(parts.evaluate.augment.plain(parts.test_source.pixels))
    labels = torch.tensor(parts.test_data.labels)
    assert metrics(whole)[-1]["test_loss"] == pytest.approx(
        torch.nn.functional.cross_entropy(logits, labels).item(), rel=1e-4
    )


@pytest.mark.slow
def test_the_same_config_gives_the_same_bits_and_another_seed_others(whole, zoo, tmp_path):
    train(tiny(zoo), tmp_path / "again")
    assert differing(bits(whole), bits(tmp_path / "again")) == []
    train(tiny(zoo, seed=1), tmp_path / "other")
    assert "model/head.weight" in differing(bits(whole), bits(tmp_path / "other"))


def test_it_learns(zoo, tmp_path):
    listener = LogKeeper()
    assert train(plain(zoo, epochs=8), tmp_path / "run", listeners=[listener])["top1"] > 0.9
    assert listener.rows[-1]["loss"] < 0.7 * listener.rows[0]["loss"]


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"repeats": 2}, {"accumulate": 2}])
def test_kept_and_streamed_images_train_to_the_same_bits(zoo, tmp_path, changes):
    for resident in ("yes", "no"):
        train(tiny(zoo, resident=resident, epochs=1, **changes), tmp_path / resident)
    assert differing(bits(tmp_path / "yes"), bits(tmp_path / "no")) == []


def test_how_often_is_saved_and_looked_does_not_touch_the_bits(whole, zoo, tmp_path):
    train(tiny(zoo, save_every=0, keep=7, evaluate_every=5), tmp_path / "run")
    assert differing(bits(whole), bits(tmp_path / "run")) == []
    assert len(list((tmp_path / "run/checkpoints").glob("*.json"))) == 6  # every step
    assert "test_top1" not in metrics(tmp_path / "run")[0]
    assert "test_top1" in metrics(tmp_path / "run")[-1]


def test_evaluating_answers_about_as_many_images_as_a_run_learns_from(zoo, tmp_path):
    train(tiny(zoo, held_out=0.5, batch_size=4, epochs=3), tmp_path / "run")
    evaluated = [row["epoch"] for row in metrics(tmp_path / "run") if "test_top1" in row]
    assert evaluated == [2, 3]  # 24 images are held out and 12 are not; the last epoch is always evaluated


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["head", "attention", "last:1", "lora"])
def test_every_policy_resumes_after_a_crash_and_ends_as_a_plain_vit(whole, zoo, tmp_path, monkeypatch, policy):
    config = tiny(zoo, model=str(whole / "model"), pretrained=True, policy=policy, save_every=0)
    train(config, tmp_path / "whole")
    break_off(config, tmp_path / "broken", monkeypatch, 4)
    train(config, tmp_path / "broken")
    assert differing(bits(tmp_path / "whole"), bits(tmp_path / "broken")) == []
    model, first = vitreous.load(tmp_path / "whole/model"), vitreous.load(whole / "model")
    assert model.state_dict().keys() == first.state_dict().keys()
    moved = [n for n, v in model.state_dict().items() if not torch.equal(v, first.state_dict()[n])]
    assert "head.weight" in moved
    if policy == "lora":
        assert sorted(moved) == sorted(
            [
                "head.weight",
                "head.bias",
                *(f"blocks.{i}.attn.{layer}.weight" for i in range(4) for layer in ("qkv", "proj")),
            ]
        )


@pytest.mark.slow
def test_a_timm_classifier_resumes_after_a_crash_to_the_same_bits(zoo, tmp_path, monkeypatch):
    config = plain(zoo, model="timm:test_resnet", optimizer="sgd", image_size=32, save_every=0, epochs=2)
    train(config, tmp_path / "whole")
    break_off(config, tmp_path / "broken", monkeypatch, 4)
    unfinished = vitreous.load(tmp_path / "broken")
    assert "epoch" in unfinished.card.report.unfinished
    assert type(unfinished).__name__ == "TimmClassifier"
    train(config, tmp_path / "broken")
    assert differing(bits(tmp_path / "whole"), bits(tmp_path / "broken")) == []


@pytest.mark.slow
def test_distillation_resumes_after_a_crash(whole, zoo, tmp_path, monkeypatch):
    config = tiny(zoo, teacher=str(whole / "model"), distillation="soft", save_every=0, epochs=1)
    train(config, tmp_path / "whole")
    break_off(config, tmp_path / "broken", monkeypatch, 2)
    train(config, tmp_path / "broken")
    assert differing(bits(tmp_path / "whole"), bits(tmp_path / "broken")) == []


# --- killed -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(not RESUME.is_file(), reason="the benchmarks are not part of a source distribution")
def test_a_run_killed_at_three_random_moments_ends_with_the_same_bits():
    changes = {"epochs": 2, "validation": 0.6}
    words = [sys.executable, RESUME, "--kills", "3", "--changes", json.dumps(changes)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"3 kills in (\d+) runs .* \1 of \1 runs ended bit-identical", done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("update", range(1, 7))
def test_a_run_broken_off_after_any_update_ends_with_the_same_bits(whole, zoo, tmp_path, monkeypatch, update):
    config = tiny(zoo, save_every=0)
    break_off(config, tmp_path / "run", monkeypatch, update)
    listener = LogKeeper()
    train(config, tmp_path / "run", listeners=[listener])
    assert differing(bits(whole), bits(tmp_path / "run")) == []
    assert [row["epoch"] for row in metrics(tmp_path / "run")] == [1, 2]
    assert any("resuming at epoch" in line for line in listener.lines) == (update > 1)


@pytest.mark.slow
def test_a_run_broken_off_again_and_again_ends_with_the_same_bits(whole, zoo, tmp_path, monkeypatch):
    config = tiny(zoo, save_every=0)
    for _ in range(5):  # the update that is broken off is not saved: two at a time
        break_off(config, tmp_path / "run", monkeypatch, 2)
    train(config, tmp_path / "run")
    assert differing(bits(whole), bits(tmp_path / "run")) == []


@pytest.mark.slow
def test_a_run_killed_while_it_wrote_a_checkpoint_resumes_from_the_one_before(whole, zoo, tmp_path, monkeypatch):
    config, folder = tiny(zoo, save_every=0), tmp_path / "run"
    break_off(config, folder, monkeypatch, 3)
    (folder / "checkpoints/.step-000000003.safetensors.x0_9abcd").write_bytes(b"half of it")
    (folder / "checkpoints/step-000000004.safetensors").write_bytes(b"its .json was never written")
    (folder / ".metrics.jsonl.x0_9abcd").write_text('{"epo')
    listener = LogKeeper()
    train(config, folder, listeners=[listener])
    assert "resuming at epoch 1, step 2 of 3" in listener.lines
    assert differing(bits(whole), bits(folder)) == []
    assert not list(folder.rglob(".*"))


def test_a_damaged_checkpoint_is_skipped_and_that_is_logged(whole, zoo, tmp_path, monkeypatch):
    config, folder = tiny(zoo, save_every=0), tmp_path / "run"
    break_off(config, folder, monkeypatch, 5)
    newest = max((folder / "checkpoints").glob("*.safetensors"))
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(data)
    listener = LogKeeper()
    train(config, folder, listeners=[listener])
    assert any("step-000000004.safetensors is damaged" in line for line in listener.lines)
    assert "resuming at epoch 2, step 0 of 3" in listener.lines
    assert differing(bits(whole), bits(folder)) == []


@pytest.mark.slow
def test_when_every_checkpoint_is_damaged_that_is_an_error_and_nothing_is_overwritten(zoo, tmp_path, monkeypatch):
    config, folder = tiny(zoo, save_every=0), tmp_path / "run"
    break_off(config, folder, monkeypatch, 4)
    for path in (folder / "checkpoints").glob("*.safetensors"):
        path.write_bytes(path.read_bytes()[:-1])
    before = sorted(path.name for path in (folder / "checkpoints").iterdir())
    with pytest.raises(ValueError, match=r"every checkpoint in .* is damaged.*Delete the folder to start again"):
        train(config, folder)
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == before


@pytest.mark.parametrize("fails", ["save", "write_json"])
def test_a_run_killed_while_it_wrote_its_result_writes_it_the_next_time(whole, zoo, tmp_path, monkeypatch, fails):
    with monkeypatch.context() as patch:
        patch.setattr(loop, fails, lambda *arguments: crash())
        with pytest.raises(Crash):
            train(tiny(zoo), tmp_path / "run")
    assert not (tmp_path / "run/result.json").exists()
    train(tiny(zoo), tmp_path / "run")
    assert differing(bits(whole), bits(tmp_path / "run")) == []
    assert metrics(tmp_path / "run")[-1]["test_top1"] == metrics(whole)[-1]["test_top1"]


# --- asked to stop ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("update", [1, 3, 4])
def test_a_signal_saves_and_the_run_resumes_to_the_same_bits(whole, zoo, tmp_path, monkeypatch, number, update):
    config, folder = tiny(zoo), tmp_path / "run"
    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    with monkeypatch.context() as patch:
        after_update(patch, update, lambda: os.kill(os.getpid(), number))
        with pytest.raises(Stopped, match="stopped and saved at epoch") as stopped:
            train(config, folder)
    assert stopped.value.signal_number == number
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert checkpoint.latest(folder / "checkpoints")[0].update == update
    train(config, folder)
    assert differing(bits(whole), bits(folder)) == []


def test_a_signal_at_the_very_end_lets_the_run_finish(whole, zoo, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        after_update(patch, 6, lambda: os.kill(os.getpid(), signal.SIGTERM))
        train(tiny(zoo), tmp_path / "run")
    assert differing(bits(whole), bits(tmp_path / "run")) == []


def test_a_second_signal_ends_at_once(zoo, tmp_path, monkeypatch):
    def twice():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    after_update(monkeypatch, 1, twice)
    with pytest.raises(KeyboardInterrupt):
        train(tiny(zoo), tmp_path / "run")


def test_a_signal_while_images_are_decoded_ends_at_once_and_leaves_nothing(zoo, tmp_path, monkeypatch):
    from vitreous.training import setup

    monkeypatch.setattr(setup, "build_model", lambda *arguments: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Stopped, match="stopped while setting up"):
        train(tiny(zoo), tmp_path / "run")
    assert not (tmp_path / "run").exists()


# --- whose folder it is -----------------------------------------------------------------------------------------------


def test_a_finished_run_says_so_and_gives_its_result_without_training(whole, zoo, monkeypatch):
    monkeypatch.setattr(loop, "set_up_run", lambda *arguments: crash())
    listener = LogKeeper()
    assert train(tiny(zoo), whole, listeners=[listener]) == json.loads((whole / "result.json").read_text())
    assert "is already finished" in listener.lines[0]
    assert "another --output" in listener.lines[0]


def test_another_config_is_refused_by_name(whole, zoo):
    with pytest.raises(ValueError, match=r"holds another run \(learning_rate 0.001 → 0.1\)"):
        train(tiny(zoo, learning_rate=0.1), whole)


def test_two_runs_in_one_folder_are_refused(zoo, tmp_path):
    class Second(LogKeeper):
        def begin(self, parts, config, folder):
            with pytest.raises(ValueError, match="another run is writing to"):
                train(tiny(zoo), tmp_path / "run")
            self.lines.append("refused")

    listener = Second()
    train(tiny(zoo, epochs=1), tmp_path / "run", listeners=[listener])
    assert listener.lines == ["refused"]


def test_a_run_that_was_killed_before_its_first_checkpoint_says_that_it_starts_again(zoo, whole, tmp_path, monkeypatch):
    folder, listener = tmp_path / "run", LogKeeper()
    break_off(tiny(zoo), folder, monkeypatch, 2, listeners=[listener])
    assert not any("starting from the beginning" in line for line in listener.lines)
    train(tiny(zoo), folder, listeners=[listener])
    assert f"{folder} has no complete checkpoint yet: starting from the beginning" in listener.lines
    assert differing(bits(whole), bits(folder)) == []


def test_a_run_does_not_go_on_with_other_images(tmp_path, monkeypatch):
    zoo = make_images(tmp_path / "zoo")
    config = tiny(zoo, save_every=0)
    break_off(config, tmp_path / "run", monkeypatch, 3)
    for i in range(6):
        (zoo / f"owl/{i:03d}.png").unlink()
    with pytest.raises(ValueError, match="not those that the run began with: restore them"):
        train(config, tmp_path / "run")


def test_a_run_does_not_go_on_with_other_held_out_images(tmp_path, monkeypatch):
    zoo, folder = tmp_path / "zoo", tmp_path / "run"
    make_images(zoo / "train")
    make_images(zoo / "test", each=3, seed=1)
    config = tiny(zoo, save_every=0)
    break_off(config, folder, monkeypatch, 3)
    (zoo / "test/owl/002.png").rename(tmp_path / "002.png")
    with pytest.raises(ValueError, match="the held-out images or their classes are not those that the run began with"):
        train(config, folder)
    (tmp_path / "002.png").rename(zoo / "test/owl/002.png")
    (zoo / "train/owl/002.png").unlink()
    with pytest.raises(ValueError, match="the training images or their classes are not those that the run began with"):
        train(config, folder)


@pytest.mark.slow
def test_a_checkpoint_of_an_earlier_version_compares_the_training_images_alone(tmp_path, monkeypatch):
    zoo, folder = tmp_path / "zoo", tmp_path / "run"
    make_images(zoo / "train")
    make_images(zoo / "test", each=3, seed=1)
    break_off(tiny(zoo, save_every=0), folder, monkeypatch, 3)
    for described in (folder / "checkpoints").glob("*.json"):
        position = json.loads(described.read_text())
        position["data"], _ = position["data"].split("-")
        described.write_text(json.dumps(position))
    (zoo / "test/owl/002.png").unlink()
    assert train(tiny(zoo, save_every=0), folder)["images"] == 8


# --- what goes wrong --------------------------------------------------------------------------------------------------


def test_a_loss_that_is_no_number_stops_with_step_images_and_advice(zoo, tmp_path):
    config = plain(zoo, learning_rate=1e30, save_every=0, weight_decay=0.0)
    with pytest.raises(FloatingPointError) as error:
        train(config, tmp_path / "run")
    text = str(error.value)
    assert re.search(r"no longer finite in epoch \d, step \d \(images: .*zoo/(cat|dog|owl)/\d+\.png", text)
    assert "and 4 more" in text
    assert "--learning-rate than 1e+30" in text
    assert text.endswith("the saved checkpoints are from before")
    written = list((tmp_path / "run/checkpoints").glob("*.safetensors"))
    assert written
    for path in written:
        saved = checkpoint.load_file(path)
        assert all(torch.isfinite(value).all() for value in saved.values() if value.is_floating_point())


def test_a_diverged_run_without_a_checkpoint_says_so(zoo, tmp_path):
    with pytest.raises(FloatingPointError, match="--precision fp32; no checkpoint was saved$"):
        train(plain(zoo, learning_rate=1e30, weight_decay=0.0), tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("update", [2, 3, 5, 6])
def test_a_poisoned_weight_is_never_saved(zoo, tmp_path, monkeypatch, update):
    """Also where the loss was still a number: at the end of an epoch, and of the run."""
    state = []
    begin = loop.resume
    monkeypatch.setattr(loop, "resume", lambda parts, *rest: (state.append(parts.state), begin(parts, *rest))[1])

    def poison():
        with torch.no_grad():
            state[0].model.norm.bias[0] = float("nan")

    after_update(monkeypatch, update, poison)
    with pytest.raises(FloatingPointError, match=f"a weight .*epoch {(update + 2) // 3}, step {(update - 1) % 3 + 1} "):
        train(plain(zoo, save_every=0), tmp_path / "run")
    position, path, _ = checkpoint.latest(tmp_path / "run/checkpoints")
    assert position.update == update - 1
    assert all(torch.isfinite(value).all() for name, value in load_file(path).items() if name.startswith("model/"))
    assert not (tmp_path / "run/result.json").exists()
    assert len(metrics(tmp_path / "run")) == (update - 1) // 3


def full_disk(*arguments):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.slow
@pytest.mark.parametrize("fails", ["weights", "description", "metrics"])
def test_a_full_disk_is_reported_and_the_run_resumes_when_there_is_space(whole, zoo, tmp_path, monkeypatch, fails):
    config, folder = tiny(zoo, save_every=0), tmp_path / "run"
    with monkeypatch.context() as patch:
        if fails == "metrics":
            patch.setattr("vitreous.training.run_folder.RunFolder.add_metrics", full_disk)
        else:
            name = {"weights": "write_safetensors", "description": "write_json"}[fails]
            after_update(patch, 3, lambda: patch.setattr(checkpoint, name, full_disk))
        with pytest.raises(OSError, match="No space left.*free some space and run the same command again"):
            train(config, folder)
    assert checkpoint.latest(folder / "checkpoints")[0].update == 2
    assert [row["epoch"] for row in metrics(folder)] == ([] if fails == "metrics" else [1])
    train(config, folder)
    assert differing(bits(whole), bits(folder)) == []
    assert [row["epoch"] for row in metrics(folder)] == [1, 2]


@pytest.mark.slow
def test_a_disk_that_is_really_full_is_reported(zoo, tmp_path):
    """safetensors has an error of its own for it. A limit on the size of files is as good as a full disk."""
    resource = pytest.importorskip("resource", reason="limits are set by a POSIX call")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    parts_of(tiny(zoo))  # decoded
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
        with pytest.raises(OSError, match="File too large.*free some space"):
            train(tiny(zoo, save_every=0), tmp_path / "run")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert not list((tmp_path / "run/checkpoints").iterdir())
    train(tiny(zoo, save_every=0), tmp_path / "run")


def test_apples_gpus_are_refused_by_name_and_passed_over_by_auto(monkeypatch):
    from vitreous.training import setup

    monkeypatch.setattr(setup, "pick_device", lambda name: torch.device("mps"))
    assert setup.set_up_device(plain("x", device="auto")).type == "cpu"
    with pytest.raises(ValueError, match="float64.*--device cpu"):
        setup.set_up_device(plain("x", device="mps"))


# --- compiled ---------------------------------------------------------------------------------------------------------


@pytest.mark.skipif("VITREOUS_SLOW" not in os.environ, reason="takes half a minute: set VITREOUS_SLOW")
def test_a_compiled_run_resumes_to_the_same_bits(zoo, tmp_path, monkeypatch):
    import shutil

    if shutil.which("g++") is None:
        pytest.skip("there is no C++ compiler")
    config = tiny(zoo, compile=True, save_every=0)
    train(config, tmp_path / "whole")
    break_off(config, tmp_path / "broken", monkeypatch, 4)
    train(config, tmp_path / "broken")
    assert differing(bits(tmp_path / "whole"), bits(tmp_path / "broken")) == []


def test_measuring_the_time_of_a_step_changes_no_bit_and_is_told_before_the_first(zoo, tmp_path, monkeypatch):
    keeper = Begun()
    train(tiny(zoo), tmp_path / "measured", listeners=[keeper])
    assert 0 < keeper.expected < 60
    monkeypatch.setattr(TrainStep, "warm_up", lambda self, batch: None)
    train(tiny(zoo), tmp_path / "plain", listeners=[keeper])
    assert keeper.expected is None
    assert differing(bits(tmp_path / "measured"), bits(tmp_path / "plain")) == []


class Begun(LogKeeper):
    def begin(self, parts, config, folder):
        self.expected = expected_seconds(parts)
