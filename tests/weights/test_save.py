"""What `save` writes: complete files or none, the same weights in every format."""

import json
import os
import shutil
from dataclasses import fields, replace
from typing import get_args

import numpy as np
import pytest
import torch
from families import FAMILIES, family
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from conftest import noise
from vitreous.data.preprocess import default_preprocess
from vitreous.models.dense_head import at_pixel
from vitreous.models.stems import STEMS
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.weights import save as saving
from vitreous.weights.card import Card
from vitreous.weights.load import load
from vitreous.weights.runs import MODEL_FILE
from vitreous.weights.safety import CheckpointError
from vitreous.weights.save import save, write_npz, write_pickle, write_safetensors
from vitreous.weights.saved_config import VERSION

TENSORS = {"a.weight": torch.arange(6.0).reshape(2, 3), "b": torch.tensor([1.5])}


@pytest.mark.parametrize("write", [write_safetensors, write_pickle, write_npz])
def test_every_writer_keeps_names_and_numbers(write, tmp_path):
    path = write(tmp_path / "w", TENSORS)
    readers = {write_safetensors: load_file, write_pickle: torch.load, write_npz: lambda p: dict(np.load(p))}
    found = readers[write](path)
    assert {key: torch.as_tensor(value).tolist() for key, value in found.items()} == {
        key: value.tolist() for key, value in TENSORS.items()
    }
    assert [entry.name for entry in tmp_path.iterdir()] == ["w"]


def test_a_full_disk_is_an_os_error_and_leaves_nothing(tmp_path, monkeypatch):
    def full(*arguments, **options):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(saving, "save_file", full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        write_safetensors(tmp_path / "w.safetensors", TENSORS)
    assert caught.value.errno == 28
    assert os.listdir(tmp_path) == []


def test_our_own_folder_comes_back_bit_by_bit(small_folder, tmp_path):
    model = load(small_folder)
    save(model, tmp_path)
    again = load(tmp_path)
    assert again.config == model.config
    assert again.card.preprocess == model.card.preprocess
    for key, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[key], value), key
    stored = json.loads((tmp_path / "config.json").read_text())["vitreous"]
    assert (stored["version"], stored["config"]["width"]) == (VERSION, 48)


def same_bits(ours, theirs):
    assert ours.keys() == theirs.keys()
    assert [key for key, value in ours.items() if not torch.equal(value, theirs[key])] == []


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_comes_back_bit_by_bit_from_a_folder_and_a_checkpoint_of_a_run(name, tmp_path):
    model = family(name, whole=True)
    save(model, tmp_path / "model")
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    (run / MODEL_FILE).write_text((tmp_path / "model/config.json").read_text())
    tensors = {f"model/{key}": value for key, value in model.state_dict().items()} | {"totals": torch.zeros(1)}
    checkpoint = write_safetensors(run / "checkpoints/step-000000001.safetensors", tensors)
    for path in (tmp_path / "model", checkpoint):
        again = load(path)
        assert again.config == model.config
        same_bits(again.state_dict(), model.state_dict())
        assert again.card.report.ignored == (["totals"] if path == checkpoint else [])


def test_every_field_of_a_config_that_decides_tensors_is_in_a_family():
    """A part that a new field brings needs a family: only then is it known to be saved, loaded and looked into."""
    configs = [family(name).config for name in FAMILIES]
    alike = {"position": {"sine-1d"}, "stem": set(STEMS) - {"r"}}  # no other kind of layer than one that is there
    for field in fields(ViTConfig):
        choices = {True, False} if field.type is bool else set(get_args(field.type))
        if isinstance(field.default, (bool, str)) and field.name != "activation":
            assert {getattr(config, field.name) for config in configs} >= choices - alike.get(field.name, set()), field


@pytest.fixture
def dense():
    """A noisy model with a class for each pixel."""
    config = ViTConfig(image_size=32, patch_size=8, width=48, depth=3, heads=4, classes=5)
    return noise(ViT(replace(config, dense="decoder", dense_blocks=(0, 2))))


@torch.no_grad()
def test_a_dense_model_comes_back_at_another_size(dense, tmp_path):
    save(dense, tmp_path)
    again = load(tmp_path, image_size=(40, 24))
    assert again(torch.randn(1, 3, 40, 24)).shape == (1, 5, 40, 24)
    assert [line for line in again.card.report.resized if "head" in line] == []
    same_bits(again.head.state_dict(), dense.head.state_dict())
    assert again.card.task == "segment"
    assert again.card.preprocess.size == (40, 24)


HEAD = ("weight", "bias", "norms.1.bias", "projections.0.weight", "convolutions.1.weight", "group_norms.0.bias")


@pytest.mark.parametrize("key", HEAD)
def test_every_tensor_of_a_dense_head_is_needed(dense, key, tmp_path):
    save(dense, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    for options in ({}, {"classes": 5}):  # a head for as many classes is the file's own, not a new one
        save_file(
            {name: value for name, value in tensors.items() if name != f"head.{key}"}, tmp_path / "model.safetensors"
        )
        with pytest.raises(CheckpointError, match=rf"1 weight\(s\) that the model needs are not in .*head\.{key}"):
            load(tmp_path, **options)


@pytest.mark.parametrize("key", ["norms.2.weight", "projections.5.bias", "convolutions.2.weight", "hidden.weight"])
def test_no_tensor_may_be_left_over_in_a_dense_head(dense, key, tmp_path):
    save(dense, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(tensors | {f"head.{key}": torch.zeros(48)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=rf"has no head\.{key}"):
        load(tmp_path)


def test_a_dense_head_can_be_replaced_by_a_classifier(dense, tmp_path):
    save(dense, tmp_path)
    model = load(tmp_path, classes=4)
    assert model(torch.randn(1, 3, 32, 32)).shape == (1, 4)
    assert model.card.task == "classify"
    assert model.card.report.reinitialised == ["head.weight", "head.bias"]


@pytest.mark.parametrize("kind", ["linear", "decoder"])
def test_a_dense_file_without_its_config_is_refused(kind, dense, tmp_path):
    dense.reset_dense(5, kind, blocks=[2])
    write_safetensors(tmp_path / "bare.safetensors", dense.state_dict())
    with pytest.raises(CheckpointError, match=r"no file says which blocks that reads: add its config\.json"):
        load(tmp_path / "bare.safetensors", assume={"heads": 4})


def test_one_pixel_and_a_card_of_another_task_are_not_saved(dense, tmp_path):
    with pytest.raises(ValueError, match="one pixel's class is not stored"):
        save(at_pixel(dense, 0, 0), tmp_path)
    dense.card = Card("mine", default_preprocess(dense.config))
    with pytest.raises(ValueError, match=r"has a dense head, and its card says task='classify': set model\.card\.task"):
        save(dense, tmp_path)
    dense.reset_classifier(5)
    dense.card.task = "segment"
    with pytest.raises(ValueError, match="has no dense head, and its card says task='segment'"):
        save(dense, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_size_that_contradicts_the_preprocessing_is_refused(small_folder, tmp_path):
    shutil.copytree(small_folder, tmp_path / "other")
    stored = json.loads((tmp_path / "other/config.json").read_text())
    stored["vitreous"]["preprocess"]["size"] = [64, 64]
    (tmp_path / "other/config.json").write_text(json.dumps(stored))
    with pytest.raises(CheckpointError, match=r"images of \(32, 32\), its preprocessing makes \(64, 64\)"):
        load(tmp_path / "other")


def test_labels_with_their_thresholds_come_back(small_folder, tmp_path):
    model = load(small_folder)
    model.card = replace(model.card, task="multilabel", thresholds=(0.125, 0.25, 0.5, 0.75, 0.3, 0.9, 0.0))
    save(model, tmp_path)
    card = load(tmp_path).card
    assert (card.task, card.thresholds, card.independent) == ("multilabel", model.card.thresholds, True)
    for classes in (0, 3):
        card = load(tmp_path, classes=classes).card
        assert (card.task, card.thresholds, card.independent) == ("classify", None, False)


def test_from_pretrained_and_save_pretrained(small_folder, tmp_path):
    model = ViT.from_pretrained(str(small_folder))
    model.save_pretrained(str(tmp_path / "again"))
    x = torch.randn(1, 3, 32, 32)
    assert torch.equal(ViT.from_pretrained(str(tmp_path / "again"))(x), model(x))


def test_nan_in_the_weights_is_reported(small_folder, tmp_path):
    model = load(small_folder)
    with torch.no_grad():
        model.norm.bias[3] = float("nan")
    save(model, tmp_path)
    assert load(tmp_path).card.report.nonfinite == {"norm.bias": 1}


@pytest.mark.parametrize("changes", [{}, {"registers": 7, "final_norm": False}], ids=str)
def test_a_model_of_ours_is_resized_as_timms(changes, tmp_path):
    shape = {"image_size": 32, "patch_size": 8, "width": 48, "depth": 2, "heads": 4, "classes": 7}
    save(ViT(ViTConfig(**shape, prefix_positions=False, **changes)), tmp_path)
    model = load(tmp_path, image_size=64)
    assert model.card.resize == "timm"
    assert "(timm's convention)" in model.card.report.resized[0]


@pytest.mark.parametrize("thing", ["packaged:cifar10", {}, torch.nn.Linear(1, 1)])
def test_what_is_no_model_of_ours_is_not_saved(thing, tmp_path):
    with pytest.raises(ValueError, match=f"expected a model of vitreous, got a {type(thing).__name__}"):
        save(thing, tmp_path)
    assert not list(tmp_path.iterdir())


def test_class_names_that_do_not_fit_are_not_saved(tmp_path):
    model = ViT(ViTConfig(image_size=32, patch_size=8, width=48, depth=1, heads=4, classes=3))
    model.card = Card("mine", default_preprocess(model.config), class_names=("cat", "dog"))
    with pytest.raises(ValueError, match=r"the card has 2 class names for 3 outputs: set model\.card\.class_names"):
        save(model, tmp_path)
    assert not list(tmp_path.iterdir())
