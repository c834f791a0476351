import pytest
import torch

from conftest import VIT_TI
from vitreous.data.samples import samples
from vitreous.inside.artifacts import find_artifacts
from vitreous.models.tokens import TokenLayout
from vitreous.views.inspection import Inspection
from vitreous.weights.load import load

LAYOUT = TokenLayout(grid=(3, 4), registers=2)


def test_long_tokens_are_found_from_their_first_block_on():
    outputs = torch.randn(5, LAYOUT.tokens, 16, generator=torch.Generator().manual_seed(0))
    outputs[3:, LAYOUT.index(2, 3)] *= 20
    outputs[4:, LAYOUT.index(0, 0)] *= 20
    found = find_artifacts(outputs, LAYOUT)
    assert (found.patches, found.block) == ((0, 11), 3)
    assert found.norm > 10 * found.usual


def test_class_and_register_tokens_are_no_artifacts():
    outputs = torch.ones(2, LAYOUT.tokens, 4)
    outputs[:, : LAYOUT.prefix] *= 100
    assert not find_artifacts(outputs, LAYOUT)


@pytest.mark.slow
@pytest.mark.skipif(not VIT_TI.exists(), reason="the real ViT-Ti is not on this machine")
def test_vit_ti_keeps_them_in_the_four_corners():
    found = Inspection(load(VIT_TI), samples()["chelsea"]).artifacts
    assert (found.patches, found.block) == ((0, 13, 182, 195), 7)
