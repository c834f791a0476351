import torch
from families import family, images

from vitreous.inside.attention import attention_of
from vitreous.inside.capture import capture
from vitreous.inside.value_norms import projected, value_norm_rollout, value_norms


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
