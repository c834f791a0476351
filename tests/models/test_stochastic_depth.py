"""Stochastic depth against torchvision's, bit for bit: runs that began with that one go on alike."""

import torch
from torchvision.ops import StochasticDepth as Theirs

from vitreous.models.vit import StochasticDepth


def test_training_draws_what_torchvision_draws():
    x = torch.randn(64, 5, 3)
    for p in (0.0, 0.1, 0.7):
        torch.manual_seed(3)
        ours = StochasticDepth(p)(x)
        torch.manual_seed(3)
        assert torch.equal(ours, Theirs(p, "row")(x))
        assert p == 0 or (ours == 0).any()


def test_evaluation_leaves_a_branch_alone():
    x = torch.randn(4, 2)
    assert StochasticDepth(0.7).eval()(x) is x
