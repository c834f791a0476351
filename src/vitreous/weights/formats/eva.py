"""EVA's own files (Fang et al., 2023): EVA, EVA-02 and the vision towers of EVA-CLIP, whose text towers are ignored.

Layer norms inside the blocks and the gated MLP have other names than timm's. The stored rotation gives the width of a
head and the grid that others are rescaled to, and is compared with the one that is computed here.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import isqrt

import torch
from torch import Tensor

from vitreous.models.rope import RotaryPositions
from vitreous.models.vit_config import ViTConfig
from vitreous.weights.formats.dinov3 import GATED
from vitreous.weights.formats.timm import RULES, TIMM
from vitreous.weights.keymap import Allowed, Tensors, rule, strip_prefix
from vitreous.weights.safety import CheckpointError

ROTATIONS = ("rope", "blocks.{n}.attn.rope")
NAMES = ("mlp.w1.weight", "mlp.w12.weight", "mlp.ffn_ln.weight", "attn.inner_attn_ln.weight")


def _is_eva(tensors: Mapping[str, Tensor]) -> bool:
    """Return whether queries have a bias of their own, and a part has the name that EVA gives it."""
    tower = "visual." if "visual.patch_embed.proj.weight" in tensors else ""
    if f"{tower}patch_embed.proj.weight" not in tensors or f"{tower}blocks.0.attn.q_bias" not in tensors:
        return False
    named = (*(f"blocks.0.{name}" for name in NAMES), "mask_token", "lm_head.weight", "rope.freqs_cos")
    return bool(tower) or any(name in tensors for name in named)


def read_shapes(tensors: Tensors) -> Allowed:
    """Read heads and the reference grid from EVA's stored rotation, `[n k]`; without one, no positions are rotary."""
    prefixes = [name.format(n=0) for name in ROTATIONS]
    prefix = next((prefix for prefix in prefixes if f"{prefix}.freqs_cos" in tensors), None)
    if prefix is None:
        return {"rope": ("none",)}
    cosine, sine = (tensors.get(f"{prefix}.freqs_{name}", torch.empty(0)).float() for name in ("cos", "sin"))
    side = isqrt(len(cosine))
    width = tensors["patch_embed.proj.weight"].shape[0] if "patch_embed.proj.weight" in tensors else 0
    if (
        cosine.dim() != 2
        or cosine.shape != sine.shape
        or min(side, cosine.shape[-1] // 4) < 2
        or side**2 != len(cosine)
        or cosine.shape[1] % 4
    ):
        raise CheckpointError(f"{prefix}.freqs_cos and freqs_sin should be [patches head], of a square grid")
    rate = 10_000.0 ** (-4 / cosine.shape[1])  # of the second pair of channels; the first may turn more than half round
    reference = round(
        torch.atan2(sine[side, 2], cosine[side, 2]).item() * side / rate
    )  # by the angle of the second row
    config = ViTConfig(image_size=side, patch_size=1, width=cosine.shape[1], heads=1, rope="axial")
    computed = RotaryPositions(replace(config, rope_reference=max(reference, 0))).rotation
    if computed is None or not torch.allclose(
        torch.stack([sine, cosine]), computed, atol=0.02
    ):  # may be half precision
        raise CheckpointError(f"{prefix} is not EVA-02's rotation by rows and columns: it is not supported")
    return {"heads": (width // cosine.shape[1],), "rope": ("axial",), "rope_reference": (reference,)}


EVA = replace(
    TIMM,
    name="eva",
    recognise=_is_eva,
    rules=(
        *GATED,
        rule("blocks.{n}.mlp.fc1.{p}", "blocks.{n}.mlp.w12.{p}"),
        rule("blocks.{n}.mlp.norm.{p}", "blocks.{n}.mlp.ffn_ln.{p}"),
        rule("blocks.{n}.attn.norm.{p}", "blocks.{n}.attn.inner_attn_ln.{p}"),
        *RULES,
    ),
    ignored=(
        *("mask_token", "lm_head.{p}", "text.*", "logit_scale"),
        *(f"{name}.freqs_{kind}" for name in ROTATIONS for kind in ("cos", "sin")),
    ),
    prepare=strip_prefix("visual."),
    read_shapes=read_shapes,
)
