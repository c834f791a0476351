"""What another library cannot hold is named, and differences that change nothing are removed."""

import pytest
import torch

from conftest import assert_same, noise
from vitreous.models.vit import ViT, ViTConfig
from vitreous.weights.adapt import adapted
from vitreous.weights.convert import convert


def test_what_torchvision_cannot_hold_is_named(tmp_path):
    model = ViT(ViTConfig(image_size=32, patch_size=8, width=48, depth=1, heads=4, registers=2, layer_scale=1e-5))
    with pytest.raises(ValueError, match=r"registers=2.*layer_scale=1e-05"):
        convert(model, tmp_path / "out.pth", to="torchvision")
    assert not list(tmp_path.iterdir())


@torch.no_grad()
@pytest.mark.parametrize("position", ["learned", "sine-2d", "none"])
def test_positions_become_a_learned_table_with_one_for_the_class_token(position):
    config = ViTConfig(
        image_size=16, patch_size=8, width=16, depth=1, heads=2, position=position, prefix_positions=False
    )
    model = noise(ViT(config))
    tensors, plain = adapted(model, prefix_positions=1)
    assert (plain.position, plain.prefix_positions) == ("learned", True)
    assert tensors["pos_embed"].shape == (1, 5, 16)
    again = ViT(plain).eval()
    again.load_state_dict(tensors)
    x = torch.randn(2, 3, 16, 16)
    assert_same(again(x), model.eval()(x))


@torch.no_grad()
def test_a_missing_bias_becomes_zeros():
    model = noise(ViT(ViTConfig(image_size=16, patch_size=8, width=16, depth=1, heads=2, classes=3, head_bias=False)))
    tensors, config = adapted(model, prefix_positions=None)
    assert config.head_bias
    assert tensors["head.bias"].tolist() == [0, 0, 0]
    assert "head.bias" not in adapted(model, prefix_positions=None, head_bias=False)[0]
