import math

import pytest
import torch
from families import FAMILIES, family, images
from hypothesis import given
from hypothesis import strategies as st

from vitreous.inside.attention import attention_of, class_maps, entropy, mean_distance, pooled_by, readout
from vitreous.inside.capture import capture
from vitreous.inside.intervene import KnockOut, intervene
from vitreous.models.token_layout import TokenLayout

layouts = st.builds(
    TokenLayout,
    grid=st.tuples(st.integers(1, 4), st.integers(1, 5)),
    class_token=st.booleans(),
    distillation_token=st.booleans(),
    registers=st.integers(0, 3),
)


def random_attention(*shape):
    return torch.randn(*shape).softmax(dim=-1)


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_a_map_is_the_chosen_tokens_row_over_the_patches(name):
    model = family(name)
    layout, config = model.layout, model.config
    with capture(model, "attention") as seen:
        model(images(model))
    maps = class_maps(seen, layout)
    assert maps.shape == (config.depth, 2, config.heads, *layout.grid)
    attention = seen["blocks.1.attention"]
    patches = range(layout.tokens - layout.patches, layout.tokens)
    rows = [0] if config.class_token else patches
    for i, token in enumerate(patches):
        expected = attention[:, :, rows, token].mean(dim=-1)
        torch.testing.assert_close(maps[1].flatten(-2)[..., i], expected)
    query, key = layout.index(1, 2), layout.index(0, 1)
    found = class_maps(seen, layout, query=query)[2, 0, 1, 0, 1]
    torch.testing.assert_close(found, seen["blocks.2.attention"][0, 1, query, key])


def test_a_single_captured_row_is_taken_as_it_is():
    layout = TokenLayout((2, 3), registers=1)
    attention = random_attention(2, 4, layout.tokens, layout.tokens)
    torch.testing.assert_close(class_maps(attention[:, :, 5:6], layout), class_maps(attention, layout, query=5))


def test_maps_refuse_what_does_not_fit_the_layout():
    layout = TokenLayout((2, 3))
    with pytest.raises(ValueError, match="one token or of all 7, got 3"):
        class_maps(torch.zeros(2, 3, 7), layout)
    with pytest.raises(ValueError, match="token 7 does not exist"):
        class_maps(torch.zeros(7, 7), layout, query=7)
    with pytest.raises(ValueError, match="expected 7 tokens or 6 patches, got 8"):
        class_maps(torch.zeros(1, 8), layout)


@given(layouts)
def test_a_head_that_attends_to_itself_has_distance_zero(layout):
    assert mean_distance(torch.eye(layout.tokens)[None], layout, 16).tolist() == [0.0]


@pytest.mark.parametrize(("step", "pixels"), [((0, 1), 14), ((1, 0), 16), ((1, 1), math.hypot(14, 16)), ((2, 0), 32)])
def test_attention_to_one_neighbour_is_as_far_as_the_neighbour(step, pixels):
    layout = TokenLayout((4, 6), registers=2)
    attention = torch.zeros(layout.tokens, layout.tokens)
    attention[:, 0] = 1e-3  # what goes to the class token does not count
    for row in range(4):
        for column in range(6):
            there = [row + step[0], column + step[1]]
            if there[0] >= 4:  # at the edge look the other way
                there[0] = row - step[0]
            if there[1] >= 6:
                there[1] = column - step[1]
            attention[layout.index(row, column), layout.index(*there)] = 0.5
    torch.testing.assert_close(mean_distance(attention[None], layout, (16, 14)), torch.tensor([float(pixels)]))


@given(layouts)
def test_mean_distance_is_the_weighted_mean_of_all_pairs(layout):
    attention = random_attention(2, 3, layout.tokens, layout.tokens).double()
    expected = torch.zeros(2, 3, dtype=torch.float64)
    first = layout.tokens - layout.patches
    for query in range(first, layout.tokens):
        share = sum(attention[..., query, key] for key in range(first, layout.tokens))
        for key in range(first, layout.tokens):
            (a, b), (c, d) = layout.patch(query), layout.patch(key)
            away = math.hypot(8 * (a - c), 4 * (b - d))
            expected += attention[..., query, key] / share * away / layout.patches
    torch.testing.assert_close(mean_distance(attention, layout, (8, 4)), expected)


def test_a_patch_that_attends_to_no_patch_is_left_out_of_the_distance():
    layout = TokenLayout((1, 2))
    attention = torch.tensor([[[1.0, 0, 0], [1, 0, 0], [0.5, 0.5, 0]]])
    assert mean_distance(attention, layout, 10).tolist() == [10.0]


@given(st.integers(1, 40))
def test_uniform_attention_has_entropy_log_t(tokens):
    found = entropy(torch.full((2, 3, tokens, tokens), 1 / tokens))
    torch.testing.assert_close(found, torch.full((2, 3), math.log(tokens)))


def test_attention_to_one_token_has_no_entropy_and_rows_are_averaged():
    sharp, even = torch.eye(4)[:2], torch.full((2, 4), 0.25)
    assert entropy(sharp[None]).tolist() == [0.0]
    torch.testing.assert_close(entropy(torch.cat([sharp, even])), torch.tensor(math.log(4) / 2))


@pytest.mark.parametrize("name", ["distilled", "sine"])
@torch.no_grad()
def test_attention_worked_out_again_is_what_was_captured_even_under_intervention(name):
    model = family(name)
    x = images(model)
    changes = {"blocks.1.norm1": lambda value: 2 * value, "blocks.1.q": lambda value: value + 1}
    with intervene(model, knock_out=KnockOut(keys=[3]), replace=changes):
        with capture(model, ["norm1", "attention"]) as seen:
            model(x)
        for layer in range(model.config.depth):
            again = attention_of(model, layer, seen[f"blocks.{layer}.norm1"])
            assert torch.equal(again, seen[f"blocks.{layer}.attention"])
            assert not again[..., 3].any()


@pytest.mark.parametrize(
    "name", [name for name in FAMILIES if "pool" not in name and "pixel" not in name]
)  # tests/models/test_attention_pool.py, and below
def test_the_readout_is_how_the_head_reads(name):
    model = family(name)
    weights, layout = readout(model), model.layout
    torch.testing.assert_close(weights.sum(), torch.tensor(1.0))
    tokens = torch.randn(1, layout.tokens, model.config.width, requires_grad=True)
    model.forward_head(tokens)[0].square().sum().backward()
    read = tokens.grad[0].abs().sum(dim=-1) > 0
    assert torch.equal(weights > 0, read)
    patches = weights[layout.prefix :]
    assert (patches == patches[0]).all()


def test_the_readout_of_a_pixel_is_the_patches_that_it_is_interpolated_from():
    model = family("a pixel, linear")  # row 5, column 14 of patches of 4×6 pixels
    found = readout(model)
    rows = torch.tensor([0.125, 0.875, 0.0])  # 5.5 / 4 - 0.5 = 0.875
    columns = torch.tensor([0.0, 1 / 12, 11 / 12, 0.0])  # 14.5 / 6 - 0.5 = 1 + 11/12
    torch.testing.assert_close(model.layout.to_grid(found), torch.outer(rows, columns))
    assert not found[: model.layout.prefix].any()
    torch.testing.assert_close(
        model.layout.to_grid(readout(family("a pixel, linear", whole=True))), torch.ones(3, 4) / 12
    )


def test_the_readout_of_a_pixel_does_not_ask_the_pool():
    model = family("a pixel, linear", pool="attention")
    assert pooled_by(model) == ()
    assert torch.equal(readout(model), readout(family("a pixel, linear")))
