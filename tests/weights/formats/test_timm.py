"""Tiny noisy timm models → saved → loaded here → the same numbers; written back → timm gives the same.

Files as DINO and DINOv2 publish them are made from noisy timm models by known renamings; timm's own converters, which
read the originals, are the reference.
"""

import json

import pytest
import timm
import torch
from safetensors.torch import save_file
from timm.models.vision_transformer import checkpoint_filter_fn

from conftest import assert_same, noise
from vitreous.data.preprocess import HALF
from vitreous.weights.convert import convert
from vitreous.weights.load import load

SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 3, "num_heads": 4, "num_classes": 7}
CASES = {
    "vit": ("vit_base_patch16_224", {}),
    "vit_no_qkv_bias": ("vit_base_patch16_224", {"qkv_bias": False}),
    "vit_grey": ("vit_base_patch16_224", {"in_chans": 1}),
    "vit_not_square": ("vit_base_patch16_224", {"img_size": (24, 40), "patch_size": (8, 4)}),
    "vit_mlp_ratio": ("vit_base_patch16_224", {"mlp_ratio": 48 / 11}),
    "vit_qk_norm": ("vit_base_patch16_224", {"qk_norm": True}),
    "vit_gap": ("vit_base_patch16_224", {"class_token": False, "global_pool": "avg", "fc_norm": False}),
    "mae_fine_tuned": ("vit_base_patch16_224", {"global_pool": "avg"}),
    "no_positions": ("vit_base_patch16_224", {"pos_embed": "none"}),
    "deit": ("deit_base_patch16_224", {}),
    "deit_distilled": ("deit_base_distilled_patch16_224", {}),
    "deit3": ("deit3_base_patch16_224", {"init_values": 1e-6, "no_embed_class": True}),
    "dino": ("vit_base_patch16_224", {"num_classes": 0}),
    "dinov2": ("vit_base_patch14_dinov2", {"num_classes": 0}),
    "dinov2_swiglu": ("vit_giant_patch14_dinov2", {"num_classes": 0, "mlp_ratio": 2.66667 * 2}),
    "dinov2_registers": ("vit_base_patch14_reg4_dinov2", {}),
    "norms_inside": ("vit_base_patch16_224", {"scale_attn_norm": True, "scale_mlp_norm": True}),
    "siglip": ("vit_base_patch16_siglip_224", {}),
    "siglip2": ("vit_base_patch32_siglip_256", {"num_classes": 0}),
    "siglip_registers": ("vit_so150m_patch16_reg4_map_256", {"mlp_ratio": 3.7362, "img_size": (24, 40)}),
    "siglip_all_tokens": ("test_vit3", {}),
    "siglip_partial_patches": ("vit_base_patch16_siglip_224", {"img_size": 37}),
    "clip": ("vit_base_patch16_clip_224", {}),
    "hybrid": ("vit_small_r26_s32_224", {"img_size": (96, 64), "patch_size": 1}),
    "hybrid_first_layers": ("vit_tiny_r_s16_p8_224", {"patch_size": 4}),
    "aimv2": ("aimv2_large_patch14_224", {}),
    "aimv2_classifier": ("aimv2_huge_patch14_224", {"img_size": (24, 40), "fc_norm": True}),
    "beit": ("beit_base_patch16_224", {}),
    "beit_shared": ("beit_base_patch16_224", {"use_rel_pos_bias": False, "use_shared_rel_pos_bias": True}),
    "beit_not_square": ("beitv2_base_patch16_224", {"use_abs_pos_emb": True, "global_pool": "token"}),
    "relative": ("vit_relpos_base_patch16_224", {"img_size": (24, 40)}),
    "relative_shared": ("vit_srelpos_small_patch16_224", {"rel_pos_dim": 9}),
    "relative_class_token": ("vit_relpos_medium_patch16_cls_224", {"num_classes": 0}),
    "relative_post_norm": ("vit_relpos_medium_patch16_rpn_224", {}),
    "post_norm": ("vit_base_patch16_rpn_224", {}),
    "clip_quickgelu": ("vit_base_patch16_clip_quickgelu_224", {}),
}


def stored_noise(model):
    """Noise in every tensor that timm stores, not in tables that it computes."""
    noise(model)
    for module in model.modules():
        getattr(module, "init_non_persistent_buffers", lambda: None)()
    return model


def saved(tmp_path, model, architecture, arguments):
    """As timm's `save_for_hf` lays a folder out."""
    plain = {k: list(v) if isinstance(v, tuple) else v for k, v in arguments.items() if k != "num_classes"}
    config = {
        "architecture": architecture,
        "num_classes": model.num_classes,
        "global_pool": model.global_pool,
        "model_args": plain,
        "pretrained_cfg": {
            "input_size": [arguments.get("in_chans", 3), *model.patch_embed.img_size],
            "mean": [0.5, 0.5, 0.5],
            "std": [0.5, 0.5, 0.5],
            "crop_pct": 0.9,
            "interpolation": "bicubic",
        },
    }
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_logits_and_tokens_are_timms_there_and_back(case, tmp_path):
    architecture, changes = CASES[case]
    arguments = SMALL | changes
    theirs = stored_noise(timm.create_model(architecture, **arguments))
    ours = load(saved(tmp_path, theirs, architecture, arguments))
    x = torch.randn(2, ours.config.channels, *ours.config.size)
    assert_same(ours.forward_features(x), theirs.forward_features(x))
    assert_same(ours(x), theirs(x))
    if not ours.config.distillation_token and ours.config.pool == "token":
        assert_same(ours.features(x), theirs.forward_head(theirs.forward_features(x), pre_logits=True))

    convert(ours, tmp_path / "back", to="timm")
    back = timm.create_model(f"local-dir:{tmp_path / 'back'}", pretrained=True).eval()
    assert_same(back(x), theirs(x))


@pytest.mark.slow
@torch.no_grad()
def test_a_full_vit_base_gives_timms_logits(tmp_path):
    theirs = noise(timm.create_model("vit_base_patch16_224"))
    torch.save(theirs.state_dict(), tmp_path / "vit_base_patch16_224.pth")
    ours = load(tmp_path / "vit_base_patch16_224.pth")
    x = torch.randn(1, 3, 224, 224)
    assert_same(ours(x), theirs(x))
    assert ours.card.report.assumed["heads"].startswith("12 (as vit_base_patch16_224")


@torch.no_grad()
def test_deit3s_own_file_spells_layer_scale_differently(tmp_path):
    theirs = noise(timm.create_model("deit3_small_patch16_224", **SMALL))
    state = {
        k.replace("ls1.gamma", "gamma_1").replace("ls2.gamma", "gamma_2"): v for k, v in theirs.state_dict().items()
    }
    torch.save({"model": state}, tmp_path / "deit_3.pth")
    ours = load(tmp_path / "deit_3.pth", assume={"heads": 4, "position": "learned", "rope": "none"})
    x = torch.randn(2, 3, 32, 32)
    assert_same(ours(x), theirs(x))
    assert not ours.config.prefix_positions


def test_an_unknown_part_inside_a_block_is_an_error(tmp_path):
    state = timm.create_model("vit_base_patch16_224", **SMALL).state_dict()
    state["blocks.0.attn.gate.weight"] = torch.zeros(48, 48)
    torch.save(state, tmp_path / "mine.pth")
    with pytest.raises(ValueError, match=r"blocks\.0\.attn\.gate\.weight"):
        load(tmp_path / "mine.pth", assume={"heads": 4})


@torch.no_grad()
def test_another_number_of_classes_replaces_the_head_and_says_so(tmp_path):
    theirs = noise(timm.create_model("vit_base_patch16_224", **SMALL))
    torch.save(theirs.state_dict(), tmp_path / "mine.pth")
    ours = load(tmp_path / "mine.pth", assume={"heads": 4}, classes=3)
    assert ours(torch.randn(1, 3, 32, 32)).shape == (1, 3)
    assert ours.card.report.reinitialised == ["head.weight", "head.bias"]
    x = torch.randn(2, 3, 32, 32)
    assert_same(ours.forward_features(x), theirs.forward_features(x))


FEATURES = SMALL | {"num_classes": 0}
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
    theirs = timm.create_model(name, **FEATURES, **extra).eval()
    theirs.load_state_dict(checkpoint_filter_fn(dict(state), theirs))
    ours = load(tmp_path / "dinov2.pth", assume={"heads": 4})
    assert_same(ours.forward_features(X), theirs.forward_features(X))
    assert_same(ours(X), theirs(X))
    assert ours.card.report.ignored == ["mask_token"]


@torch.no_grad()
def test_a_dino_teacher_is_found_in_its_training_checkpoint(tmp_path):
    theirs = noise(timm.create_model("vit_base_patch16_224", **FEATURES))
    teacher = {f"module.backbone.{key}": value for key, value in theirs.state_dict().items()}
    teacher["module.head.mlp.0.weight"] = torch.zeros(4, 48)
    torch.save({"teacher": teacher, "student": {}, "epoch": 3}, tmp_path / "dino.pth")
    ours = load(tmp_path / "dino.pth", assume={"heads": 4})
    assert_same(ours(X), theirs(X))
    assert "teacher" in ours.card.report.wrappers


ROTARY = {
    "dinov3": ("vit_small_patch16_dinov3_qkvb", {}),
    "dinov3 gated": ("vit_small_plus_patch16_dinov3", {}),
    "axial": ("vit_small_patch16_rope_224", {}),
    "mixed and learned": ("vit_small_patch16_rope_mixed_ape_224", {}),
    "eva02": ("eva02_base_patch14_224", {}),
    "eva02 clip": ("eva02_base_patch16_clip_224", {}),
    "eva02 post-norm": ("eva02_enormous_patch14_clip_224", {"mlp_ratio": 3}),
    "eva": ("eva_giant_patch14_224", {}),
    "pe core": ("vit_pe_core_tiny_patch16_384", {}),
    "pe spatial": ("vit_pe_spatial_tiny_patch16_512", {}),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", ROTARY)
@torch.no_grad()
def test_a_rotary_model_gives_timms_logits_also_at_another_size_and_optimized(case, tmp_path):
    from vitreous.speed.optimize import optimize

    architecture, changes = ROTARY[case]
    arguments = SMALL | changes
    theirs = timm.create_model(architecture, **arguments).eval()
    for parameter in theirs.parameters():
        parameter.normal_(std=0.2)
    folder = saved(tmp_path, theirs, architecture, arguments)
    ours = load(folder)
    x = torch.randn(2, 3, 32, 32)
    assert_same(ours(x), theirs(x))
    assert_same(optimize(ours, pixels=False, backends=("eager",))(x), theirs(x))
    theirs.set_input_size((40, 24))
    x = torch.randn(2, 3, 40, 24)
    assert_same(load(folder, image_size=(40, 24))(x), theirs(x))


@torch.no_grad()
@pytest.mark.parametrize("name", ["vit_small_patch16_dinov3", "vit_relpos_small_patch16_224"])
def test_the_image_size_of_a_config_is_used_where_no_position_shows_it(tmp_path, name):
    theirs = stored_noise(timm.create_model(name, img_size=96, embed_dim=48, num_heads=4, depth=2, num_classes=3))
    arguments = {"embed_dim": 48, "num_heads": 4, "depth": 2}
    fields = {"input_size": [3, 96, 96], "fixed_input_size": True, "mean": HALF, "std": HALF}
    config = {"architecture": name, "num_classes": 3, "model_args": arguments, "pretrained_cfg": fields}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(theirs.state_dict(), tmp_path / "model.safetensors")
    ours, x = load(tmp_path), torch.randn(2, 3, 96, 96)
    assert ours.config.size == ours.card.preprocess.size == (96, 96)
    assert_same(ours(x), theirs(x))


@pytest.mark.slow
@torch.no_grad()
def test_the_image_size_of_a_name_is_used_where_no_position_shows_it(tmp_path):
    """Its weights are of 256 px, which no argument of timm's entry point says."""
    theirs = stored_noise(timm.create_model("vit_relpos_base_patch32_plus_rpn_256", num_classes=3))
    save_file(theirs.state_dict(), tmp_path / "vit_relpos_base_patch32_plus_rpn_256.sw_in1k.safetensors")
    save_file(theirs.state_dict(), tmp_path / "mine.safetensors")
    ours, x = load(tmp_path / "vit_relpos_base_patch32_plus_rpn_256.sw_in1k.safetensors"), torch.randn(1, 3, 256, 256)
    assert_same(ours(x), theirs(x))
    with pytest.raises(ValueError, match="fit any image size: pass --assume image_size=HEIGHTxWIDTH"):
        load(tmp_path / "mine.safetensors")
