"""Stochastic depth draws what torchvision's draws, and changes nothing in evaluation."""

import torch
from torchvision.ops import StochasticDepth as TorchvisionStochasticDepth

from vitreous.models.residual import StochasticDepth


def test_stochastic_depth_draws_what_torchvision_draws():
    x = torch.randn(64, 5, 3)
    for p in (0.0, 0.1, 0.7):
        torch.manual_seed(3)
        ours = StochasticDepth(p)(x)
        torch.manual_seed(3)
        assert torch.equal(ours, TorchvisionStochasticDepth(p, "row")(x))
        assert p == 0 or (ours == 0).any()


def test_stochastic_depth_changes_nothing_in_evaluation():
    x = torch.randn(4, 2)
    assert StochasticDepth(0.7).eval()(x) is x
