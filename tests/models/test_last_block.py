import pytest
import torch

from conftest import noise
from vitreous.inside.capture import capture
from vitreous.inside.intervene import intervene
from vitreous.models.last_block import features_only, logits_only
from vitreous.models.resnet import ResNet, ResNetConfig
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig

SMALL = {"image_size": 32, "patch_size": 8, "width": 48, "depth": 3, "heads": 4, "classes": 5}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"depth": 1},
        {"qkv_bias": False, "qk_norm": True},
        {"layer_scale": 0.1, "swiglu": True, "registers": 4, "prefix_positions": False},
        {"distillation_token": True, "distillation_head": True},
        {"representation_size": 20},
        {"pool": "mean"},
        {"pool": "token+mean"},
        {"classes": 0},
    ],
    ids=str,
)
@torch.no_grad()
def test_logits_and_features_are_the_whole_networks(changes):
    model = noise(ViT(ViTConfig(**SMALL | changes)))
    x = torch.randn(3, 3, 32, 32)
    whole = model(x)
    torch.testing.assert_close(logits_only(model, x), whole, rtol=0, atol=1e-5 * whole.abs().max().item())
    features = model.features(x)
    torch.testing.assert_close(features_only(model, x), features, rtol=0, atol=1e-5 * features.abs().max().item())


@torch.no_grad()
def test_the_last_mlp_gets_the_class_token_alone():
    model = noise(ViT(ViTConfig(**SMALL)))
    shapes = []
    model.blocks[-1].mlp.register_forward_hook(lambda _, inputs, output: shapes.append(tuple(output.shape)))
    logits_only(model, torch.randn(2, 3, 32, 32))
    model(torch.randn(2, 3, 32, 32))
    assert shapes == [(2, 1, 48), (2, 17, 48)]


@torch.no_grad()
def test_other_models_run_whole():
    model = ResNet(ResNetConfig(18, classes=4)).eval()
    x = torch.randn(1, 3, 32, 32)
    assert torch.equal(logits_only(model, x), model(x))
    assert torch.equal(features_only(model, x), model.features(x))


@pytest.mark.parametrize("changes", [{}, {"distillation_token": True, "distillation_head": True}, {"qk_norm": True}])
def test_gradients_are_the_whole_networks(changes):
    model = noise(ViT(ViTConfig(**SMALL | changes))).train()
    x = torch.randn(3, 3, 32, 32)
    found = []
    for run in (model, lambda x: logits_only(model, x)):
        model.zero_grad()
        run(x).square().sum().backward()
        found.append([parameter.grad.clone() for parameter in model.parameters()])
    for short, whole in zip(*found, strict=True):
        torch.testing.assert_close(short, whole, rtol=0, atol=1e-5 * max(1.0, whole.abs().max().item()))


def test_dropout_in_the_last_block_is_applied():
    model = noise(ViT(ViTConfig(**SMALL | {"dropout": 0.5, "attention_dropout": 0.5, "stochastic_depth": 0.5}))).train()
    x = torch.randn(3, 3, 32, 32)
    last = model.blocks[-1]
    assert not torch.equal(logits_only(model, x), logits_only(model, x))
    for part in (model.pos_drop, *model.blocks[:-1]):
        part.eval()  # now only the last block is random
    assert not torch.equal(logits_only(model, x), logits_only(model, x))
    for part in (last.skip, last.attn.proj_drop, last.mlp):
        part.eval()
    assert not torch.equal(logits_only(model, x), logits_only(model, x))  # attention's own dropout


@torch.no_grad()
def test_with_an_active_hook_the_whole_network_runs():
    model = noise(ViT(ViTConfig(**SMALL)))
    x = torch.randn(2, 3, 32, 32)
    with intervene(model, heads_off=[(2, 1)]):  # in the last block
        changed, truth = logits_only(model, x), model(x)
    assert torch.equal(changed, truth)
    assert not torch.allclose(changed, model(x))
    with capture(model, "attention") as seen:
        logits_only(model, x)
    assert "blocks.2.attention" in seen
