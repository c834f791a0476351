import pytest
import torch
from families import FAMILIES, family, images
from hypothesis import given
from hypothesis import strategies as st

from vitreous.inside.representations import layer_similarity, principal_colours, token_norms
from vitreous.models.token_layout import TokenLayout


@given(
    st.tuples(st.integers(1, 4), st.integers(2, 5)),
    st.booleans(),
    st.integers(0, 3),
    st.integers(1, 3),
    st.integers(3, 9),
)
def test_colours_fill_the_range(grid, class_token, registers, images, width):
    layout = TokenLayout(grid, class_token=class_token, registers=registers)
    colours = principal_colours(torch.randn(images, layout.tokens, width), layout)
    assert colours.shape == (images, *layout.grid, 3)
    assert colours.amin() >= 0
    assert colours.amax() <= 1 + 1e-6
    assert colours[..., 0].amin().item() == pytest.approx(0, abs=1e-6)
    assert colours[..., 0].amax().item() == pytest.approx(1, abs=1e-6)


def test_colours_are_the_directions_of_most_variance_in_their_order():
    """Tokens made of three known numbers: the widest is red, the next green, the next blue."""
    layout = TokenLayout((5, 6), registers=3)
    hidden = torch.linalg.qr(torch.randn(60, 3) - torch.randn(60, 3).mean())[0]
    hidden = torch.linalg.qr(hidden - hidden.mean(dim=0))[0] * torch.tensor([9.0, 4.0, 1.0])
    directions = torch.linalg.qr(torch.randn(8, 3))[0].mT
    directions = directions * directions.gather(1, directions.abs().argmax(dim=1, keepdim=True)).sign()
    tokens = torch.full((2, layout.tokens, 8), 1e3)  # what stands before the patches must not matter
    tokens[:, layout.prefix :] = (hidden @ directions).view(2, 30, 8) + 5.0
    expected = (hidden - hidden.amin(dim=0)) / (hidden.amax(dim=0) - hidden.amin(dim=0))
    torch.testing.assert_close(principal_colours(tokens, layout), expected.view(2, 5, 6, 3), rtol=0, atol=1e-3)


def test_a_component_without_variance_is_grey():
    tokens = torch.zeros(1, 4, 5)
    tokens[0, :, 1] = torch.arange(4.0)
    colours = principal_colours(tokens, TokenLayout((2, 2), class_token=False))
    torch.testing.assert_close(colours[..., 0].flatten(), torch.arange(4.0) / 3)
    assert (colours[..., 1:] == 0.5).all()


def test_colours_need_three_channels():
    with pytest.raises(ValueError, match="width 3 or more, got 2"):
        principal_colours(torch.zeros(1, 5, 2), TokenLayout((2, 2)))


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_norms_lie_where_their_patch_does(name):
    model = family(name)
    layers = torch.stack(model.get_intermediate_layers(images(model), n=3))  # [l b t d]
    found = token_norms(layers, model.layout)
    token = model.layout.index(2, 1)
    torch.testing.assert_close(found[1, :, 2, 1], layers[1, :, token].square().sum(dim=-1).sqrt())


@pytest.mark.parametrize("unbiased", [True, False])
def test_layers_are_like_themselves_turned_and_scaled(unbiased):
    x, other = torch.randn(2, 3, 20, 6).double()
    turn = torch.linalg.qr(torch.randn(6, 6).double())[0]
    found = layer_similarity([x, 5 * x @ turn + 3, other], unbiased=unbiased)
    torch.testing.assert_close(found[:2, :2], torch.ones(2, 2).double())
    torch.testing.assert_close(found[0, 2], found[1, 2])
    torch.testing.assert_close(found, found.mT)
    assert found[0, 2] < 0.5


def test_the_biased_estimate_against_the_papers_formula():
    x, y = torch.randn(2, 40, 5).double(), torch.randn(2, 40, 7).double()
    centre = torch.eye(80).double() - 1 / 80
    grams = [centre @ (z.flatten(0, 1) @ z.flatten(0, 1).mT) @ centre for z in (x, y)]
    hsic = [[(a * b).sum() for a in grams] for b in grams]
    expected = hsic[0][1] / (hsic[0][0] * hsic[1][1]).sqrt()  # Kornblith et al. 2019, eq. 3 and 4
    torch.testing.assert_close(layer_similarity([x, y], unbiased=False)[0, 1], expected)


def test_the_unbiased_estimate_against_its_formula_on_whole_matrices():
    x, y = torch.randn(1, 12, 5).double() + 1, torch.randn(1, 12, 7).double()
    y[..., :5] += x
    n, one = 12, torch.ones(12).double()

    def hsic(a, b):  # Song et al. 2012, eq. 5
        across = (a @ b).trace() + (one @ a @ one) * (one @ b @ one) / ((n - 1) * (n - 2))
        return (across - 2 / (n - 2) * (one @ a @ b @ one)) / (n * (n - 3))

    a, b = ((z[0] @ z[0].mT).fill_diagonal_(0) for z in (x, y))
    expected = hsic(a, b) / (hsic(a, a) * hsic(b, b)).sqrt()
    torch.testing.assert_close(layer_similarity([x, y])[0, 1], expected)


def test_noise_is_alike_to_the_biased_estimate_alone():
    layers = torch.randn(2, 1, 50, 100)
    assert layer_similarity(layers)[0, 1].abs() < 0.15
    assert layer_similarity(layers, unbiased=False)[0, 1] > 0.5


def test_too_few_tokens_are_refused():
    with pytest.raises(ValueError, match="at least 4 tokens, got 3"):
        layer_similarity(torch.zeros(2, 1, 3, 4))
