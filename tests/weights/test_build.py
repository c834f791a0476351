"""A model is built only from tensors that fit it."""

import pytest
import timm
import torch

from conftest import noise
from vitreous.weights.load import load

SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 3, "num_heads": 4, "num_classes": 7}


def test_a_missing_weight_is_an_error(tmp_path):
    state = timm.create_model("vit_base_patch16_224", **SMALL).state_dict()
    del state["blocks.1.norm2.bias"]
    torch.save(state, tmp_path / "mine.pth")
    with pytest.raises(ValueError, match=r"blocks\.1\.norm2\.bias"):
        load(tmp_path / "mine.pth", heads=4)


@pytest.fixture
def theirs():
    return noise(timm.create_model("vit_base_patch16_224", **SMALL))


def test_integers_are_rejected_as_weights(theirs, tmp_path):
    state = {key: (value * 100).to(torch.int8) for key, value in theirs.state_dict().items()}
    torch.save(state, tmp_path / "mine.pth")
    with pytest.raises(ValueError, match="quantised"):
        load(tmp_path / "mine.pth", heads=4)
