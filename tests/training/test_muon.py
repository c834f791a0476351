"""Muon: torch's own, only quicker."""

import copy

import pytest
import torch
from torch import nn

from vitreous.training.muon import Muon, orthogonalise

SHAPES = [(24, 8), (24, 8), (8, 24), (16, 16), (8, 24), (3, 40)]


def test_against_torchs_muon_over_several_steps():
    ours = [nn.Parameter(torch.randn(shape)) for shape in SHAPES]
    theirs = copy.deepcopy(ours)
    mine = Muon(ours, lr=torch.tensor(0.02), weight_decay=0.1)
    reference = torch.optim.Muon(theirs, lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    begun = [parameter.detach().clone() for parameter in ours]
    for step in range(6):
        torch.manual_seed(step)
        for a, b in zip(ours, theirs, strict=True):
            a.grad = torch.randn(a.shape)
            b.grad = a.grad.clone()
        mine.step()
        reference.step()
    for a, b, first in zip(ours, theirs, begun, strict=True):
        moved = (b - first).abs().mean()
        assert moved > 0.01
        assert (a - b).abs().max() < 0.02 * moved  # both compute in bf16, in another order
        assert torch.equal(mine.state[a]["momentum_buffer"], reference.state[b]["momentum_buffer"])


@pytest.mark.parametrize("shape", [(12, 30), (30, 12), (16, 16)])
def test_orthogonalised_matrices_have_singular_values_near_one(shape):
    values = torch.linalg.svdvals(orthogonalise(torch.randn(5, *shape)).float())
    assert values.max() < 1.35
    assert values.min() > 0.3


def test_a_gradient_of_zero_moves_nothing():
    weight = nn.Parameter(torch.randn(4, 6))
    before = weight.detach().clone()
    optimiser = Muon([weight], lr=0.1, weight_decay=0.0)
    weight.grad = torch.zeros_like(weight)
    optimiser.step()
    assert torch.equal(weight, before)


def test_what_is_no_matrix_is_refused():
    with pytest.raises(ValueError, match=r"matrices only, got a parameter of shape \[3\]"):
        Muon([nn.Parameter(torch.zeros(3))])
