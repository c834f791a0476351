import pytest
import torch
from families import FAMILIES, family, images

from vitreous.inside.head_importance import ablate_heads, head_importance
from vitreous.inside.intervene import intervene


@pytest.mark.parametrize("name", FAMILIES)
def test_importance_is_the_slope_as_a_head_is_faded_out(name):
    model = family(name).double()
    x, config = images(model, 3), model.config
    weights = torch.ones(3, config.depth, config.heads, dtype=torch.float64, requires_grad=True)
    with intervene(model, head_weights=weights):
        model(x)[:, 2].sum().backward()
    expected = weights.grad.abs().mean(dim=0)
    assert expected.max() > 1e-3
    torch.testing.assert_close(head_importance(model, x, 2), expected)


@torch.no_grad()
def test_a_head_whose_result_is_not_used_has_no_importance():
    model = family("class token")
    width = model.config.width // model.config.heads
    model.blocks[1].attn.proj.weight[:, 2 * width : 3 * width] = 0.0
    found = head_importance(model, images(model))
    assert found.shape == (3, 4)
    assert (found == 0).nonzero().tolist() == [[1, 2]]


@torch.no_grad()
def test_ablation_equals_switching_heads_off_one_by_one():
    model = family("class token")
    x = images(model)[:1]
    effect = ablate_heads(model, x, target=3)
    before = model(x)[0, 3]
    for layer in range(3):
        for head in range(4):
            with intervene(model, heads_off=[(layer, head)]):
                change = model(x)[0, 3] - before
            torch.testing.assert_close(effect[layer, head], change, rtol=1e-4, atol=1e-5)
    predicted = int(model(x).argmax())
    assert torch.equal(ablate_heads(model, x), ablate_heads(model, x, target=predicted))
