import weakref

import pytest
import torch
from families import FAMILIES, family, images
from hypothesis import given
from hypothesis import strategies as st

from vitreous.inside import rollout as module
from vitreous.inside.attention import attention_of, pooled_by, readout
from vitreous.inside.capture import capture
from vitreous.inside.rollout import (
    FUSIONS,
    projected,
    rollout,
    rollout_map,
    rollout_row,
    value_norm_rollout,
    value_norms,
)
from vitreous.models.token_layout import TokenLayout

options = st.fixed_dictionaries(
    {
        "fusion": st.sampled_from(sorted(FUSIONS)),
        "discard": st.sampled_from([0.0, 0.3, 0.9, 0.999]),
        "residual": st.sampled_from([0.0, 0.25, 0.5, 1.0]),
        "layout": st.sampled_from([None, TokenLayout((2, 3), registers=1), TokenLayout((2, 4), class_token=False)]),
    }
)


def random_attention(*shape):
    return torch.randn(*shape).mul(3).softmax(dim=-1)


@given(options)
def test_rollout_of_identity_attention_is_identity(options):
    identity = torch.eye(8).expand(3, 2, 4, 8, 8)
    assert torch.equal(rollout(identity, **options), torch.eye(8).expand(2, 8, 8))


@given(options)
def test_rows_sum_to_one_for_all_options(options):
    found = rollout(random_attention(3, 2, 4, 8, 8), **options)
    assert (found >= 0).all()
    torch.testing.assert_close(found.sum(dim=-1), torch.ones(2, 8))


@given(options)
def test_a_row_carried_down_is_the_row_of_the_product(options):
    layers = random_attention(3, 2, 4, 8, 8).double()
    row = torch.rand(8).double()
    expected = row @ rollout(layers, **options)
    torch.testing.assert_close(rollout_row(reversed(list(layers)), row, **options), expected)


def test_rollout_against_the_papers_formula():
    layers = random_attention(4, 1, 3, 6, 6).double()
    expected = torch.eye(6, dtype=torch.float64)
    for layer in layers:
        mixed = 0.5 * layer[0].mean(dim=0) + 0.5 * torch.eye(6, dtype=torch.float64)  # Abnar & Zuidema, eq. 1 and 2
        expected = mixed @ expected
    torch.testing.assert_close(rollout(layers)[0], expected)


def test_heads_are_fused_by_their_largest_or_smallest_and_scaled_to_one():
    heads = torch.tensor([[0.2, 0.8], [0.6, 0.4]])[None, :, None].expand(1, 2, 2, 2)  # two heads, both rows alike
    for fusion, row in (("max", [0.6, 0.8]), ("min", [0.2, 0.4])):
        expected = torch.tensor(row) / sum(row)
        found = rollout([heads], fusion=fusion, residual=0.0)[0]
        torch.testing.assert_close(found, expected.expand(2, 2))


def test_discarding_zeroes_the_smallest_share_and_spares_tokens_that_are_no_patch():
    layout = TokenLayout((1, 3))
    attention = torch.tensor(
        [[0.01, 0.33, 0.33, 0.33], [0.01, 0.09, 0.4, 0.5], [0.01, 0.29, 0.3, 0.4], [0.02, 0.08, 0.7, 0.2]]
    )
    found = rollout([attention[None, None]], discard=4 / 12, residual=0.0, layout=layout)[0]
    kept = attention * (attention >= 0.3)
    kept[:, 0] = attention[:, 0]
    assert int((found == 0).sum()) == 4
    torch.testing.assert_close(found, kept / kept.sum(dim=-1, keepdim=True))


def test_discarding_treats_equals_alike():
    uniform = torch.full((1, 2, 5, 5), 0.2)
    torch.testing.assert_close(rollout([uniform], discard=0.9, residual=0.0)[0], uniform[0, 0])


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_a_models_map_is_what_its_head_reads_of_the_whole_rollout(name):
    model = family(name).double()
    x = images(model)
    with capture(model, ["attention", *pooled_by(model)]) as seen:
        model(x)
    row = readout(model, seen.get("pool.attention")).double().expand(2, -1)
    for options in ({}, {"fusion": "max", "discard": 0.5}):
        whole = rollout(seen.stack("attention"), layout=model.layout, **options)
        expected = model.layout.to_grid(torch.einsum("b t, b t s -> b s", row, whole))
        torch.testing.assert_close(rollout_map(model, x, **options), expected)
        patch = model.layout.index(2, 1)
        torch.testing.assert_close(rollout_map(model, x, query=patch, **options), model.layout.to_grid(whole[:, patch]))


def test_one_layers_attention_is_alive_at_a_time(monkeypatch):
    model, alive = family("class token", depth=4), []

    def watched(*arguments):
        assert not any(reference() is not None for reference in alive)
        attention = attention_of(*arguments)
        alive.append(weakref.ref(attention))
        return attention

    attention_of = module.attention_of
    monkeypatch.setattr(module, "attention_of", watched)
    rollout_map(model, images(model))
    assert len(alive) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fusion": "sum"}, "fusion must be one of mean, max, min, got 'sum'"),
        ({"discard": 1.0}, "discard is a share"),
        ({"residual": 1.5}, "residual is the residual connection's share"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        rollout(torch.eye(3).expand(1, 1, 1, 3, 3), **options)


def test_no_layers_at_all_are_refused():
    with pytest.raises(ValueError, match="at least one layer"):
        rollout([])


def test_a_token_that_does_not_exist_is_refused():
    model = family("class token")
    with pytest.raises(ValueError, match="token 13 does not exist"):
        rollout_map(model, images(model), query=13)


@torch.no_grad()
def test_norms_are_those_of_the_vectors_that_attention_adds_up():
    model = family("class token")
    x, block = images(model, 2), model.blocks[1]
    with capture(model, ["norm1", "v", "attention_output"], layers=[1]) as internals:
        model(x)
    attention = attention_of(model, 1, internals["blocks.1.norm1"])  # [b h t t]
    vectors = torch.einsum("b h i j, b h j d -> b i j d", attention, projected(block, internals["blocks.1.v"]))
    torch.testing.assert_close(value_norms(attention, projected(block, internals["blocks.1.v"])), vectors.norm(dim=-1))
    whole = block.ls1(internals["blocks.1.attention_output"] - block.attn.proj.bias)
    torch.testing.assert_close(vectors.sum(dim=2), whole, atol=1e-5, rtol=1e-4)  # the vectors add up to the output


def test_a_token_without_value_has_no_weight():
    attention = torch.full((1, 2, 3, 3), 1 / 3)
    values = torch.ones(1, 2, 3, 4)
    values[:, :, 1] = 0
    found = value_norms(attention, values)
    assert not found[..., 1].any()
    assert found[..., [0, 2]].min() > 0


def test_shares_of_patches_sum_to_at_most_one():
    model = family("registers")
    found = value_norm_rollout(model, images(model, 2)).flatten(1).sum(dim=1)
    assert (found > 0).all()
    assert (found < 1).all()
