import json

import pytest
import torch

from conftest import noise
from vitreous.models.vit import ViT, ViTConfig
from vitreous.weights.load import load
from vitreous.weights.save import save


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
    described = json.loads((tmp_path / "config.json").read_text())
    assert described["vitreous"]["config"]["width"] == 48


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
