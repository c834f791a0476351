"""A run's folder and its checkpoints as models: what is loaded is what was measured, or one line says why not."""

import json

import pytest
import torch
from tiny_runs import break_off, parts_of, plain, tiny

import vitreous
from vitreous.training import checkpoint
from vitreous.training.loop import train
from vitreous.weights.runs import checkpoint_name
from vitreous.weights.safety import CheckpointError


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))


def checkpoints(folder):
    return sorted((folder / "checkpoints").glob("step-*.safetensors"))


def same(one, other):
    left, right = one.state_dict(), other.state_dict()
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.slow
@pytest.mark.parametrize("make", [tiny, plain])
def test_the_last_checkpoint_is_the_model_of_a_finished_run(zoo, tmp_path, make):
    train(make(zoo), tmp_path / "run")
    whole = vitreous.load(tmp_path / "run/model")
    last = vitreous.load(checkpoints(tmp_path / "run")[-1])
    assert same(vitreous.load(tmp_path / "run"), whole)
    assert same(last, whole)  # with `tiny` these are averages
    assert last.config == whole.config
    assert last.card.preprocess == whole.card.preprocess
    assert last.card.class_names == ("cat", "dog", "owl")
    output = [line for line in last.card.report.remarks() if "averaged" in line]
    assert len(output) == (1 if make is tiny else 0)


def test_an_unfinished_run_is_its_newest_whole_checkpoint(zoo, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    break_off(tiny(zoo, save_every=0, keep=3), folder, monkeypatch, update=4)
    first, *_, last = checkpoints(folder)
    newest = vitreous.load(folder)
    parts = parts_of(tiny(zoo))
    checkpoint.read(checkpoint.latest(folder / "checkpoints")[1], parts.state)
    assert same(newest, parts.evaluate.current_model())
    assert not same(vitreous.load(first), newest)
    last.write_bytes(last.read_bytes()[:-1] + b"x")
    assert not same(vitreous.load(folder), newest)


def test_two_moments_of_one_run_answer_differently(zoo, tmp_path):
    train(tiny(zoo, epochs=2, save_every=0, keep=99, learning_rate=0.05), tmp_path / "run")
    paths = checkpoints(tmp_path / "run")
    x = torch.zeros(1, 3, 8, 8)
    with torch.no_grad():
        answers = [vitreous.load(path)(x) for path in (paths[0], paths[-1])]
    assert not torch.equal(*answers)


@pytest.mark.slow
def test_a_resnets_checkpoint_is_loaded_too(zoo, tmp_path):
    train(plain(zoo, model="resnet18", epochs=1), tmp_path / "run")
    last = vitreous.load(checkpoints(tmp_path / "run")[-1])
    assert same(last, vitreous.load(tmp_path / "run"))
    assert last.card.class_names == ("cat", "dog", "owl")


def test_a_run_without_a_checkpoint_says_so(zoo, tmp_path, monkeypatch):
    break_off(tiny(zoo), tmp_path / "run", monkeypatch, update=1)
    with pytest.raises(FileNotFoundError, match="a run without a complete checkpoint"):
        vitreous.load(tmp_path / "run")


def test_a_run_of_an_earlier_version_says_what_to_do(zoo, tmp_path):
    train(tiny(zoo), tmp_path / "run")
    (tmp_path / "run/model.json").unlink()
    with pytest.raises(ValueError, match=r"lacks model.json.*vitreous train --resume"):
        vitreous.load(checkpoints(tmp_path / "run")[-1])
    assert vitreous.load(tmp_path / "run").config.classes == 3


def test_a_moment_of_a_lora_run_is_refused_in_a_line(zoo, tmp_path):
    pytest.importorskip("peft")
    vitreous.save(vitreous.ViT(vitreous.variant("vit_pico_patch2_8")), tmp_path / "base")
    config = plain(zoo, model=str(tmp_path / "base"), pretrained=True, policy="lora", epochs=1)
    train(config, tmp_path / "run")
    with pytest.raises(CheckpointError, match="LoRA run, not merged yet: finish the run"):
        vitreous.load(checkpoints(tmp_path / "run")[-1])
    assert vitreous.load(tmp_path / "run").config.classes == 3


def test_a_description_that_leads_out_of_the_run_is_refused(zoo, tmp_path):
    train(tiny(zoo, epochs=1), tmp_path / "run")
    described = tmp_path / "run/model.json"
    described.rename(tmp_path / "elsewhere.json")
    described.symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(ValueError, match="outside its folder"):
        vitreous.load(checkpoints(tmp_path / "run")[-1])


def test_the_description_is_what_a_saved_model_says(zoo, tmp_path):
    train(tiny(zoo, epochs=1), tmp_path / "run")
    early, late = (json.loads((tmp_path / "run" / name).read_text()) for name in ("model.json", "model/config.json"))
    for name in ("config", "preprocess", "class_names", "head"):
        assert early["vitreous"][name] == late["vitreous"][name]


def test_other_files_are_no_moments():
    assert checkpoint_name("runs/x/model") is None
    assert checkpoint_name("step-000000001.safetensors") is None
    assert checkpoint_name("checkpoints/step-000000012.safetensors") == "run, update 12"
