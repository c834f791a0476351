"""DINOv2's resizing as matrices, against torch's own `interpolate`."""

import pytest
import torch

from vitreous.speed.resampling import axis_weights, resample_offset
from vitreous.weights.positions import CONVENTIONS

GRIDS = [((4, 4), (7, 7)), ((7, 7), (4, 4)), ((4, 4), (3, 6)), ((3, 5), (6, 4)), ((5, 3), (5, 8)), ((37, 37), (16, 24))]
GRIDS += [((1, 3), (2, 1)), ((2, 2), (1, 1)), ((5, 5), (6, 5))]


@pytest.mark.parametrize(("old", "new"), GRIDS)
def test_the_matrices_are_dinov2s_interpolation(old, new):
    table = torch.randn(1, 6, *old)
    expected = CONVENTIONS["dinov2"](table.double(), new)
    torch.testing.assert_close(resample_offset(table.double(), new), expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(resample_offset(table, new), expected.float(), rtol=0, atol=1e-4)


def test_the_same_grid_gives_the_same_numbers():
    table = torch.randn(1, 6, 5, 3)
    assert torch.equal(resample_offset(table, (5, 3)), table)
    assert not torch.allclose(resample_offset(table, (5, 4))[..., :3], table)


def test_each_new_place_is_an_average_of_old_ones():
    weights = axis_weights(torch.arange(9.0), 5, torch.tensor([0.1]))
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(9))
