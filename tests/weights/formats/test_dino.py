"""Files as DINO and DINOv2 publish them, made from noisy timm models by known renamings.

timm's own converters, which read the originals, are the reference.
"""

import pytest
import timm
import torch
from timm.models.vision_transformer import checkpoint_filter_fn

from conftest import assert_same, noise
from vitreous.weights.load import load

SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 3, "num_heads": 4}
X = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(3))


@torch.no_grad()
def dinov2_original(registers, swiglu):
    width, hidden = 48, 64
    state = {
        "cls_token": torch.randn(1, 1, width),
        "pos_embed": torch.randn(1, 17, width),
        "mask_token": torch.randn(1, width),
        "patch_embed.proj.weight": torch.randn(width, 3, 8, 8) * 0.1,
        "patch_embed.proj.bias": torch.randn(width),
        "norm.weight": torch.randn(width),
        "norm.bias": torch.randn(width),
    }
    if registers:
        state["register_tokens"] = torch.randn(1, registers, width)
    for n in range(3):
        shapes = {
            "norm1.weight": (width,),
            "norm1.bias": (width,),
            "attn.qkv.weight": (3 * width, width),
            "attn.qkv.bias": (3 * width,),
            "attn.proj.weight": (width, width),
            "attn.proj.bias": (width,),
            "ls1.gamma": (width,),
            "norm2.weight": (width,),
            "norm2.bias": (width,),
            "ls2.gamma": (width,),
        }
        if swiglu:
            shapes |= {"mlp.w12.weight": (2 * hidden, width), "mlp.w12.bias": (2 * hidden,)}
            shapes |= {"mlp.w3.weight": (width, hidden), "mlp.w3.bias": (width,)}
        else:
            shapes |= {"mlp.fc1.weight": (192, width), "mlp.fc1.bias": (192,)}
            shapes |= {"mlp.fc2.weight": (width, 192), "mlp.fc2.bias": (width,)}
        state |= {
            f"blocks.{n}.{key}": torch.randn(shape) * (0.5 if len(shape) == 1 else 0.15)
            for key, shape in shapes.items()
        }
    return state


@pytest.mark.parametrize("swiglu", [False, True])
@pytest.mark.parametrize("registers", [0, 4])
@torch.no_grad()
def test_dinov2s_own_files_give_timms_tokens(registers, swiglu, tmp_path):
    state = dinov2_original(registers, swiglu)
    torch.save(state, tmp_path / "dinov2.pth")
    name = f"vit_{'giant' if swiglu else 'base'}_patch14_{'reg4_' if registers else ''}dinov2"
    extra = {"mlp_ratio": 2 * 64 / 48 + 0.01} if swiglu else {}
    theirs = timm.create_model(name, **SMALL, **extra, num_classes=0).eval()
    theirs.load_state_dict(checkpoint_filter_fn(dict(state), theirs))
    ours = load(tmp_path / "dinov2.pth", heads=4)
    assert_same(ours.forward_features(X), theirs.forward_features(X))
    assert_same(ours(X), theirs(X))
    assert ours.card.report.ignored == ["mask_token"]


@torch.no_grad()
def test_a_dino_teacher_is_found_in_its_training_checkpoint(tmp_path):
    theirs = noise(timm.create_model("vit_base_patch16_224", **SMALL, num_classes=0))
    teacher = {f"module.backbone.{key}": value for key, value in theirs.state_dict().items()}
    teacher["module.head.mlp.0.weight"] = torch.zeros(4, 48)
    torch.save({"teacher": teacher, "student": {}, "epoch": 3}, tmp_path / "dino.pth")
    ours = load(tmp_path / "dino.pth", heads=4)
    assert_same(ours(X), theirs(X))
    assert "teacher" in ours.card.report.wrappers
