import pytest
import torch
from captum.attr import Saliency
from families import family, images
from torch import nn

from vitreous.inside.smooth_grad import smooth_grad


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


@pytest.mark.parametrize("copies", [0, 3])
def test_copies_come_in_pairs(copies):
    with pytest.raises(ValueError, match="copies come in pairs"):
        smooth_grad(Quadratic(), torch.randn(1, 3, 4, 4), copies=copies)
