"""Class attention and talking heads, written out; and what capture, intervene and relevance see of them."""

import pytest
import torch
import torch.nn.functional as F
from families import family, images

from vitreous.inside.attention import readout
from vitreous.inside.capture import capture
from vitreous.inside.intervene import KnockOut, intervene
from vitreous.inside.relevance import relevance
from vitreous.inside.rollout import rollout_map
from vitreous.models.cait import TalkingHeads


def class_attention(**changes):
    return family("class attention pool", **changes)


@torch.no_grad()
def test_a_class_token_attends_to_itself_and_the_patches_after_the_blocks():
    model = class_attention(pool_layers=1, pool_heads=1).double()
    x = images(model)
    patches, (layer,), token = model.forward_features(x), model.attn_pool.layers, model.attn_pool.cls_token[0, 0]
    both = torch.cat([token.expand(2, 1, 24), patches], dim=1)
    normed = F.layer_norm(both, (24,), layer.norm1.weight, layer.norm1.bias, 1e-6)
    weights = ((layer.k(normed) @ layer.q(normed[:, 0])[..., None])[..., 0] / 24**0.5).softmax(dim=1)  # [b 1+n]
    token = token + layer.ls1.gamma * layer.proj((weights[..., None] * layer.v(normed)).sum(dim=1))
    normed = F.layer_norm(token, (24,), layer.norm2.weight, layer.norm2.bias, 1e-6)
    token = token + layer.ls2.gamma * layer.mlp["fc2"](F.gelu(layer.mlp["fc1"](normed)))
    torch.testing.assert_close(model(x), model.head(model.fc_norm(token)))


@torch.no_grad()
def test_capture_sees_the_last_layer_and_leaves_the_logits():
    model = class_attention()
    x = images(model)
    with capture(model, ["pool.attention", "pool.v", "pool.mixed"]) as internals:
        logits = model(x)
    assert torch.equal(logits, model(x))
    attention = internals["pool.attention"]
    assert attention.shape == (2, 4, 1, 13)  # the class token and twelve patches
    torch.testing.assert_close(internals["pool.mixed"], attention @ internals["pool.v"])
    row = readout(model, attention)
    torch.testing.assert_close(row.sum(1) + attention.mean(1)[:, 0, 0], torch.ones(2))


@torch.no_grad()
def test_removed_patches_are_read_by_no_layer():
    model = class_attention()
    x = images(model)
    tokens = model.embed(x)
    tokens = torch.cat([tokens[:, :3], tokens[:, 4:]], dim=1)  # without patch 3
    for block in model.blocks:
        tokens = block(tokens)
    wanted = model.forward_head(model.norm(tokens))
    with intervene(model, patches_off=[3]):
        torch.testing.assert_close(model(x), wanted, rtol=1e-4, atol=1e-5)
    with intervene(model, patches_off=[4]):
        assert not torch.allclose(model(x), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kept", [torch.tensor([[True] * 11 + [False]]), torch.tensor([[0.0] * 11 + [float("-inf")]])])
@torch.no_grad()
def test_a_mask_forbids_a_patch_and_never_the_class_token(kept):
    model = class_attention()
    tokens = model.forward_features(images(model))
    torch.testing.assert_close(model.attn_pool(tokens, kept), model.attn_pool(tokens[:, :-1]))


@torch.no_grad()
def test_rollout_starts_at_what_the_class_token_reads():
    model = class_attention()
    x = images(model)
    with capture(model, "pool.attention") as internals:
        model(x)
    wanted = model.layout.to_grid(readout(model, internals["pool.attention"]))
    torch.testing.assert_close(rollout_map(model, x, residual=1.0), wanted)  # blocks pass every token on


def test_relevance_of_a_class_token_that_reads_one_patch_comes_through_that_patch():
    model = class_attention()
    with torch.no_grad():
        for block in model.blocks:
            block.attn.proj.weight.zero_()  # no gradient reaches attention
    with intervene(model, replace={"pool.attention": lambda a: torch.eye(13)[6].expand_as(a)}):
        found = relevance(model, images(model)).flatten(1)
    assert found[:, [i for i in range(12) if i != 5]].abs().max() == 0


def test_a_config_without_its_parts_is_an_error():
    with pytest.raises(ValueError, match="pool_layers belong together"):
        class_attention(pool_layers=0)
    with pytest.raises(ValueError, match="class_token=False"):
        class_attention(class_token=True)


def drawn(heads=3):
    talk = TalkingHeads(heads)
    for parameter in talk.parameters():
        torch.nn.init.normal_(parameter)
    return talk, (torch.randn(2, heads, 5, 4) for _ in range(3))


@torch.no_grad()
def test_each_head_is_a_weighted_sum_of_all_heads_before_and_after_the_softmax():
    talk, (q, k, v) = drawn()
    scores = torch.einsum("bhqc,bhkc->bhqk", q, k) / 2  # √4
    scores = torch.einsum("gh,bhqk->bgqk", talk.proj_l.weight, scores) + talk.proj_l.bias[:, None, None]
    weights = torch.einsum("gh,bhqk->bgqk", talk.proj_w.weight, scores.softmax(-1)) + talk.proj_w.bias[:, None, None]
    torch.testing.assert_close(talk(talk, q, k, v, None, 0.0), weights @ v)


@torch.no_grad()
def test_heads_that_do_not_talk_are_plain_attention():
    _, (q, k, v) = drawn()
    plain = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    torch.testing.assert_close(TalkingHeads(3)(torch.nn.Module(), q, k, v, None, 0.0), plain)


@torch.no_grad()
def test_a_forbidden_key_gets_no_attention_whatever_the_bias():
    talk, (q, k, v) = drawn()
    seen = torch.tensor([True, True, False, True, True])
    left = [0, 1, 3, 4]
    wanted = talk(talk, q, k[:, :, left], v[:, :, left], None, 0.0)
    torch.testing.assert_close(talk(talk, q, k, v, seen, 0.0), wanted)


@torch.no_grad()
def test_capture_keeps_the_attention_that_multiplies_the_values_and_leaves_the_logits():
    model = family("class attention pool")
    x = images(model)
    with capture(model, ["attention", "v", "mixed"], layers=[1]) as internals:
        logits = model(x)
    assert torch.equal(logits, model(x))
    mixed = internals["blocks.1.attention"] @ internals["blocks.1.v"]
    torch.testing.assert_close(internals["blocks.1.mixed"], mixed)


@torch.no_grad()
def test_a_knocked_out_key_does_not_reach_the_heads():
    model = family("class attention pool")
    with intervene(model, knock_out=KnockOut(keys=[3])), capture(model, "attention") as internals:
        model(images(model))
    assert not internals["blocks.2.attention"][..., 3].any()
    assert internals["blocks.2.attention"][..., 4].any()
