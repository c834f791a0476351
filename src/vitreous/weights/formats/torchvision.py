"""torchvision's `vit_*` checkpoints."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from vitreous.models.vit import ViT, ViTConfig
from vitreous.weights.adapt import PAPER_VIT, ConvertedCheckpoint, adapted, check_limits
from vitreous.weights.keymap import Format, Tensors, rule, to_theirs

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
    """Recognise the format by two keys that no other has."""
    return "encoder.pos_embedding" in tensors and "class_token" in tensors


def defaults(tensors: Tensors, known: ViTConfig | None) -> dict[str, Any]:
    """Return torchvision's choices."""
    return {"norm_eps": 1e-6, "activation": "gelu", "pool": "token"}


TORCHVISION = Format("torchvision", recognise, RULES, defaults=defaults, resize="torchvision")


def to_torchvision(model: ViT) -> ConvertedCheckpoint:
    """Convert to torchvision's state dict; torchvision reads no config file."""
    tensors, config = adapted(model, prefix_positions=1)
    check_limits(
        config, "torchvision", PAPER_VIT | {"activation": ("gelu",), "qkv_bias": (True,), "patch_bias": (True,)}
    )
    if not config.classes:
        raise ValueError("torchvision cannot hold this model: its ViTs always have a head, this one has none")
    return ConvertedCheckpoint(to_theirs(tensors, RULES, config))
