"""Packed weights on a CPU: the plain model's logits and features."""

import pytest
import torch
from torch import nn

from conftest import noise
from vitreous.models.vit import ViT, ViTConfig
from vitreous.speed import cpu
from vitreous.speed.fold import fold

if not cpu.available():
    pytest.skip("this torch has no oneDNN", allow_module_level=True)

SMALL = {"image_size": 16, "patch_size": 4, "width": 48, "depth": 3, "heads": 3, "classes": 7}
FAMILIES = {
    "plain": {},
    "registers, layer scale": {"registers": 2, "layer_scale": 0.1},
    "query and key norms": {"qk_norm": True},
    "distilled": {"distillation_token": True, "distillation_head": True},
}


def made(**changes):
    torch.manual_seed(1)
    model = noise(ViT(ViTConfig(**{**SMALL, **changes}))).eval()
    return model, torch.randn(4, 3, 16, 16)


def distance(ours, theirs):
    return ((ours.float() - theirs).abs().max() / theirs.abs().max()).item()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
@torch.no_grad()
def test_packed_weights_give_the_models_logits_and_features(family, activation):
    model, x = made(**FAMILIES[family], activation=activation)
    network = fold(model)
    assert distance(cpu.packed_forward(network, len(x))(x), model(x)) < 1e-5
    assert distance(cpu.packed_forward(network, len(x), "features")(x), model.features(x)) < 1e-5


@torch.no_grad()
def test_a_packed_layer_adds_a_residual_and_applies_gelu():
    layer, x, residual = nn.Linear(16, 8), torch.randn(5, 16), torch.randn(5, 8)
    packed = cpu.PackedLinear(layer, 5)
    torch.testing.assert_close(packed(x), layer(x))
    torch.testing.assert_close(packed.add(x, residual), residual + layer(x))
    for kind in ("none", "tanh"):
        torch.testing.assert_close(packed(x, "gelu", kind), nn.functional.gelu(layer(x), approximate=kind))
