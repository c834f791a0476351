"""torchvision's `vit_*` checkpoints."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from vitreous.models.vit import ViTConfig
from vitreous.weights.keymap import Format, Tensors, rule

LAYER = "encoder.layers.encoder_layer_{n}"

RULES = (
    rule("cls_token", "class_token"),
    rule("pos_embed", "encoder.pos_embedding"),
    rule("patch_embed.proj.{p}", "conv_proj.{p}"),
    rule("blocks.{n}.norm1.{p}", f"{LAYER}.ln_1.{{p}}"),
    rule("blocks.{n}.attn.qkv.{p}", f"{LAYER}.self_attention.in_proj_{{p}}"),  # in_proj_weight, in_proj_bias
    rule("blocks.{n}.attn.proj.{p}", f"{LAYER}.self_attention.out_proj.{{p}}"),
    rule("blocks.{n}.norm2.{p}", f"{LAYER}.ln_2.{{p}}"),
    rule("blocks.{n}.mlp.fc1.{p}", f"{LAYER}.mlp.0.{{p}}", older=[f"{LAYER}.mlp.linear_1.{{p}}"]),
    rule("blocks.{n}.mlp.fc2.{p}", f"{LAYER}.mlp.3.{{p}}", older=[f"{LAYER}.mlp.linear_2.{{p}}"]),
    rule("norm.{p}", "encoder.ln.{p}"),
    rule("head.hidden.{p}", "heads.pre_logits.{p}"),
    rule("head.{p}", "heads.head.{p}"),
)


def recognise(tensors: Mapping[str, Tensor]) -> bool:
    """By two keys that nobody else has."""
    return "encoder.pos_embedding" in tensors and "class_token" in tensors


def assumed(tensors: Tensors, known: ViTConfig | None) -> dict[str, Any]:
    """torchvision's choices."""
    return {"norm_eps": 1e-6, "activation": "gelu", "pool": "token"}


TORCHVISION = Format("torchvision", recognise, RULES, assumed=assumed, resize="torchvision")
