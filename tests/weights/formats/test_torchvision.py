"""torchvision's ViTs and ResNets: the same logits when read, and ViTs when written back."""

import pytest
import torch
import torchvision
from torchvision.models.vision_transformer import VisionTransformer

from conftest import assert_same, noise
from vitreous.weights.convert import convert
from vitreous.weights.load import load

SMALL = {"image_size": 32, "patch_size": 8, "num_layers": 3, "num_heads": 4, "hidden_dim": 48, "mlp_dim": 96}


@pytest.mark.parametrize("extra", [{}, {"representation_size": 20}], ids=["linear_head", "tanh_head"])
@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
@torch.no_grad()
def test_logits_are_torchvisions_there_and_back(extra, suffix, tmp_path):
    theirs = noise(VisionTransformer(**SMALL, num_classes=7, **extra))
    torch.save(theirs.state_dict(), tmp_path / "vit.pth")
    ours = load(tmp_path / "vit.pth", assume={"heads": 4})
    x = torch.randn(2, 3, 32, 32)
    assert_same(ours(x), theirs(x))

    path, _ = convert(ours, tmp_path / f"back{suffix}", to="torchvision")
    back = VisionTransformer(**SMALL, num_classes=7, **extra).eval()
    state = torch.load(path) if suffix == ".pth" else load_safetensors(path)
    back.load_state_dict(state, strict=True)
    assert_same(back(x), theirs(x))


def load_safetensors(path):
    from safetensors.torch import load_file

    return load_file(path)


@pytest.mark.slow
@torch.no_grad()
def test_a_full_vit_b_16_gives_torchvisions_logits(tmp_path):
    theirs = noise(torchvision.models.vit_b_16())
    torch.save(theirs.state_dict(), tmp_path / "vit_b_16.pth")
    ours = load(tmp_path / "vit_b_16.pth")
    x = torch.randn(1, 3, 224, 224)
    assert_same(ours(x), theirs(x))


@torch.no_grad()
def test_the_first_spelling_of_the_mlp_is_read(tmp_path):
    theirs = noise(VisionTransformer(**SMALL, num_classes=7))
    state = {
        k.replace("mlp.0.", "mlp.linear_1.").replace("mlp.3.", "mlp.linear_2."): v
        for k, v in theirs.state_dict().items()
    }
    torch.save(state, tmp_path / "vit.pth")
    x = torch.randn(2, 3, 32, 32)
    assert_same(load(tmp_path / "vit.pth", assume={"heads": 4})(x), theirs(x))


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
