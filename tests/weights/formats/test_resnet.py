"""torchvision's ResNets: the same logits."""

import pytest
import torch
import torchvision

from conftest import assert_same
from vitreous.weights.load import load


@pytest.mark.slow
@pytest.mark.parametrize("depth", [18, 50])
@torch.no_grad()
def test_resnets_give_torchvisions_logits(depth, tmp_path):
    theirs = torchvision.models.get_model(f"resnet{depth}", num_classes=11).eval()
    for name, buffer in theirs.named_buffers():  # noise, but a variance is positive
        if "running" in name:
            buffer.copy_(torch.rand_like(buffer) + 0.5)
    torch.save(theirs.state_dict(), tmp_path / "resnet.pth")
    ours = load(tmp_path / "resnet.pth")
    x = torch.randn(2, 3, 64, 64)
    assert ours.config.depth == depth
    assert_same(ours(x), theirs(x))
    assert load(tmp_path / "resnet.pth", classes=3)(x).shape == (2, 3)
    assert load(tmp_path / "resnet.pth", classes=0)(x).shape == (2, ours.config.feature_width)
