"""DINOv2's own files: timm's names except for registers, the gated MLP and a mask token that inference does not need.

Files of the first DINO have exactly timm's names and are read by `timm.py`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from vitreous.models.vit import ViTConfig
from vitreous.weights.formats.timm import own_rules
from vitreous.weights.keymap import Format, Rule, Tensors, fold_class_position

RENAMED = {
    "reg_token": "register_tokens",
    "blocks.{n}.mlp.fc1.{p}": "blocks.{n}.mlp.w12.{p}",
    "blocks.{n}.mlp.fc2.{p}": "blocks.{n}.mlp.w3.{p}",
}


def recognise(tensors: Mapping[str, Tensor]) -> bool:
    """Recognise the format by the mask token, which timm's own files lack."""
    return "mask_token" in tensors and "patch_embed.proj.weight" in tensors


def rules() -> tuple[Rule, ...]:
    """Return a rule for each of our keys, with DINOv2's spelling of the three that differ."""
    return tuple(
        Rule(r.ours, (RENAMED[r.ours],), r.transform, older=(r.theirs,)) if r.ours in RENAMED else r
        for r in own_rules()
    )


def defaults(tensors: Tensors, known: ViTConfig | None) -> dict[str, Any]:
    """Return DINOv2's choices."""
    return {"norm_eps": 1e-6, "activation": "gelu", "pool": "token"}


def _with_registers(tensors: Mapping[str, Tensor]) -> bool:
    return recognise(tensors) and "register_tokens" in tensors


DINOV2 = Format("dinov2", recognise, rules(), ("mask_token",), defaults=defaults, resize="dinov2")
DINOV2_REGISTERS = replace(
    DINOV2,
    name="dinov2-registers",
    recognise=_with_registers,
    adjust=fold_class_position,
    resize="dinov2-registers",
)
