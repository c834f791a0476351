import pytest
import torch
from torch import nn

from vitreous.inside.integrated_gradients import to_patches
from vitreous.inside.saco import agreement, saco


class Patches(nn.Module):
    """The first class's logit falls by a patch's own weight when the patch is black; the second's is zero."""

    weight = torch.tensor([[4.0, 3.0], [2.0, 1.0]])

    def forward(self, x):
        logit = (to_patches(x, (2, 2)) / 12 * self.weight).sum(dim=(1, 2))
        return torch.stack([logit, torch.zeros_like(logit)], dim=1)


def test_the_true_order_has_one_its_negative_minus_one_and_a_constant_map_zero():
    model, x = Patches(), torch.ones(1, 3, 4, 4)
    maps = torch.stack([model.weight, -model.weight, torch.ones(2, 2)])
    found = saco(model, x, maps, 0, groups=4, baseline=torch.zeros(1))
    torch.testing.assert_close(found, torch.tensor([1.0, -1.0, 0.0]))


def test_pairs_count_by_the_difference_of_their_values():
    values, effects = torch.tensor([[10.0, 1.0, 0.0]]), torch.tensor([[0.9, 0.1, 0.2]])
    torch.testing.assert_close(agreement(values, effects), torch.tensor([(9 + 10 - 1) / 20]))


@pytest.mark.parametrize("groups", [1, 3, 4])
def test_groups_may_be_of_unequal_sizes(groups):
    found = saco(Patches(), torch.ones(1, 3, 4, 4), torch.rand(2, 2, 2), groups=groups)
    assert found.shape == (2,)
    assert (found.abs() <= 1).all()
