"""A fold model is the same network: for every family, with pixels as they are, and without touching the original."""

import pytest
import torch
from torch import nn

from conftest import noise
from vitreous.models.last_block import logits_only
from vitreous.models.residual import LayerScale
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.speed.weight_folding import fold

SMALL = {"image_size": 16, "patch_size": 4, "width": 32, "depth": 3, "heads": 4, "classes": 7}
FAMILIES = {
    "plain": {},
    "without biases": {"qkv_bias": False, "patch_bias": False},
    "DeiT distilled": {"distillation_token": True, "distillation_head": True},
    "DINOv2": {"layer_scale": 0.1, "swiglu": True, "registers": 2},
    "CLIP": {"embedding_norm": True, "activation": "quick_gelu", "patch_bias": False},
    "mean pool": {"pool": "mean", "class_token": False, "final_norm": False, "fc_norm": True},
    "norms on queries and keys": {"qk_norm": True},
    "BEiT": {"relative_position": "table", "qkv_bias": False, "qv_bias": True, "position": "none", "layer_scale": 0.1},
    "shared relative positions": {"relative_position": "shared-mlp", "relative_width": 8, "post_norm": True},
    "headless": {"classes": 0},
}
MEAN, STD = (0.48, 0.46, 0.41), (0.27, 0.26, 0.28)


def close(ours, theirs):
    assert (ours - theirs).abs().max() <= 1e-4 * max(1.0, theirs.abs().max().item())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folded_model_gives_the_same_logits(family):
    model = noise(ViT(ViTConfig(**{**SMALL, **FAMILIES[family]}))).eval()
    x = torch.randn(5, 3, 16, 16)
    with torch.no_grad():
        close(fold(model)(x), model(x))
        close(logits_only(fold(model), x), model(x))


@pytest.mark.parametrize("bias", [True, False])
def test_the_normalisation_of_images_goes_into_the_patch_embedding(bias):
    model = noise(ViT(ViTConfig(**SMALL, patch_bias=bias))).eval()
    pixels = torch.randint(0, 256, (4, 3, 16, 16), dtype=torch.uint8)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    with torch.no_grad():
        close(fold(model, MEAN, STD)(pixels.float()), model((pixels / 255 - mean) / std))


def test_nothing_is_left_of_what_was_folded_and_the_original_is_as_it_was():
    model = noise(ViT(ViTConfig(**SMALL, layer_scale=0.1))).eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    fast = fold(model, MEAN, STD)
    inner = [module for block in fast.blocks for module in block.modules()]
    assert not any(isinstance(module, LayerScale) for module in inner)
    assert all(module.weight is None for module in inner if isinstance(module, nn.LayerNorm))
    assert before.keys() == model.state_dict().keys()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class Adapted(nn.Linear):
    """A linear layer with something beside its weight, as LoRA's."""

    def forward(self, x):
        return super().forward(x) + x.flip(-1).repeat(1, 1, self.out_features // self.in_features)


@pytest.mark.parametrize("layer", ["qkv", "proj"])
def test_a_layer_that_is_more_than_its_weight_keeps_the_norm_before_and_the_scale_behind_it(layer):
    model = noise(ViT(ViTConfig(**SMALL, layer_scale=0.1))).eval()
    setattr(model.blocks[1].attn, layer, noise(Adapted(32, 96 if layer == "qkv" else 32)))
    x = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        close(fold(model)(x), model(x))


def test_the_wrong_number_of_means_is_refused():
    with pytest.raises(ValueError, match="takes 3 channels, got 1"):
        fold(ViT(ViTConfig(**SMALL)), (0.5,), (0.5,))
