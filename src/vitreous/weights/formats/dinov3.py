"""DINOv3's own files (Siméoni et al., 2025): registers are storage tokens, and the rotation's periods are stored.

The file states what timm's table would: the periods give the width of a head and the temperature, and a mask says that
keys have no bias. Only the image size is asked for, since a rotation fits any.
"""

import re

import torch

from vitreous.weights.adapt import library_models
from vitreous.weights.formats.timm import RULES
from vitreous.weights.keymap import JOIN_GATE, Allowed, Format, Tensors, rule
from vitreous.weights.safety import CheckpointError

PERIODS = "rope_embed.periods"
BASE = 100.0  # the longest period in relation to the shortest, in all published models


def prepare(tensors: Tensors) -> Tensors:
    """Split DINOv3's bias of queries, keys and values, and check the mask that says that keys have none."""
    plain = dict(tensors)
    for stem in {
        key[: match.end()] for key in tensors if (match := re.match(r"blocks\.\d+\.attn\.qkv\.(?=bias)", key))
    }:
        bias, mask = (plain.pop(f"{stem}{name}", None) for name in ("bias", "bias_mask"))
        if bias is None or mask is None or bias.dim() != 1 or mask.shape != bias.shape or len(bias) % 3:
            raise CheckpointError(f"{stem}bias_mask should mask {stem}bias, each number: the checkpoint is incomplete")
        wanted = torch.ones(3, len(bias) // 3)
        wanted[1] = 0
        if not torch.equal(mask.float(), wanted.flatten()):
            raise CheckpointError(f"{stem}bias_mask should be 1 for queries and values, 0 for keys: get the file again")
        plain |= {f"{stem}q_bias": bias.chunk(3)[0], f"{stem}v_bias": bias.chunk(3)[2]}
    return plain


def read_shapes(tensors: Tensors) -> Allowed:
    """Read heads and rotation from the stored periods, `[k/4]`."""
    periods, patches = tensors.get(PERIODS), tensors.get("patch_embed.proj.weight")
    if periods is None or patches is None or periods.dim() != 1 or not len(periods):
        raise CheckpointError(f"it has no {PERIODS}: the checkpoint is incomplete")
    usual = BASE ** (torch.arange(len(periods)) / len(periods))
    if not torch.allclose(periods.float(), usual, rtol=0.01) or patches.shape[0] % (4 * len(periods)):  # may be bf16
        raise CheckpointError(
            f"{PERIODS} are not DINOv3's, {BASE:g}^(i/{len(periods)}): this rotation is not supported"
        )
    heads = patches.shape[0] // (4 * len(periods))
    found: Allowed = {"heads": (heads,), "position": ("none",), "rope": ("dinov3",), "rope_temperature": (BASE,)}
    return found | {"rope_offset": (0.0,), "rope_reference": (0,), "rope_order": ("yx",)}


GATED = (
    rule("blocks.{n}.mlp.fc1.{p}", "blocks.{n}.mlp.w1.{p}", "blocks.{n}.mlp.w2.{p}", transform=JOIN_GATE),
    rule("blocks.{n}.mlp.fc2.{p}", "blocks.{n}.mlp.w3.{p}"),
)
DINOV3 = Format(
    "dinov3",
    lambda tensors: "patch_embed.proj.weight" in tensors and any(key in tensors for key in (PERIODS, "storage_tokens")),
    (rule("reg_token", "storage_tokens"), *GATED, *RULES),
    ("mask_token", PERIODS, "local_cls_norm.{p}"),
    prepare=prepare,
    read_shapes=read_shapes,
    known=lambda shapes, assume: library_models(
        position=("none",),
        qkv_bias=(False,),
        qv_bias=(shapes["qv_bias"],),
        registers=(4,),
        layer_scale=(1e-5,),
        swiglu=(True, False),
        norm_eps=(1e-5,),
    )(shapes, assume),
)
