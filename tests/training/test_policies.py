"""What learns under each policy, to the last parameter; LoRA folds back into a plain ViT."""

import re
from dataclasses import replace

import pytest
import torch
from tiny_runs import parts_of, plain

from conftest import noise
from vitreous.models.resnet import ResNet, ResNetConfig
from vitreous.models.timm_classifier import TimmClassifier, TimmConfig
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.training.policies import POLICIES, apply_policy, merge_lora
from vitreous.weights.save import save

SMALL = ViTConfig(image_size=8, patch_size=4, width=16, depth=3, heads=2, classes=3, fc_norm=True)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """All weights are noise: a fresh head is zero and would send no gradient back."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("checkpoint")
    save(noise(ViT(SMALL)), folder)
    return folder


def moved_by_one_update(config):
    """Names of parameters and buffers that an update changes."""
    parts = parts_of(config)
    with torch.no_grad():
        for name, weight in parts.model.named_parameters():
            if re.match(r"head\.|fc\.", name):
                weight.normal_()
    before = {name: value.clone() for name, value in parts.model.state_dict().items()}
    parts.train_step(next(parts.train_source.epoch(0, 8)), 0, 0, 1.0)
    after = parts.model.state_dict()
    assert set(before) == set(after)
    return {name for name in before if not torch.equal(before[name], after[name])}, parts


@pytest.mark.parametrize(
    ("policy", "norms", "expected"),
    [
        ("full", False, r".*"),
        ("head", False, r"head\..*"),
        ("attention", False, r"head\..*|blocks\.\d\.attn\.(qkv|proj)\.(weight|bias)"),
        ("attention", True, r"head\..*|blocks\.\d\.attn\.(qkv|proj)\.(weight|bias)|blocks\.\d\.norm[12]\..*"),
        ("head", True, r"head\..*|blocks\.\d\.norm[12]\..*"),
        ("last:1", False, r"head\..*|blocks\.2\..*|norm\..*|fc_norm\..*"),
        ("last:3", False, r"head\..*|blocks\..*|norm\..*|fc_norm\..*"),
    ],
)
def test_an_update_moves_exactly_what_the_policy_names(policy, norms, expected, zoo, checkpoint):
    config = plain(
        zoo, model=str(checkpoint), pretrained=True, policy=policy, train_norms=norms, weight_decay=0.1, average=0.5
    )
    moved, parts = moved_by_one_update(config)
    wanted = {name for name in parts.model.state_dict() if re.fullmatch(expected, name)}
    assert moved == wanted == set(parts.trainable) == set(parts.state.average)
    assert len(wanted) >= 2


@pytest.mark.parametrize(
    ("policy", "learns"), [("head", False), ("attention", False), ("last:1", True), ("full", True)]
)
def test_the_projection_of_a_head_begun_with_text_learns_where_blocks_do(policy, learns):
    model = ViT(replace(SMALL, head_norm=True, representation_size=5))
    trained = set(apply_policy(model, policy))
    assert {"head.weight", "head.bias", "head.norm.weight"} <= trained
    assert ("head.hidden.weight" in trained) == learns


@pytest.mark.parametrize("policy", ["head", "attention", "lora", "full"])
def test_a_new_attention_pool_learns_under_every_policy(policy, zoo, checkpoint):
    config = plain(zoo, model=str(checkpoint), pretrained=True, policy=policy, readout="attention", weight_decay=0.1)
    moved, parts = moved_by_one_update(config)
    pool = {name for name in parts.model.state_dict() if name.startswith("attn_pool.")}
    assert len(pool) == 13
    assert pool <= moved
    assert moved == set(parts.trainable)


def test_a_pool_that_was_loaded_is_part_of_the_extractor():
    assert apply_policy(ViT(replace(SMALL, pool="attention")), "head") == ["head.weight", "head.bias"]


@pytest.mark.parametrize("policy", ["full", "head", "attention", "last:1"])
@pytest.mark.parametrize("dense", [("linear", (0, 2)), ("decoder", (1, 2)), ("linear", (1,))])
@pytest.mark.parametrize("pool", ["token", "attention"])
def test_what_learns_in_a_dense_model_gets_a_gradient(policy, dense, pool):
    model = noise(ViT(replace(SMALL, dense=dense[0], dense_blocks=dense[1], pool=pool))).train()
    learns = set(apply_policy(model, policy))
    assert {name for name in model.state_dict() if name.startswith("head.")} <= learns
    model(torch.randn(2, 3, 8, 8)).square().sum().backward()
    assert {name for name, value in model.named_parameters() if value.grad is not None} == learns


def test_lora_moves_its_matrices_and_the_head_alone(zoo, checkpoint):
    moved, parts = moved_by_one_update(
        plain(zoo, model=str(checkpoint), pretrained=True, policy="lora", lora_rank=2, weight_decay=0.1)
    )
    layers = [
        f"blocks.{i}.attn.{layer}.lora_{m}.default.weight" for i in range(3) for layer in ("qkv", "proj") for m in "AB"
    ]
    assert moved == {"head.weight", "head.bias", *layers} == set(parts.trainable)
    assert parts.model.blocks[0].attn.qkv.lora_A["default"].weight.shape == (2, 16)


def test_merged_lora_is_a_plain_vit_with_the_same_logits(zoo, checkpoint):
    parts = parts_of(plain(zoo, model=str(checkpoint), pretrained=True, policy="lora"))
    with torch.no_grad():
        for name, weight in parts.model.named_parameters():
            if "lora_" in name or name.startswith("head"):
                weight.normal_(std=0.3)
    x = torch.randn(5, 3, 8, 8)
    unmerged = parts.evaluate.current_model()
    with torch.no_grad():
        before = unmerged(x)
        after = merge_lora(unmerged)(x)
    fresh = ViT(unmerged.config)
    fresh.load_state_dict(unmerged.state_dict())  # the very keys
    plain_weight = parts.model.blocks[0].attn.qkv.base_layer.weight
    assert not torch.allclose(fresh.blocks[0].attn.qkv.weight, plain_weight, atol=1e-3)
    torch.testing.assert_close(before, after, rtol=0, atol=1e-4)
    torch.testing.assert_close(fresh.eval()(x), after)
    assert "lora_A" in "".join(parts.model.state_dict())  # the run's own model stays as it is


@pytest.mark.parametrize("policy", ["full", "head"])
def test_a_resnet_learns_in_full_or_its_head_alone(policy, zoo):
    config = plain(zoo, model="resnet18", image_size=32, policy=policy, weight_decay=0.1)
    moved, parts = moved_by_one_update(config)
    names = set(parts.model.state_dict())
    # frozen batch norms keep their running statistics: "a fixed feature extractor"
    assert moved == (names if policy == "full" else {"fc.weight", "fc.bias"})


@pytest.mark.parametrize("policy", ["attention", "last:1", "lora"])
def test_a_resnet_has_no_blocks(policy):
    with pytest.raises(ValueError, match="a ResNet or timm classifier takes full or head"):
        apply_policy(ResNet(ResNetConfig(18, 3)), policy)


@pytest.mark.parametrize("policy", ["heads", "head:2", "", "last", "last:0", "last:4", "last:x"])
def test_a_policy_that_is_none_is_answered_with_those_there_are(policy):
    with pytest.raises(ValueError, match=r"last:N"):
        apply_policy(ViT(SMALL), policy)


def test_every_policy_is_tested_here():
    assert set(POLICIES) == {"full", "head", "attention", "last", "lora"}


def test_frozen_batch_norms_of_vectors_keep_their_statistics():
    model = TimmClassifier(TimmConfig("levit_128s", 3, 224)).train()
    apply_policy(model, "head")
    norms = [module for module in model.modules() if isinstance(module, torch.nn.BatchNorm1d)]
    learn = {name for name, value in model.named_parameters() if value.requires_grad}
    frozen = [norm for norm in norms if not norm.weight.requires_grad]
    assert learn
    assert frozen
    assert not any(norm.training for norm in frozen)
    assert all(norm.training for norm in norms if norm.weight.requires_grad)
