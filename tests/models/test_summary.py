"""A model in one line, its FLOPs, and its shapes."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from vitreous.models.resnet import ResNet, ResNetConfig
from vitreous.models.summary import count_flops, describe, trace
from vitreous.models.variants import variant
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig

TINY = {"image_size": 32, "patch_size": 8, "width": 48, "mlp_width": 100, "depth": 2, "heads": 4, "classes": 5}


def test_a_line_names_what_is_unusual():
    line = describe(ViT(variant("vit_tiny_patch16_224", depth=1, registers=4, mlp_width=100)))
    assert line == "224×224 px, 16×16 patches in 14×14, width 192, depth 1, heads 3, registers 4, mlp_width 100"
    assert describe(ResNet(ResNetConfig(18))) == "depth 18"


def test_flops_are_two_for_each_multiply_add():
    model = ViT(variant("vit_tiny_patch16_224", **TINY))
    n, t, d, m, classes = 16, 17, 48, 100, 5
    patches = n * 3 * 8 * 8 * d
    block = t * d * 3 * d + 2 * t * t * d + t * d * d + 2 * t * d * m
    assert count_flops(model) == 2 * (patches + 2 * block + d * classes)


@pytest.mark.parametrize(
    "changes", [{}, {"swiglu": True}, {"registers": 2, "qk_norm": True}, {"pool": "mean"}, {"distillation_token": True}]
)
def test_flops_are_those_that_torch_counts(changes):
    model = ViT(ViTConfig(**{**TINY, **changes})).train()
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        model.eval()(torch.zeros(1, 3, 32, 32))
    model.train()
    assert count_flops(model) == counter.get_total_flops()
    assert model.training
    resnet = ResNet(ResNetConfig(18, classes=5)).train()
    before = resnet.bn1.running_mean.clone()
    count_flops(resnet)
    assert torch.equal(resnet.bn1.running_mean, before)


def test_a_trace_has_the_shape_of_every_step():
    shapes = dict(trace(ViT(variant("vit_tiny_patch16_224", **TINY)).eval()))
    assert shapes["image"] == "3×32×32"
    assert shapes["queries, split into heads"] == "4×17×12"
    assert shapes["attention: queries × keys"] == "4×17×17"
    assert shapes["logits"] == "5"
    with pytest.raises(ValueError, match="this is another network"):
        trace(ResNet(ResNetConfig(18)))


@pytest.mark.parametrize("position", ["learned", "sine-1d", "sine-2d", "none"])
def test_flops_are_counted_for_every_kind_of_positions(position):
    model = ViT(ViTConfig(image_size=32, patch_size=8, width=24, depth=2, heads=4, classes=5, position=position))
    patches, tokens, d = 16, 17, 24
    block = 2 * tokens * (3 * d * d + d * d + 8 * d * d) + 4 * tokens * tokens * d
    assert count_flops(model) == 2 * patches * 3 * 64 * d + 2 * block + 2 * d * 5


def test_a_trace_records_no_gradients():
    model, grads = ViT(variant("vit_femto_patch4_32")).eval(), []
    model.register_forward_hook(lambda *_: grads.append(torch.is_grad_enabled()))
    trace(model)
    assert grads == [False]
