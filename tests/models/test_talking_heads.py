"""Talking heads, written out; and what capture and intervene see of them."""

import torch
from families import family, images

from vitreous.inside.capture import capture
from vitreous.inside.intervene import KnockOut, intervene
from vitreous.models.talking_heads import TalkingHeads


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
