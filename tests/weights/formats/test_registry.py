"""Which format a file's keys are recognised as, and families that resemble a ViT and are rejected by name."""

import json

import pytest
import timm
import torch
import transformers
from safetensors.torch import load_file

from conftest import noise
from vitreous.weights.formats.registry import FORMATS, recognise
from vitreous.weights.load import load
from vitreous.weights.safety import CheckpointError

KEYS = {
    "google": ["embedding/kernel", "Transformer/posembed_input/pos_embedding"],
    "google-big-vision": ["params/img/embedding/kernel", "params/img/pos_embedding"],
    "torchvision": ["class_token", "encoder.pos_embedding"],
    "huggingface": ["vit.embeddings.patch_embeddings.projection.weight"],
    "huggingface-dinov2": [
        "embeddings.patch_embeddings.projection.weight",
        "encoder.layer.0.layer_scale1.lambda1",
    ],
    "huggingface-dinov2-registers": [
        "embeddings.patch_embeddings.projection.weight",
        "encoder.layer.0.layer_scale1.lambda1",
        "embeddings.register_tokens",
    ],
    "huggingface-clip": ["vision_model.embeddings.class_embedding"],
    "huggingface-clip-classifier": ["vision_model.embeddings.class_embedding", "classifier.weight"],
    "huggingface-siglip": ["vision_model.head.probe", "vision_model.embeddings.patch_embedding.weight"],
    "huggingface-siglip-classifier": ["head.probe", "embeddings.patch_embedding.weight", "classifier.weight"],
    "huggingface-siglip2": ["head.probe", "embeddings.patch_embedding.weight"],  # whose patches are a matrix
    "huggingface-siglip2-classifier": ["head.probe", "embeddings.patch_embedding.weight", "classifier.weight"],
    "huggingface-beit": [
        "beit.embeddings.patch_embeddings.projection.weight",
        "encoder.layer.0.attention.attention.query.bias",
    ],
    "huggingface-dpt": ["dpt.embeddings.patch_embeddings.projection.weight"],
    "huggingface-aimv2": ["vision_model.embeddings.rms_norm.weight"],
    "huggingface-dinov3": ["embeddings.patch_embeddings.weight", "layer.0.layer_scale1.lambda1"],
    "huggingface-dinov3-gated": [
        "embeddings.patch_embeddings.weight",
        "layer.0.layer_scale1.lambda1",
        "layer.0.attention.q_proj.weight",
        "layer.0.mlp.gate_proj.weight",
    ],
    "clip": ["visual.class_embedding"],
    "dinov2": ["patch_embed.proj.weight", "mask_token", "blocks.0.norm1.weight"],
    "dinov2-registers": ["patch_embed.proj.weight", "mask_token", "register_tokens", "blocks.0.norm1.weight"],
    "cait": ["patch_embed.proj.weight", "blocks.0.norm1.weight", "blocks_token_only.0.norm1.weight"],
    "naflex": ["embeds.proj.weight", "embeds.pos_embed", "blocks.0.norm1.weight"],
    "naflex-factorized": ["embeds.proj.weight", "embeds.pos_embed_y", "embeds.pos_embed_x"],
    "naflex-siglip": ["embeds.proj.weight", "embeds.pos_embed", "attn_pool.latent"],
    "dinov3": ["patch_embed.proj.weight", "rope_embed.periods", "storage_tokens", "mask_token"],
    "eva": ["patch_embed.proj.weight", "blocks.0.attn.q_bias", "blocks.0.mlp.w1.weight", "mask_token"],
    "sapiens2": [
        "patch_embed.proj.weight",
        "blocks.0.norm1.weight",
        "blocks.0.gamma_1",
        *(f"blocks.0.attn.{name}" for name in ("q_proj.weight", "k_proj.bias", "q_norm.weight")),
    ],
    "beit": ["patch_embed.proj.weight", "mask_token", "blocks.0.attn.relative_position_bias_table"],
    "timm": ["patch_embed.proj.weight", "blocks.0.norm1.weight"],
    "clip-timm": ["visual.trunk.patch_embed.proj.weight"],
    "mae": ["patch_embed.proj.weight", "mask_token", "decoder_embed.weight", "blocks.0.norm1.weight"],
    "moco-v3": ["base_encoder.patch_embed.proj.weight"],
    "ibot": ["patch_embed.proj.weight", "masked_embed", "blocks.0.norm1.weight"],
    "dinov2-training": ["patch_embed.proj.weight", "mask_token", "blocks.0.0.norm1.weight"],
    "dinov2-registers-training": ["patch_embed.proj.weight", "register_tokens", "blocks.0.0.norm1.weight"],
}


def test_every_format_has_a_case_here():
    assert set(KEYS) == set(FORMATS)


@pytest.mark.parametrize("name", KEYS)
def test_specific_formats_are_recognised_before_general_ones(name):
    tensor = torch.zeros(1, 1) if "siglip2" in name else torch.zeros(1)
    assert recognise(dict.fromkeys(KEYS[name], tensor)).name == name


def test_unknown_keys_are_shown_with_the_formats_that_are_read():
    with pytest.raises(CheckpointError, match=r"formats google.*timm; the first keys are stem, body: check"):
        recognise(dict.fromkeys(["stem", "body"], torch.zeros(1)))


def test_a_family_that_is_unsupported_is_rejected_by_name(tmp_path):
    config = transformers.SwinConfig(embed_dim=12, depths=[1], num_heads=[2], image_size=32)
    transformers.SwinModel(config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="Swin"):
        load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({}))  # by its keys alone
    with pytest.raises(ValueError, match="Swin"):
        load(tmp_path)
    assert load_file(tmp_path / "model.safetensors")


SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 4, "num_classes": 7}


@pytest.fixture
def theirs():
    return noise(timm.create_model("vit_base_patch16_224", **SMALL))


@pytest.mark.parametrize("name", ["sample.pth", "evaluation.pth"])
def test_a_name_that_begins_like_a_family_is_not_one(theirs, tmp_path, name):
    torch.save(theirs.state_dict(), tmp_path / name)
    assert load(tmp_path / name, assume={"heads": 4}).config.classes == 7


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("samvit_base_patch16.pth", "SAM"),
        ("xcit_nano_12_p16_224.pth", "XCiT"),
    ],
)
def test_a_family_in_the_file_name_is_rejected(theirs, name, family, tmp_path):
    torch.save(theirs.state_dict(), tmp_path / name)
    with pytest.raises(ValueError, match=family):
        load(tmp_path / name, assume={"heads": 4})
