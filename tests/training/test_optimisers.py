import copy
import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.training import optimisers
from vitreous.training.config import TrainConfig
from vitreous.training.optimisers import (
    Muon,
    build_optimisers,
    create_states,
    orthogonalise,
    rate_factor,
    set_learning_rates,
)

DEPTH = 3
RICH = ViTConfig(
    image_size=8,
    patch_size=4,
    width=16,
    depth=DEPTH,
    heads=2,
    classes=3,
    distillation_token=True,
    distillation_head=True,
    registers=2,
    qk_norm=True,
    layer_scale=0.1,
    embedding_norm=True,
)


def settings(optimisers, model, key):
    """Parameter name → a group's setting."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    groups = [group for optimiser in optimisers for group in optimiser.param_groups]
    found = [(names[parameter], group[key]) for group in groups for parameter in group["params"]]
    assert len(found) == len(names) == len(dict(found)), "each parameter once"
    return dict(found)


@pytest.mark.parametrize("optimizer", ["adamw", "muon", "sgd"])
def test_norms_biases_tokens_positions_and_scales_do_not_decay(optimizer):
    model = ViT(RICH)
    decay = settings(build_optimisers(model, TrainConfig(optimizer=optimizer, weight_decay=0.3)), model, "weight_decay")
    spared = {name for name, value in decay.items() if value == 0}
    assert {decay[name] for name in decay.keys() - spared} == {0.3}
    ends = (".bias", "norm.weight", "norm1.weight", "norm2.weight", "norm_pre.weight", "gamma", "_token", "pos_embed")
    assert spared == {name for name in decay if name.endswith(ends)}
    assert {"cls_token", "dist_token", "reg_token", "pos_embed", "norm.weight", "head.bias"} <= spared
    assert {"patch_embed.proj.weight", "blocks.0.attn.qkv.weight", "head.weight", "head_dist.weight"}.isdisjoint(spared)


def test_adam_has_no_decay_at_all():
    model = ViT(RICH)
    decay = settings(build_optimisers(model, TrainConfig(optimizer="adam", weight_decay=0.3)), model, "weight_decay")
    assert set(decay.values()) == {0.0}


def test_layer_decay_gives_each_block_its_share_of_the_next():
    model = ViT(RICH)
    scales = settings(build_optimisers(model, TrainConfig(learning_rate=2.0, layer_decay=0.5)), model, "scale")
    for name, scale in scales.items():
        if name.startswith(("head", "norm.")):
            expected = 2.0
        elif name.startswith("blocks."):
            expected = 2.0 * 0.5 ** (DEPTH - int(name.split(".")[1]))
        else:
            expected = 2.0 * 0.5 ** (DEPTH + 1)
        assert scale == expected, name
    assert scales["blocks.2.mlp.fc1.weight"] == 1.0
    assert scales["cls_token"] == 0.125


def test_muon_takes_the_matrices_of_the_blocks_and_nothing_else():
    model = ViT(RICH)
    first, second = build_optimisers(model, TrainConfig(optimizer="muon"))
    assert isinstance(first, Muon)
    assert isinstance(second, torch.optim.AdamW)
    names = {parameter: name for name, parameter in model.named_parameters()}
    taken = {names[parameter] for group in first.param_groups for parameter in group["params"]}
    layers = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
    assert taken == {f"blocks.{i}.{layer}.weight" for i in range(DEPTH) for layer in layers}


def test_frozen_parameters_are_in_no_group_and_nothing_to_learn_is_an_error():
    model = ViT(RICH).requires_grad_(False)
    with pytest.raises(ValueError, match="no trainable parameters"):
        build_optimisers(model, TrainConfig())
    model.head.requires_grad_(True)
    (optimiser,) = build_optimisers(model, TrainConfig())
    assert sum(len(group["params"]) for group in optimiser.param_groups) == 2
    (optimiser,) = build_optimisers(model, TrainConfig(optimizer="muon"))  # no matrix of a block learns
    assert isinstance(optimiser, torch.optim.AdamW)


@pytest.mark.parametrize("optimizer", ["adamw", "adam", "muon", "sgd"])
def test_materialised_states_are_zero_and_change_no_later_step(optimizer):
    config = TrainConfig(optimizer=optimizer, learning_rate=0.01)
    ended = []
    for prepare in (create_states, lambda optimisers: None):
        torch.manual_seed(0)
        model = ViT(RICH)
        optimisers = build_optimisers(model, config)
        begun = [parameter.detach().clone() for parameter in model.parameters()]
        prepare(optimisers)
        assert all(torch.equal(a, b) for a, b in zip(begun, model.parameters(), strict=True))
        states = [v for o in optimisers for s in o.state.values() for v in s.values() if isinstance(v, torch.Tensor)]
        assert not any(value.any() for value in states)
        for step in range(3):
            torch.manual_seed(step)
            for parameter in model.parameters():
                parameter.grad = torch.randn_like(parameter)
            set_learning_rates(optimisers, torch.tensor(0.5))
            for optimiser in optimisers:
                optimiser.step()
        ended.append([parameter.detach().clone() for parameter in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*ended, strict=True))
    assert not torch.equal(ended[0][0], begun[0])


# --- the schedule -----------------------------------------------------------------------------------------------------


@given(st.integers(1, 300), st.integers(0, 100), st.floats(0, 1))
def test_it_stays_between_its_ends_and_never_starts_at_zero(steps, warmup, final):
    warmup = min(warmup, steps)
    rates = [rate_factor(step, steps, warmup, final) for step in range(steps)]
    assert rates[0] > 0
    assert max(rates) <= 1 + 1e-12
    assert min(rates[warmup:], default=final) >= final - 1e-12
    assert all(early < late for early, late in pairwise(rates[:warmup]))
    assert all(early >= late - 1e-12 for early, late in pairwise(rates[warmup:]))


def test_the_ends_are_where_they_should_be():
    assert rate_factor(4, 100, warmup=5) == 1.0  # the warm-up's last
    assert rate_factor(5, 100, warmup=5) == 1.0  # the cosine's first
    assert rate_factor(100, 100, warmup=5, final=0.1) == pytest.approx(0.1)
    assert rate_factor(50, 100) == pytest.approx(0.5)
    assert rate_factor(5, 5, warmup=5) == 1.0  # a run that is all warm-up
    assert rate_factor(25, 100) == pytest.approx(0.5 + math.sqrt(0.5) / 2)
    assert rate_factor(25, 100, schedule="linear") == pytest.approx(0.75)
    assert rate_factor(100, 100, warmup=5, final=0.1, schedule="linear") == pytest.approx(0.1)


def test_against_torchs_cosine():
    weight = torch.nn.Parameter(torch.zeros(1))
    optimiser = torch.optim.SGD([weight], lr=1.0)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 40, eta_min=0.2)
    for step in range(40):
        assert rate_factor(step, 40, final=0.2) == pytest.approx(cosine.get_last_lr()[0], abs=1e-9)
        optimiser.step()
        cosine.step()


SHAPES = [(24, 8), (24, 8), (8, 24), (16, 16), (8, 24), (3, 40)]


def test_against_torchs_muon_over_several_steps(monkeypatch):
    monkeypatch.setattr(optimisers, "cpu_multiplies", lambda dtype: True)  # torch's computes in bf16 on any CPU
    ours = [nn.Parameter(torch.randn(shape)) for shape in SHAPES]
    theirs = copy.deepcopy(ours)
    mine = Muon(ours, lr=torch.tensor(0.02), weight_decay=0.1)
    reference = torch.optim.Muon(theirs, lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    begun = [parameter.detach().clone() for parameter in ours]
    for step in range(6):
        torch.manual_seed(step)
        for a, b in zip(ours, theirs, strict=True):
            a.grad = torch.randn(a.shape)
            b.grad = a.grad.clone()
        mine.step()
        reference.step()
    for a, b, first in zip(ours, theirs, begun, strict=True):
        moved = (b - first).abs().mean()
        assert moved > 0.01
        assert (a - b).abs().max() < 0.02 * moved  # both compute in bf16, in another order
        assert torch.equal(mine.state[a]["momentum_buffer"], reference.state[b]["momentum_buffer"])


@pytest.mark.parametrize(("bf16", "dtype"), [(True, torch.bfloat16), (False, torch.float32)])
@pytest.mark.parametrize("shape", [(12, 30), (30, 12), (16, 16)])
def test_orthogonalised_matrices_have_singular_values_near_one(monkeypatch, shape, bf16, dtype):
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: bf16, raising=False)
    found = orthogonalise(torch.randn(5, *shape))
    assert found.dtype == dtype
    values = torch.linalg.svdvals(found.float())
    assert values.max() < 1.35
    assert values.min() > 0.3


def test_a_gradient_of_zero_moves_nothing():
    weight = nn.Parameter(torch.randn(4, 6))
    before = weight.detach().clone()
    optimiser = Muon([weight], lr=0.1, weight_decay=0.0)
    weight.grad = torch.zeros_like(weight)
    optimiser.step()
    assert torch.equal(weight, before)


def test_what_is_no_matrix_is_refused():
    with pytest.raises(ValueError, match=r"matrices only, got a parameter of shape \[3\]"):
        Muon([nn.Parameter(torch.zeros(3))])
