"""What `save` writes: complete files or none, the same weights in every format."""

import json
import os

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from conftest import noise
from vitreous.models.vit import ViT, ViTConfig
from vitreous.weights import save as saving
from vitreous.weights.load import load
from vitreous.weights.save import save, write_npz, write_pickle, write_safetensors

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


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small noisy model, saved."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("model")
    save(noise(ViT(ViTConfig(image_size=32, patch_size=8, width=48, depth=2, heads=4, classes=7))), path)
    return path


def test_our_own_folder_comes_back_bit_by_bit(folder, tmp_path):
    model = load(folder)
    save(model, tmp_path)
    again = load(tmp_path)
    assert again.config == model.config
    assert again.card.preprocess == model.card.preprocess
    for key, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[key], value), key
    stored = json.loads((tmp_path / "config.json").read_text())["vitreous"]
    assert (stored["version"], stored["config"]["width"]) == (2, 48)


def test_from_pretrained_and_save_pretrained(folder, tmp_path):
    model = ViT.from_pretrained(str(folder))
    model.save_pretrained(str(tmp_path / "again"))
    x = torch.randn(1, 3, 32, 32)
    assert torch.equal(ViT.from_pretrained(str(tmp_path / "again"))(x), model(x))


def test_nan_in_the_weights_is_reported(folder, tmp_path):
    model = load(folder)
    with torch.no_grad():
        model.norm.bias[3] = float("nan")
    save(model, tmp_path)
    assert load(tmp_path).card.report.nonfinite == {"norm.bias": 1}
