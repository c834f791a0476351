import math
from types import SimpleNamespace

import pytest
import torch
from captum.attr import InputXGradient, Saliency
from families import FAMILIES, family, images
from torch import nn

from vitreous.inside.pixel_gradients import black, gradient_input, integrated_gradients, smooth_grad, to_patches
from vitreous.models.resnet import ResNet, ResNetConfig
from vitreous.models.token_layout import TokenLayout


@pytest.mark.parametrize("name", FAMILIES)
def test_it_is_captums(name):
    model = family(name)
    x = images(model, 2)
    wanted = InputXGradient(model).attribute(x.clone().requires_grad_(), target=1)
    torch.testing.assert_close(gradient_input(model, x, 1), wanted.detach())


def test_frozen_models_and_callers_without_gradients_work():
    model = family("class token").requires_grad_(False)
    with torch.no_grad():
        assert gradient_input(model, images(model, 1)).abs().sum() > 0


def test_without_noise_it_is_captums_gradient():
    model = family("class token")
    x = images(model, 2)
    wanted = Saliency(model).attribute(x.clone().requires_grad_(), target=1, abs=False)
    torch.testing.assert_close(smooth_grad(model, x, 1, copies=4, noise=0.0), wanted.detach())


class Quadratic(nn.Module):
    """The logit of class c is (c + 1) · Σ x²: its gradient is linear in x."""

    def forward(self, x):
        return x.square().sum(dim=(1, 2, 3))[:, None] * torch.tensor([1.0, 2.0])


def test_noise_comes_in_pairs_so_that_a_linear_gradient_is_exact():
    x = torch.randn(2, 3, 4, 4)
    torch.testing.assert_close(smooth_grad(Quadratic(), x, 1, copies=6, noise=0.5), 4 * x)


class Cubic(nn.Module):
    def forward(self, x):
        return x.pow(3).sum(dim=(1, 2, 3))[:, None]


def test_noise_has_the_share_of_the_images_range():
    x = torch.zeros(1, 1, 64, 64)
    x[..., 0, 0] = 2.0  # the range is 2, so the noise's deviation is 0.5: the mean of 3 (x + n)² is 3 x² + 0.75
    found = smooth_grad(Cubic(), x, 0, copies=32, noise=0.25)
    assert found[..., 1:, :].mean().item() == pytest.approx(0.75, rel=0.05)


@pytest.mark.parametrize("batch_size", [1, 3, 32])
def test_noise_does_not_depend_on_an_images_place_in_the_batch(batch_size):
    model = family("class token").double()
    x = images(model, 3)
    together = smooth_grad(model, x, [0, 1, 2], copies=4, noise=0.5, batch_size=batch_size)
    for i in range(3):
        torch.testing.assert_close(smooth_grad(model, x[i : i + 1], i, copies=4, noise=0.5), together[i : i + 1])


@pytest.mark.parametrize("copies", [0, 3])
def test_copies_come_in_pairs(copies):
    with pytest.raises(ValueError, match="copies come in pairs"):
        smooth_grad(Quadratic(), torch.randn(1, 3, 4, 4), copies=copies)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_parts_add_up_to_the_difference_of_the_logits(name):
    model = family(name).double()
    x, empty = images(model), torch.full((3, 1, 1), -0.5)
    parts = integrated_gradients(model, x, 2, baseline=empty, steps=64)
    with torch.no_grad():
        difference = (model(x) - model(empty.double().expand_as(x)))[:, 2]
    torch.testing.assert_close(parts.sum(dim=(1, 2, 3)), difference, rtol=0, atol=1e-3)
    patches = to_patches(parts, model.layout.grid)
    assert patches.shape == (2, *model.layout.grid)
    torch.testing.assert_close(patches.sum(dim=(1, 2)), difference, rtol=0, atol=1e-3)


def test_both_rules_find_the_same_and_gauss_legendre_sooner():
    model = family("class token").double()
    x = images(model)
    near = {"baseline": torch.zeros(1)}
    exact = integrated_gradients(model, x, 0, steps=200, **near)
    errors = {
        rule: (integrated_gradients(model, x, 0, steps=24, rule=rule, **near) - exact).abs().max().item()
        for rule in ("gauss-legendre", "midpoint")
    }
    assert errors["gauss-legendre"] < errors["midpoint"] < 0.05 * exact.abs().max()


class Saturating(torch.nn.Module):
    """Changes in the first tenth of the line, as a ViT does behind its layer norms."""

    def forward(self, x):
        return torch.tanh(60 * (x - 0.03)).sum(dim=(1, 2, 3))[:, None]


def test_steps_near_the_baseline_find_a_change_that_happens_there():
    x, whole = torch.ones(1, 1, 1, 1).double(), 1 + math.tanh(60 * 0.03)
    dense, even = (
        abs(integrated_gradients(Saturating(), x, 0, baseline=torch.zeros(1), steps=16, rule=rule).item() - whole)
        for rule in ("dense-start", "gauss-legendre")
    )
    assert 10 * dense < even < 0.2


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_few_steps_still_cover_the_whole_line(steps):
    model, x = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(6, 1)), torch.randn(1, 1, 2, 3)
    parts = integrated_gradients(model, x, 0, baseline=torch.zeros(1), steps=steps)
    torch.testing.assert_close(parts.flatten(), x.flatten() * model[1].weight[0].detach())


class Cube(torch.nn.Module):
    def forward(self, x):
        return torch.stack([x.pow(3).sum(dim=(1, 2, 3)), x.sum(dim=(1, 2, 3))], dim=1)


def test_a_cube_from_zero_gives_the_cube_back():
    x = torch.randn(2, 1, 2, 3).double()
    exact = {"steps": 2, "rule": "gauss-legendre"}  # up to the third degree
    parts = integrated_gradients(Cube(), x, 0, baseline=torch.zeros(1), **exact)
    torch.testing.assert_close(parts, x**3)


def test_a_midpoint_is_in_the_middle_of_its_step():
    x = torch.full((1, 1, 1, 1), 2.0)
    parts = integrated_gradients(Cube(), x, 0, baseline=torch.zeros(1), steps=2, rule="midpoint")
    torch.testing.assert_close(parts.item(), 2 * (3 * 0.5**2 + 3 * 1.5**2) / 2)


@pytest.mark.parametrize("batch_size", [1, 3, 7, 100])
def test_the_batch_size_changes_nothing(batch_size):
    model = family("no class token").double()
    x, empty = images(model, 3), torch.zeros(1)
    expected = integrated_gradients(model, x, [0, 1, 2], baseline=empty, steps=5)
    torch.testing.assert_close(
        integrated_gradients(model, x, [0, 1, 2], baseline=empty, steps=5, batch_size=batch_size), expected
    )


@pytest.mark.parametrize(("rule", "method"), [("gauss-legendre", "gausslegendre"), ("midpoint", "riemann_middle")])
def test_against_captum(rule, method):
    attr = pytest.importorskip("captum.attr")
    model = family("registers").double()
    x, empty = images(model), torch.full((2, 3, 12, 24), -1.0).double()
    theirs = attr.IntegratedGradients(model).attribute(x, baselines=empty, target=[1, 4], n_steps=9, method=method)
    ours = integrated_gradients(model, x, [1, 4], baseline=empty, steps=9, rule=rule)
    torch.testing.assert_close(ours, theirs.detach())


def test_pixels_are_added_up_over_their_own_patch():
    pixels = torch.zeros(1, 2, 4, 9)
    pixels[0, :, 2, 7] = torch.tensor([1.0, 2.0])
    found = to_patches(pixels, grid=(2, 3))
    assert found.nonzero().tolist() == [[0, 1, 2]]
    assert found[0, 1, 2] == 3
    with pytest.raises(ValueError, match="4×9 pixels are not a whole number of patches on a 2×4 grid"):
        to_patches(pixels, grid=(2, 4))
    with pytest.raises(ValueError, match="pass the model's layout"):
        to_patches(pixels, grid=(2, 4))
    found = to_patches(torch.ones(1, 2, 5, 9), TokenLayout((2, 3), patch_size=(2, 2)))
    assert found.tolist() == [[[8.0] * 3] * 2]


def test_black_is_what_the_models_own_preprocessing_makes_of_it():
    model = family("class token")
    with pytest.raises(ValueError, match="pass a tensor as baseline"):
        black(model)
    model.card = SimpleNamespace(preprocess=SimpleNamespace(mean=(0.5, 0.2, 0.4), std=(0.5, 0.1, 0.2)))
    torch.testing.assert_close(black(model), torch.tensor([-1.0, -2.0, -2.0])[:, None, None])
    x = images(model)
    torch.testing.assert_close(
        integrated_gradients(model, x, 0, steps=3), integrated_gradients(model, x, 0, steps=3, baseline=black(model))
    )


def test_a_resnet_has_them_too():
    model = ResNet(ResNetConfig(18, classes=3)).eval()
    x = torch.randn(1, 3, 32, 32)
    assert integrated_gradients(model, x, baseline=torch.zeros(1), steps=2).shape == x.shape


@pytest.mark.parametrize(("options", "message"), [({"steps": 0}, "at least 1"), ({"rule": "simpson"}, "rule must be")])
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        integrated_gradients(Cube(), torch.zeros(1, 1, 2, 2), 0, baseline=torch.zeros(1), **options)
