"""`train`, `finetune` and `recipes` as a user types them."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitreous
from vitreous.cli.main import main
from vitreous.cli.train import choose
from vitreous.training.config import TrainConfig
from vitreous.training.recipes import FINETUNE, POLICY_RATES, RECIPES
from vitreous.training.run_folder import RunFolder
from vitreous.training.step import TrainStep

TINY = ["--model", "vit_pico_patch2_8", "--epochs", "2", "--batch-size", "8", "--warmup", "0", "--channels", "3"]
TINY += ["--device", "cpu", "--snapshots", "0"]


def make_folder(folder, classes=("cat", "dog"), each=8, seed=0, size=8):
    chance = np.random.default_rng(seed)
    for label, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for i in range(each):
            pixels = chance.integers(0, 120, (size, size, 3)) + 100 * label
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{i}.png")
    return folder


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")


@pytest.fixture
def zoo(tmp_path):
    return str(make_folder(tmp_path / "zoo"))


def fails(words, capsys, code=2):
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == code
    return capsys.readouterr().err


# --- help and lists ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["train", "finetune"])
def test_help_mentions_every_field_and_its_default(command, capsys):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    out = capsys.readouterr().out
    for field in fields(TrainConfig):
        assert re.search(rf"--(no-)?{field.name.replace('_', '-')}\b", out), field.name
    assert "Images in each step" in out


def test_recipes_are_listed_with_what_they_give(capsys):
    main(["recipes"])
    out = capsys.readouterr().out
    for name, recipe in RECIPES.items():
        assert re.search(rf"^{name} ", out, re.MULTILINE)
        assert recipe.about in out
        assert recipe.expect in out


# --- what the words choose --------------------------------------------------------------------------------------------


def defaults(words):
    return {command: function.__defaults__ for command, function in choose(words).items()}


def test_a_recipe_gives_the_defaults():
    assert RECIPES["mnist"].config in defaults(["train", "mnist", "--epochs", "3"])["train"]
    assert RECIPES["digits"].config in defaults(["train", "--epochs", "3"])["train"]
    assert RECIPES["digits"].config in defaults(["train"])["train"]


@pytest.mark.parametrize("words", [["--policy", "head"], ["--policy=head"], ["--data", "x", "--policy", "head"]])
def test_a_policy_gives_its_step_size(words):
    (config,) = [value for value in defaults(["finetune", *words])["finetune"] if isinstance(value, TrainConfig)]
    assert config.policy == "head"
    assert config.learning_rate == POLICY_RATES["head"] != POLICY_RATES[FINETUNE.policy]


def test_last_n_has_the_step_size_of_last():
    (config,) = [v for v in defaults(["finetune", "--policy", "last:2"])["finetune"] if isinstance(v, TrainConfig)]
    assert (config.policy, config.learning_rate) == ("last:2", POLICY_RATES["last"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "minst"], "did you mean mnist"),
        (["train", "./images"], "--data"),
        (["train", "--epochs", "1", "mnist"], "name the recipe before any flag: vitreous train mnist"),
        (["train", "--epochs", "0"], "epochs must be at least 1"),
        (["train", "--data", "/nowhere"], "neither a folder nor a known dataset"),
        (["train", "--policy", "heads"], "last:N"),
        (["train", "--device", "cuda:9"], "--device cpu"),
        (["train", "--validation", "0.9999"], "leaves none of 1437 images for training"),
        (["train", "--output", os.devnull], "is a file: choose another --output"),
        (["train", "--resume", "/nowhere"], "holds no run"),
        (["train", "--model", "vit_pice_patch2_8"], "did you mean vit_pico_patch2_8"),
        (["finetune"], "--data FOLDER"),
        (["finetune", "--model", "x"], "--data FOLDER"),
        (["train", "--balance", "sampling", "--repeats", "2"], "use balance=loss"),
        (["finetune", "--model", "/nowhere/x.pth", "--data", "digits"], "no file or folder"),
    ],
)
def test_a_mistake_is_one_line_exit_code_2_and_leaves_no_folder(words, message, capsys, tmp_path):
    err = fails(words, capsys)
    assert message in err
    assert err.startswith("vitreous: ")
    assert err.count("\n") == 1
    assert not list(tmp_path.rglob("*"))


# --- folders that are not what they should be -------------------------------------------------------------------------


def test_an_empty_folder(tmp_path, capsys):
    (tmp_path / "zoo").mkdir()
    assert "expected one for each class" in fails(["train", "--data", "zoo", *TINY], capsys)
    (tmp_path / "zoo/cat").mkdir()
    assert "no images in them" in fails(["train", "--data", "zoo", *TINY], capsys)


def test_a_folder_of_one_class(tmp_path, capsys):
    make_folder(tmp_path / "zoo", classes=("cat",))
    assert "at least two classes" in fails(["train", "--data", "zoo", *TINY], capsys)


def test_a_test_class_that_train_lacks(tmp_path, capsys):
    make_folder(tmp_path / "zoo/train")
    make_folder(tmp_path / "zoo/test", classes=("cat", "owl"))
    err = fails(["train", "--data", "zoo", *TINY], capsys)
    assert "'owl'" in err
    assert "add some to train" in err


@pytest.mark.parametrize("resident", ["yes", "no"])
def test_an_unreadable_image_is_named_in_one_line(tmp_path, capsys, resident):
    make_folder(tmp_path / "zoo")
    for name in ("cat/3.png", "dog/5.png"):
        (tmp_path / "zoo" / name).write_bytes(b"no image")
    main(["train", "--data", "zoo", "--resident", resident, *TINY])
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "cannot be read" in line]
    assert line.startswith("2 of 16 images cannot be read and are left out: zoo/")
    assert "cat/3.png" in line
    assert "dog/5.png" in line


def test_a_class_without_a_readable_image_ends_the_run(tmp_path, capsys):
    for path in (make_folder(tmp_path / "zoo") / "cat").iterdir():
        path.write_bytes(b"no image")
    err = fails(["train", "--data", "zoo", *TINY], capsys)
    assert "no readable image to learn from in 'cat': 8 cannot be read, such as zoo/cat/" in err


def test_few_images_are_sent_to_finetune(zoo, capsys):
    err = fails(["train", "--data", zoo], capsys)
    assert "12 training images of about 8×8 px are too few to learn from scratch" in err
    assert f"use vitreous finetune --data {zoo}" in err
    assert not Path("runs").exists()


@pytest.mark.slow
def test_a_folder_without_a_recipe_gets_a_model_that_suits_its_images(tmp_path, capsys):
    make_folder(tmp_path / "zoo", each=400)
    main(["train", "--data", "zoo", "--epochs", "1", "--device", "cpu", "--snapshots", "0"])
    err = capsys.readouterr().err
    assert re.search(r"\d+ training images of about 8×8 px: vit_pico_patch2_8 at 8 px for 1 epoch ", err)
    assert "1 epoch of 10 steps of 64 images: about " in err
    config = RunFolder("runs/zoo").read_config()
    assert (config.image_size, config.channels, config.data) == (8, 3, "zoo")


@pytest.mark.parametrize("words", [["digits"], ["cifar10"], ["--model", "vit_pico_patch2_8"]])
def test_photographs_are_not_shrunk_to_a_few_pixels(words, tmp_path, capsys):
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(3):
            Image.new("RGB", (400, 300), (90 * i, 30, 60)).save(tmp_path / "photos" / name / f"{i}.jpg")
    err = fails(["train", *words, "--data", "photos", "--device", "cpu"], capsys)
    assert re.search(r"images of about 400×300 px become (8×8|32×32) px for vit_", err)
    assert "vitreous finetune --data photos" in err
    assert not Path("runs").exists()


def test_photographs_are_shrunk_if_that_is_asked_for(tmp_path, capsys):
    make_folder(tmp_path / "zoo", size=200)
    main(["train", "digits", "--data", "zoo", "--image-size", "8", *TINY])
    assert "held-out images" in capsys.readouterr().out


def test_unequal_classes_are_said_before_and_after(tmp_path, capsys):
    make_folder(tmp_path / "zoo", each=20)
    for path in sorted((tmp_path / "zoo/dog").iterdir())[6:]:
        path.unlink()
    main(["train", "--data", "zoo", "--balance", "loss", *TINY])
    found = capsys.readouterr()
    assert re.search(r"classes are unequal: cat \d+, dog \d: the loss of rare ones weighs more", found.err)
    assert re.search(r"^[\d.]+% balanced: the mean over classes", found.out, re.MULTILINE)
    assert re.search(r"^  dog: \d of \d$", found.out, re.MULTILINE)
    result = RunFolder("runs/zoo").read_result()
    shares = [correct / images for correct, images in result["classes"].values()]
    assert result["balanced"] == pytest.approx(sum(shares) / len(shares))
    assert "Classes of unequal size" in Path("runs/zoo/run.html").read_text()


@pytest.mark.slow
def test_a_batch_larger_than_the_set_is_cut_and_the_same_command_goes_on(zoo, capsys, monkeypatch):
    words = ["train", "--data", zoo, *TINY, "--batch-size", "999", "--output", "run", "--save-every", "0", "--json"]
    with monkeypatch.context() as patch:
        stop_after(patch, 1, signal.SIGTERM)
        err = fails(words, capsys, 128 + signal.SIGTERM)
    assert "instead of 999" in err
    main(words)
    assert json.loads(capsys.readouterr().out)["epochs"] == 2
    cut = json.loads(Path("run/metrics.jsonl").read_text().splitlines()[-1])["batch_size"]
    assert f"batch size {cut} instead of 999" in err
    assert f"batches of {cut}, " in Path("run/run.html").read_text()


def test_a_batch_size_of_auto_is_found_and_kept(zoo, capsys):
    words = ["train", "--data", zoo, *TINY, "--batch-size", "auto", "--json"]
    main(words)
    assert "batch size 8, the default on a CPU" in capsys.readouterr().err
    assert RunFolder("runs/zoo").read_config().batch_size == 8


# --- runs -------------------------------------------------------------------------------------------------------------


def stop_after(patch, updates, number):
    plain_call, calls = TrainStep.__call__, []

    def call(self, *arguments):
        plain_call(self, *arguments)
        calls.append(1)
        if len(calls) == updates:
            os.kill(os.getpid(), number)

    patch.setattr(TrainStep, "__call__", call)


@pytest.mark.slow
def test_a_run_prints_one_json_object_and_leaves_its_folder(zoo, capsys, tmp_path):
    words = ["train", "--data", zoo, *TINY, "--snapshots", "2", "--log", "tensorboard", "--output", "out/run", "--json"]
    pytest.importorskip("tensorboard")
    main(words)
    out = capsys.readouterr().out
    result = json.loads(out)
    assert out.count("\n") == 1
    assert {"top1", "epochs", "seconds"} <= set(result)
    run = tmp_path / "out/run"
    assert json.loads((run / "result.json").read_text()) == result
    assert {path.name for path in run.iterdir()} >= {"config.json", "metrics.jsonl", "checkpoints", "model", "run.html"}
    assert list((run / "tensorboard").glob("events.*"))
    assert len(list((run / "snapshots").glob("*.npz"))) == 2
    assert "<h1>" in (run / "run.html").read_text()
    assert vitreous.load(run / "model").card.class_names == ("cat", "dog")
    card = (run / "model/README.md").read_text()
    assert f"{result['top1']:.2%}** of {result['images']} held-out images of zoo" in card
    assert str(tmp_path) not in card
    main(words)
    again = capsys.readouterr()
    assert json.loads(again.out) == result
    assert "is already finished" in again.err


def test_a_run_without_json_tells_the_accuracy_and_what_to_try(zoo, capsys):
    main(["train", "--data", zoo, *TINY])
    found = capsys.readouterr()
    assert re.fullmatch(r"\d+\.\d\d% of \d held-out images after 2 epochs\n", found.out)
    assert "vitreous explain IMAGE --model runs/zoo\n" in found.err
    assert "page: runs/zoo/run.html (curves and mistakes)\n" in found.err


@pytest.mark.parametrize(("snapshots", "inside"), [("1", "internals)"), ("2", "internals over the epochs)")])
def test_the_page_is_described_by_what_it_has(snapshots, inside, zoo, capsys):
    main(["train", "--data", zoo, *TINY, "--snapshots", snapshots])
    assert f"run.html (curves, mistakes, and the model's {inside}\n" in capsys.readouterr().err


def test_images_held_out_for_validation_are_called_so(zoo, capsys):
    main(["train", "--data", zoo, *TINY, "--validation", "0.25"])
    found = capsys.readouterr()
    assert re.search(
        r"learn from \d images of 2 classes: 'cat', 'dog' \(3 held out for validation\), on cpu", found.err
    )
    assert re.search(r"^\d+\.\d\d% of 3 training images held out for validation after 2 epochs\n", found.out)


@pytest.mark.slow
def test_finished_runs_get_a_new_folder_and_unfinished_ones_go_on(zoo, capsys, monkeypatch):
    words = ["train", "--data", zoo, *TINY, "--save-every", "0"]
    main(words)
    with monkeypatch.context() as patch:
        stop_after(patch, 1, signal.SIGTERM)
        fails(words, capsys, 143)
    assert sorted(path.name for path in Path("runs").iterdir()) == ["zoo", "zoo-2"]
    main(words)
    assert "resuming at epoch" in capsys.readouterr().err
    main([*words, "--seed", "3"])
    assert sorted(path.name for path in Path("runs").iterdir()) == ["zoo", "zoo-2", "zoo-3"]


def test_a_mistake_does_not_use_up_a_folders_name(zoo, capsys):
    Path("runs/zoo").mkdir(parents=True)
    Path("runs/zoo/run.lock").touch()  # somebody was killed before the run began
    fails(["train", "--data", "/nowhere", *TINY], capsys)
    main(["train", "--data", zoo, *TINY])
    assert [path.name for path in Path("runs").iterdir()] == ["zoo"]


def test_a_run_of_another_version_is_left_alone(zoo, capsys):
    Path("runs/zoo").mkdir(parents=True)
    Path("runs/zoo/config.json").write_text('{"magic": 1}')
    main(["train", "--data", zoo, *TINY])
    assert Path("runs/zoo-2/result.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_one_line_that_tells_how_to_go_on(zoo, capsys, monkeypatch, number, tmp_path):
    words = ["train", "--data", zoo, *TINY, "--output", "a run"]
    with monkeypatch.context() as patch:
        stop_after(patch, 1, number)
        err = fails([*words, "--data-root", "some where"], capsys, 128 + number)
    (line,) = [line for line in err.splitlines() if "stopped and saved" in line]
    assert line.endswith("resume with: vitreous train --resume 'a run' --data-root 'some where'")
    assert (tmp_path / "a run/run.html").exists()
    main(["train", "--resume", "a run", "--json"])
    result = json.loads(capsys.readouterr().out)
    main([*words[:-1], "whole", "--json"])
    capsys.readouterr()
    models = [vitreous.load(Path(name) / "model").state_dict() for name in ("a run", "whole")]
    assert all(torch.equal(value, models[1][name]) for name, value in models[0].items())
    assert result["epochs"] == 2


def test_a_signal_before_the_first_update_says_to_begin_again(zoo, capsys, monkeypatch):
    from vitreous.training import setup

    monkeypatch.setattr(setup, "build_model", lambda *arguments: os.kill(os.getpid(), signal.SIGTERM))
    err = fails(["train", "--data", zoo, *TINY], capsys, 143)
    assert "stopped while setting up; start again with the same command" in err
    assert not Path("runs").exists()


@pytest.mark.slow
def test_a_real_process_that_is_asked_to_stop(zoo, tmp_path):
    words = ["train", "--data", zoo, *TINY, "--epochs", "100000", "--output", "run", "--save-every", "1e9"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "vitreous", *words],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    metrics = tmp_path / "run/metrics.jsonl"
    while process.poll() is None and not (metrics.is_file() and metrics.stat().st_size):
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 143, err
    assert out == ""
    assert sum("resume with: vitreous train --resume run" in line for line in err.splitlines()) == 1
    assert list((tmp_path / "run/checkpoints").glob("*.json"))


def test_resume_refuses_flags_that_would_change_the_run_and_heeds_the_others(zoo, capsys, monkeypatch):
    with monkeypatch.context() as patch:
        stop_after(patch, 1, signal.SIGTERM)
        fails(["train", "--data", zoo, *TINY, "--output", "run"], capsys, 143)
    err = fails(["train", "--resume", "run", "--epochs", "7", "--seed", "3", "--output", "other"], capsys)
    assert "leave out --epochs, --seed, --output" in err
    main(["train", "--resume", "run", "--epochs", "2", "--keep", "1", "--save-every", "0"])
    assert len(list(Path("run/checkpoints").glob("*.json"))) == 1
    assert RunFolder("run").read_config().keep == 1


def test_an_unfinished_run_says_so_when_it_answers_and_not_how_it_began_when_it_resumes(zoo, capsys, monkeypatch):
    vitreous.save(vitreous.ViT(vitreous.variant("vit_pico_patch2_8")), "base")
    words = ["finetune", "--data", zoo, *TINY, "--model", "base", "--output", "run"]
    head = "a new head for 2 classes replaces the one for"
    with monkeypatch.context() as patch:
        stop_after(patch, 1, signal.SIGTERM)
        assert head in fails(words, capsys, 143)
    main(["classify", f"{zoo}/cat/0.png", "--model", "run"])
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "unfinished" in line]
    expected = "run is an unfinished run, its weights are from the middle of epoch 1 of 2: "
    expected += "vitreous train --resume run finishes it"
    assert line == expected
    assert vitreous.load("run").card.report.remarks()[0] == expected
    main(["train", "--resume", "run"])
    err = capsys.readouterr().err
    assert "resuming at epoch 1, step 1 of" in err
    assert head not in err
    main(["classify", f"{zoo}/cat/0.png", "--model", "run"])
    assert "unfinished" not in capsys.readouterr().err


@pytest.mark.slow
def test_a_typed_flag_counts_although_it_is_the_recipes_default(zoo, capsys, monkeypatch):
    usual = RECIPES["digits"].config
    with monkeypatch.context() as patch:
        stop_after(patch, 1, signal.SIGTERM)
        fails(["train", "--data", zoo, *TINY, "--output", "run", "--keep", "7", "--seed", "5"], capsys, 143)
    err = fails(["train", "--resume", "run", "--epochs", str(usual.epochs), f"--seed={usual.seed}"], capsys)
    assert "leave out --epochs, --seed" in err
    main(["train", "--resume", "run", "--keep", str(usual.keep)])
    assert RunFolder("run").read_config().keep == usual.keep


def test_a_switch_that_is_the_default_already_is_taken(zoo, capsys):
    main(["train", "--data", zoo, *TINY, "--output", "run", "--no-compile", "--no-flip"])
    assert (RunFolder("run").read_config().compile, RunFolder("run").read_config().flip) == (False, False)
    assert "leave out --flip" in fails(["train", "--resume", "run", "--flip"], capsys)


def test_full_disk_is_exit_code_2_and_one_line(zoo, capsys, monkeypatch):
    import errno

    from vitreous.training import checkpoint

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    words = ["train", "--data", zoo, *TINY, "--output", "run"]
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_safetensors", full)
        err = fails(words, capsys)
    assert err.splitlines()[-1].startswith("vitreous: run could not be written to (No space left on device): free some")
    main(words)


@pytest.mark.slow
def test_finetune_begins_with_a_checkpoint(zoo, capsys, tmp_path):
    main(["train", "--data", zoo, *TINY, "--output", "first"])
    make_folder(tmp_path / "birds", classes=("owl", "hen", "jay"), seed=1)
    words = ["--model", "first/model", "--data", "birds", "--epochs", "1", "--batch-size", "8", "--device", "cpu"]
    main(["finetune", *words, "--snapshots", "0", "--policy", "head", "--json"])
    found = capsys.readouterr()
    assert "a new head for 3 classes replaces the one for 2" in found.err
    before, after = (vitreous.load(path).state_dict() for path in ("first/model", "runs/birds/model"))
    assert {name for name in after if not torch.equal(before[name], after[name])} == {"head.weight", "head.bias"}
    described = json.loads(Path("runs/birds/model.json").read_text())
    assert described["vitreous"]["training"] is None  # how good the first model was says nothing of this one
    config = RunFolder("runs/birds").read_config()
    assert (config.policy, config.learning_rate, config.pretrained) == ("head", POLICY_RATES["head"], True)
