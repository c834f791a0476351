"""The step size over a run."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vitreous.training.schedule import rate


@given(st.integers(1, 300), st.integers(0, 100), st.floats(0, 1))
def test_it_stays_between_its_ends_and_never_starts_at_zero(steps, warmup, final):
    warmup = min(warmup, steps)
    rates = [rate(step, steps, warmup, final) for step in range(steps)]
    assert rates[0] > 0
    assert max(rates) <= 1 + 1e-12
    assert min(rates[warmup:], default=final) >= final - 1e-12
    assert all(early < late for early, late in pairwise(rates[:warmup]))
    assert all(early >= late - 1e-12 for early, late in pairwise(rates[warmup:]))


def test_the_ends_are_where_they_should_be():
    assert rate(4, 100, warmup=5) == 1.0  # the warm-up's last
    assert rate(5, 100, warmup=5) == 1.0  # the cosine's first
    assert rate(100, 100, warmup=5, final=0.1) == pytest.approx(0.1)
    assert rate(50, 100) == pytest.approx(0.5)
    assert rate(5, 5, warmup=5) == 1.0  # a run that is all warm-up
    assert rate(25, 100) == pytest.approx(0.5 + math.sqrt(0.5) / 2)


def test_against_torchs_cosine():
    weight = torch.nn.Parameter(torch.zeros(1))
    optimiser = torch.optim.SGD([weight], lr=1.0)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 40, eta_min=0.2)
    for step in range(40):
        assert rate(step, 40, final=0.2) == pytest.approx(cosine.get_last_lr()[0], abs=1e-9)
        optimiser.step()
        cosine.step()
