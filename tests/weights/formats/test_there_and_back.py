"""SigLIP, DINOv3, EVA-02, BEiT and AIMv2 are written back in their own format: equal bits, read by its library."""

import pytest
import torch
import transformers
from originals import BASES, read_weights, write_timm
from safetensors.torch import load_file

from conftest import assert_same
from vitreous.weights.convert import convert
from vitreous.weights.load import load

SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 4}
TIMM = {
    "siglip": "vit_base_patch16_siglip_224",
    "dinov3": "vit_small_patch16_dinov3",
    "dinov3 qkv bias": "vit_small_patch16_dinov3_qkvb",
    "dinov3 gated": "vit_small_plus_patch16_dinov3",
    "eva02": "eva02_tiny_patch14_224",
    "eva02 sub-norms": "eva02_base_patch16_clip_224",
    "rope mixed": "vit_small_patch16_rope_mixed_ape_224",
    "perception encoder": "vit_pe_core_tiny_patch16_384",
    "eva02 not square": "eva02_tiny_patch14_224",
    "beit": "beit_base_patch16_224",
    "aimv2": "aimv2_large_patch14_224",
}
TRANSFORMERS = (
    *("transformers siglip", "transformers dinov3", "transformers dinov3 gated", "transformers beit"),
    *("transformers beit shared", "transformers aimv2", "transformers aimv2 headless"),
)
LEFT_OUT = ("embeddings.mask_token",)  # of pre-training: transformers draws it, zeros are written


def same_bits(ours, theirs):
    assert set(ours) == set(theirs)
    for name in theirs:
        assert name in LEFT_OUT or torch.equal(ours[name], theirs[name]), name


@pytest.mark.parametrize("case", TIMM)
@torch.no_grad()
def test_timms_file_is_written_back_bit_for_bit(case, tmp_path):
    import timm

    (tmp_path / "a").mkdir()
    write_timm(TIMM[case], SMALL, 7, tmp_path / "a")
    ours = load(tmp_path / "a", image_size=(24, 40) if "not square" in case else None)
    convert(ours, tmp_path / "b", to="timm")
    again = load(tmp_path / "b")
    theirs = timm.create_model(f"local-dir:{tmp_path / 'b'}", pretrained=True).eval()
    x = torch.randn(2, 3, *ours.config.size)
    assert_same(ours(x), theirs(x))
    same_bits(again.state_dict(), ours.state_dict())
    assert again.config == ours.config
    written = load_file(tmp_path / "b" / "model.safetensors")
    same_bits(written, theirs.state_dict())


@pytest.mark.parametrize("name", TRANSFORMERS)
@torch.no_grad()
def test_transformers_file_is_written_back_bit_for_bit(name, tmp_path):
    base = BASES[name]
    (tmp_path / "a").mkdir()
    base.write(tmp_path / "a")
    ours = load(tmp_path / "a")
    convert(ours, tmp_path / "b", to="huggingface")
    prefixed = {key.removeprefix("vision_model."): t for key, t in read_weights(tmp_path / "b" / base.weights).items()}
    same_bits(prefixed, read_weights(tmp_path / "a" / base.weights))
    theirs = base.original(tmp_path / "b")  # strict: nothing is drawn at random
    x = torch.randn(2, 3, *ours.config.size)
    expected = theirs.outputs(x)
    assert_same(ours.forward_features(x) if expected.dim() == 3 else ours(x), expected)
    assert load(tmp_path / "b").config == ours.config


@torch.no_grad()
def test_timms_dinov3_becomes_transformers(tmp_path):
    write_timm("vit_small_patch16_dinov3", SMALL, 0, tmp_path)
    ours = load(tmp_path, assume={"pool": "token"})  # timm averages the patches, which transformers does not
    convert(ours, tmp_path / "b", to="huggingface")
    theirs = transformers.DINOv3ViTModel.from_pretrained(tmp_path / "b").eval()
    x = torch.randn(2, 3, 32, 32)
    assert_same(ours.forward_features(x), theirs(x).last_hidden_state)


@pytest.mark.parametrize(
    ("architecture", "classes", "line"),
    [
        ("vit_base_patch16_siglip_224", 7, "SigLIP cannot hold this model: it does not support classes=7"),
        ("eva02_tiny_patch14_224", 0, "DINOv3 cannot hold this model: it does not support .*rope='axial'"),
        ("vit_small_patch16_dinov3", 7, "DINOv3 cannot hold this model: it does not support .*classes=7"),
    ],
)
def test_what_transformers_cannot_hold_is_refused_in_one_line(architecture, classes, line, tmp_path):
    write_timm(architecture, SMALL, classes, tmp_path)
    with pytest.raises(ValueError, match=line):
        convert(load(tmp_path), tmp_path / "b", to="huggingface")
