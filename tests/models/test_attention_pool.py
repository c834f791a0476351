"""Attention pooling, written out; and what capture and intervene see of it."""

import pytest
import torch
import torch.nn.functional as F
from families import family, images

from vitreous.inside.attention import readout
from vitreous.inside.capture import capture
from vitreous.inside.intervene import intervene
from vitreous.inside.relevance import relevance
from vitreous.inside.rollout import rollout_map


@torch.no_grad()
def test_the_pool_is_one_query_that_attends_once_and_an_mlp():
    model = family("attention pool", pool_heads=1).double()
    x = images(model)
    tokens, pool = model.forward_features(x)[:, 1:], model.attn_pool  # without the register
    k, v = pool.kv(tokens).chunk(2, dim=-1)
    weights = ((k @ pool.q(pool.latent[0, 0])) / 24**0.5).softmax(dim=1)  # [b n]
    y = pool.proj((weights[..., None] * v).sum(dim=1))
    y = y + pool.mlp["fc2"](F.gelu(pool.mlp["fc1"](F.layer_norm(y, (24,), pool.norm.weight, pool.norm.bias, 1e-6))))
    torch.testing.assert_close(model(x), y @ model.head.weight.T + model.head.bias)


def test_equal_keys_give_the_mean_of_the_values():
    model = family("attention pool")
    with torch.no_grad():
        model.attn_pool.kv.weight[:24] = 0
    with capture(model, "pool.attention") as internals, torch.no_grad():
        model(images(model))
    torch.testing.assert_close(internals["pool.attention"], torch.full((2, 4, 1, 12), 1 / 12))
    row = readout(model, internals["pool.attention"])
    torch.testing.assert_close(row[:, 1:], torch.full((2, 12), 1 / 12))
    assert not row[:, 0].any()  # the register is not pooled


@pytest.mark.parametrize("name", ["attention pool", "attention pool of all tokens"])
@torch.no_grad()
def test_capture_of_the_pool_leaves_the_logits(name):
    model = family(name)
    x = images(model)
    with capture(model, ["pool.attention", "attention"]) as internals:
        logits = model(x)
    assert torch.equal(logits, model(x))
    torch.testing.assert_close(internals["pool.attention"].sum(-1), torch.ones(2, model.config.pool_heads, 1))


@pytest.mark.parametrize("name", ["attention pool", "attention pool of all tokens"])
@torch.no_grad()
def test_removed_patches_are_not_pooled(name):
    model = family(name)
    x, first = images(model), model.layout.prefix
    tokens = model.embed(x)
    tokens = torch.cat([tokens[:, : first + 3], tokens[:, first + 4 :]], dim=1)  # without patch 3
    for block in model.blocks:
        tokens = block(tokens)
    wanted = model.forward_head(model.norm(tokens))
    with intervene(model, patches_off=[3]):
        torch.testing.assert_close(model(x), wanted, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_the_pools_attention_can_be_replaced():
    model = family("attention pool")
    x = images(model)
    first = torch.eye(12)[0]
    with intervene(model, replace={"pool.attention": first}), capture(model, ["pool.v", "pool.mixed"]) as internals:
        model(x)
    torch.testing.assert_close(internals["pool.mixed"], internals["pool.v"][:, :, :1])


def test_relevance_of_a_pool_that_reads_one_patch_comes_through_that_patch():
    """Where blocks do not mix tokens, only the pooled patch is relevant."""
    model = family("attention pool")
    with torch.no_grad():
        for block in model.blocks:
            block.attn.proj.weight.zero_()  # no gradient reaches attention
    with intervene(model, replace={"pool.attention": lambda a: torch.eye(12)[5].expand_as(a)}):
        found = relevance(model, images(model))
    assert (found.flatten(1).argmax(dim=1) == 5).all() or not found.any()
    assert found.flatten(1)[:, [i for i in range(12) if i != 5]].abs().max() == 0


@torch.no_grad()
def test_rollout_starts_at_what_the_pool_reads():
    model = family("attention pool")
    x = images(model)
    with capture(model, "pool.attention") as internals:
        model(x)
    wanted = model.layout.to_grid(readout(model, internals["pool.attention"]))
    torch.testing.assert_close(rollout_map(model, x, residual=1.0), wanted)  # blocks pass every token on
    with pytest.raises(ValueError, match="capture pool.attention"):
        readout(model)
