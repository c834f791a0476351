"""Files as DINO, DINOv2, OpenAI's CLIP and OpenCLIP publish them, made from noisy timm models by known renamings.

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
def test_a_dino_teacher_is_peeled_out_of_its_training_checkpoint(tmp_path):
    theirs = noise(timm.create_model("vit_base_patch16_224", **SMALL, num_classes=0))
    teacher = {f"module.backbone.{key}": value for key, value in theirs.state_dict().items()}
    teacher["module.head.mlp.0.weight"] = torch.zeros(4, 48)
    torch.save({"teacher": teacher, "student": {}, "epoch": 3}, tmp_path / "dino.pth")
    ours = load(tmp_path / "dino.pth", heads=4)
    assert_same(ours(X), theirs(X))
    assert "teacher" in ours.card.report.wrappers


@pytest.mark.parametrize("prefix", ["visual.", "module.visual."])
@torch.no_grad()
def test_openais_clip_gives_timms_embedding(prefix, tmp_path):
    width = 48
    state = {
        "class_embedding": torch.randn(width),
        "positional_embedding": torch.randn(17, width),
        "conv1.weight": torch.randn(width, 3, 8, 8) * 0.1,
        "ln_pre.weight": torch.randn(width),
        "ln_pre.bias": torch.randn(width),
        "ln_post.weight": torch.randn(width),
        "ln_post.bias": torch.randn(width),
        "proj": torch.randn(width, 20),
    }
    for n in range(3):
        shapes = {
            "ln_1.weight": (width,),
            "ln_1.bias": (width,),
            "attn.in_proj_weight": (3 * width, width),
            "attn.in_proj_bias": (3 * width,),
            "attn.out_proj.weight": (width, width),
            "attn.out_proj.bias": (width,),
            "ln_2.weight": (width,),
            "ln_2.bias": (width,),
            "mlp.c_fc.weight": (192, width),
            "mlp.c_fc.bias": (192,),
            "mlp.c_proj.weight": (width, 192),
            "mlp.c_proj.bias": (width,),
        }
        state |= {
            f"transformer.resblocks.{n}.{k}": torch.randn(s) * (0.5 if len(s) == 1 else 0.15) for k, s in shapes.items()
        }
    whole = {prefix + key: value for key, value in state.items()}
    whole |= {f"{prefix.removesuffix('visual.')}token_embedding.weight": torch.zeros(9, 4)}
    torch.save(whole, tmp_path / "clip.pt")
    theirs = timm.create_model("vit_base_patch16_clip_quickgelu_224", **SMALL, num_classes=20).eval()
    theirs.load_state_dict(checkpoint_filter_fn(dict(whole), theirs))
    ours = load(tmp_path / "clip.pt", heads=4)
    assert_same(ours(X), theirs(X))
    assert ours.card.head == "projection"
    assert ours.config.activation == "quick_gelu"
    assert "activation" in ours.card.report.assumed
