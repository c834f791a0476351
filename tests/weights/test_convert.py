"""Every conversion keeps the function, the preprocessing and the class names."""

import pytest
import torch

from conftest import assert_same, noise
from vitreous.data.preprocess import HALF, default_preprocess
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.weights.card import Card
from vitreous.weights.convert import convert
from vitreous.weights.load import load

X = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(5))


def ours_with_half_statistics():
    from dataclasses import replace

    model = noise(ViT(ViTConfig(image_size=32, patch_size=8, width=48, depth=2, heads=4, classes=3)))
    preprocess = replace(default_preprocess(model.config), mean=HALF, std=HALF)
    model.card = Card(name="mine", preprocess=preprocess, class_names=("cat", "dog", "owl"))
    return model


@pytest.mark.parametrize(
    ("to", "out"),
    [
        ("torchvision", "folder"),
        ("torchvision", "file.pth"),
        ("timm", "file.safetensors"),
        ("google", "file.npz"),
        ("timm", "folder"),
        ("huggingface", "folder"),
        ("vitreous", "folder"),
    ],
)
@torch.no_grad()
def test_preprocessing_and_class_names_survive_every_conversion(to, out, tmp_path):
    model = ours_with_half_statistics()
    convert(model, tmp_path / out, to=to)
    again = load(tmp_path / out, assume={"heads": 4})
    assert again.card.preprocess.mean == HALF
    assert again.card.preprocess.std == HALF
    assert again.card.class_names == ("cat", "dog", "owl")
    assert "preprocessing" not in again.card.report.assumed
    assert_same(again(X), model(X))


@pytest.mark.parametrize("to", ["timm", "torchvision", "huggingface", "google"])
def test_a_head_with_a_norm_is_held_by_no_other_library(to, tmp_path):
    model = noise(ViT(ViTConfig(image_size=32, patch_size=8, width=48, depth=2, heads=4, classes=3, head_norm=True)))
    with pytest.raises(ValueError, match="does not support head_norm=True"):
        convert(model, tmp_path / "folder", to=to)
