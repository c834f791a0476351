"""Read files of self-supervised training: MAE with its decoder, MoCo v3, iBOT, and DINOv2's own runs.

Their encoders have timm's names. What only training needs, such as decoders, projection heads and momentum copies, is
ignored and listed in the report.
"""

import re
from dataclasses import replace

from vitreous.weights.adapt import library_models
from vitreous.weights.formats.timm import DINOV2, DINOV2_REGISTERS, TIMM
from vitreous.weights.keymap import Allowed, Tensors

PATCHES = "patch_embed.proj.weight"
MAE_HEADS = {768: 12, 1024: 16, 1280: 16}  # width → heads of its three models


def mae_heads(tensors: Tensors) -> Allowed:
    """Return the heads of MAE's models."""
    width = tensors[PATCHES].shape[0]
    return {"heads": (MAE_HEADS[width],)} if width in MAE_HEADS else {}


def moco_heads(tensors: Tensors) -> Allowed:
    """Return the heads of MoCo v3's models: 12, also of the small one, where others have 6."""
    return {"heads": (12,)} if tensors[PATCHES].shape[0] in (384, 768) else {}


def take_base_encoder(tensors: Tensors) -> Tensors:
    """Remove MoCo's prefix from the encoder that is kept, but not from its projection head."""
    prefix = "base_encoder."
    return {key if key.startswith(f"{prefix}head.") else key.removeprefix(prefix): t for key, t in tensors.items()}


def join_chunks(tensors: Tensors) -> Tensors:
    """Number blocks as `blocks.N`: DINOv2 trains in chunks, `blocks.<chunk>.N`, where N counts through all of them."""
    return {re.sub(r"^blocks\.\d+\.(\d+\.)", r"blocks.\1", key): tensor for key, tensor in tensors.items()}


MAE = replace(
    TIMM,
    name="mae",
    recognise=lambda tensors: "decoder_embed.weight" in tensors and PATCHES in tensors,
    ignored=(
        *("mask_token", "decoder_embed.{p}", "decoder_pos_embed", "decoder_blocks.{n}.*", "decoder_norm.{p}"),
        "decoder_pred.{p}",
    ),
    read_shapes=mae_heads,
    known=library_models(),
)
MOCO_V3 = replace(
    TIMM,
    name="moco-v3",
    recognise=lambda tensors: f"base_encoder.{PATCHES}" in tensors,
    ignored=("base_encoder.head.*", "momentum_encoder.*", "predictor.*"),
    prepare=take_base_encoder,
    read_shapes=moco_heads,
    known=library_models(),
)
IBOT = replace(
    TIMM,
    name="ibot",
    recognise=lambda tensors: "masked_embed" in tensors and PATCHES in tensors,
    ignored=("masked_embed",),
)
DINOV2_TRAINING = replace(
    DINOV2,
    name="dinov2-training",
    recognise=lambda tensors: "blocks.0.0.norm1.weight" in tensors and PATCHES in tensors,
    prepare=join_chunks,
)
DINOV2_REGISTERS_TRAINING = replace(
    DINOV2_REGISTERS,
    name="dinov2-registers-training",
    recognise=lambda tensors: DINOV2_TRAINING.recognise(tensors) and "register_tokens" in tensors,
    prepare=join_chunks,
)
