import pytest
import torch
from families import family, images
from torch import nn

from vitreous.inside.faithfulness import area, curves, random_map
from vitreous.inside.greedy_order import greedy_order
from vitreous.inside.integrated_gradients import to_patches


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
