import pytest
import torch
from captum.attr import Occlusion
from families import FAMILIES, family, images
from torch import nn

from vitreous.inside.faithfulness import area, curves, random_map
from vitreous.inside.occlusion import greedy_order, occlusion, random_masks, rise
from vitreous.inside.pixel_gradients import to_patches


@pytest.mark.parametrize("name", FAMILIES)
def test_it_is_captums_with_the_mean_colour(name):
    model = family(name)
    x, (height, width) = images(model, 1), model.config.patch
    mean = x.mean(dim=(-2, -1), keepdim=True).expand_as(x)
    window = (x.shape[1], height, width)
    wanted = Occlusion(model).attribute(x, target=1, sliding_window_shapes=window, strides=window, baselines=mean)
    patches = to_patches(wanted, model.layout.grid) / (x.shape[1] * height * width)  # captum gives it to every pixel
    torch.testing.assert_close(occlusion(model, x, 1, grid=model.layout.grid), patches.float(), atol=1e-5, rtol=1e-3)


class Corner(nn.Module):
    """The first class is certain as far as the top left quarter is shown."""

    def forward(self, x):
        logit = 10 * x[..., :8, :8].mean(dim=(1, 2, 3)) - 5
        return torch.stack([logit, torch.zeros_like(logit)], dim=1)


class Constant(nn.Module):
    def forward(self, x):
        return torch.zeros(len(x), 2)


def test_the_quarter_that_decides_is_the_highest():
    heat = rise(Corner(), torch.ones(1, 3, 16, 16), 0, masks=512, cells=4)[0]
    quarters = torch.stack([heat[:8, :8], heat[:8, 8:], heat[8:, :8], heat[8:, 8:]]).mean(dim=(1, 2))
    assert quarters.argmax() == 0
    assert quarters[0] > quarters[1:].max() + 0.1


def test_under_a_constant_model_the_map_is_one_everywhere_but_for_chance():
    heat = rise(Constant(), torch.ones(1, 3, 16, 16), 0, masks=4096, cells=4, share=0.3)
    torch.testing.assert_close(heat, torch.ones(1, 16, 16), atol=0.1, rtol=0)


def test_masks_lie_between_zero_and_one_are_shifted_and_come_from_their_seed():
    x = torch.zeros(1, 3, 20, 30)
    first, again = (random_masks(6, x, 4, 0.5, torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(first, again)
    assert first.shape == (6, 1, 20, 30)
    assert 0 <= first.min() < 0.2
    assert 0.8 < first.max() < 1 + 1e-6


class Linear(nn.Module):
    """The first class's logit is a weighted sum of patches on a 3×4 grid; the second's is zero."""

    def __init__(self):
        super().__init__()
        self.weight = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))

    def forward(self, x):
        logit = (to_patches(x, (3, 4)) * self.weight).sum(dim=(1, 2)) / 10
        return torch.stack([logit, torch.zeros_like(logit)], dim=1)


@pytest.mark.parametrize("steps", [3, 12])
def test_on_a_linear_model_the_greedy_order_is_the_true_one(steps):
    model, x = Linear(), torch.randn(1, 3, 6, 8, generator=torch.Generator().manual_seed(1))
    true = (to_patches(x, (3, 4)) * model.weight)[0]
    found = greedy_order(model, x, (3, 4), 0, steps=steps, baseline=torch.zeros(1))
    ours, best = (curves(model, x, each, 0, steps=steps, baseline=torch.zeros(1)) for each in (found, true))
    for a, b in zip(ours, best, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("baseline", ["mean", "removed"])
def test_the_greedy_order_beats_random_ones(baseline):
    model = family("class token")
    x, grid = images(model, 1), model.layout.grid
    best = greedy_order(model, x, grid, 1, steps=6, baseline=baseline)
    maps = torch.stack([best, *(random_map(grid, seed) for seed in range(5))])
    deletion, insertion = curves(model, x, maps, 1, steps=6, baseline=baseline)
    gains = area(insertion) - area(deletion)
    assert gains[0] > gains[1:].max()
