import torch
from torch import nn

from vitreous.inside.rise import random_masks, rise


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
