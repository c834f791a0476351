import pytest
import torch
from families import FAMILIES, family, images
from torch import nn

from vitreous.inside.logit_lens import logit_lens


class PassedOn(nn.Module):
    """A block that is cut out."""

    def forward(self, x, mask=None):
        return x


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_each_entry_is_the_answer_of_the_network_cut_off_there(name):
    model = family(name)
    x, blocks = images(model), model.blocks
    found = logit_lens(model, x)
    assert found.shape == (4, 2, 5)
    assert torch.equal(found[-1], model(x))
    for layers in range(4):
        model.blocks = nn.ModuleList([*blocks[:layers], *(PassedOn() for _ in blocks[layers:])])
        assert torch.equal(found[layers], model(x))


@torch.no_grad()
def test_without_a_head_the_lens_shows_features():
    model = family("registers", classes=0)
    x = images(model)
    assert torch.equal(logit_lens(model, x)[-1], model.features(x))
