"""Sapiens 2 (Khirodkar et al., 2026), of timm and of its authors: keys and values that several heads share.

Blocks but the first and last eight have half as many key and value heads as query heads (grouped-query attention,
Ainslie et al., 2023): two neighbouring heads share one, and here each gets a copy. Only attention has a layer scale:
that of the MLP becomes ones. Both leave the function as it is.
"""

import re
from dataclasses import replace

import torch
from torch import Tensor

from vitreous.weights.formats.timm import TIMM
from vitreous.weights.keymap import Tensors
from vitreous.weights.safety import CheckpointError

FULL = 8  # blocks at either end whose heads have keys and values of their own
RENAMED = (  # authors' names → timm's, one after the other
    (r"^storage_tokens$", "reg_token"),
    (r"^patch_embed\.projection\.", "patch_embed.proj."),
    (r"\.attn\.w([qkv])\.", r".attn.\1_proj."),
    (r"\.attn\.gamma\.weight$", ".gamma_1"),
    (r"\.ffn\.w12\.", ".mlp.fc1."),
    (r"\.ffn\.w3\.", ".mlp.fc2."),
    (r"\.ln([12])\.", r".norm\1."),
    (r"^ln1\.", "norm."),
)


def prepare(tensors: Tensors) -> Tensors:
    """Use timm's names for Sapiens 2, give each head keys and values of its own, and each MLP a layer scale of ones."""
    plain = {}
    for key, value in tensors.items():
        for theirs, ours in RENAMED:
            key = re.sub(theirs, ours, key)
        plain[key] = value
    blocks = sorted({int(match[1]) for key in plain if (match := re.match(r"blocks\.(\d+)\.", key))})
    for block in blocks:
        attention = f"blocks.{block}.attn"
        whole = block < FULL or block >= len(blocks) - FULL
        for kind in ("weight", "bias"):
            names = [f"{attention}.{x}_proj.{kind}" for x in "qkv"]
            if absent := [name for name in (*names, f"{attention}.q_norm.weight") if name not in plain]:
                raise CheckpointError(f"it has no {absent[0]}: the checkpoint is incomplete")
            q, k, v = (plain.pop(name) for name in names)
            each = plain[f"{attention}.q_norm.weight"].numel()
            for name, part in zip(names[1:], (k, v), strict=True):
                if part.shape != (q.shape[0] // (1 if whole else 2), *q.shape[1:]) or q.shape[0] % (2 * each):
                    kept = "as many heads as" if whole else "half the heads of"
                    raise CheckpointError(f"{name} should have {kept} the queries, got {tuple(part.shape)}")
            plain[f"{attention}.qkv.{kind}"] = torch.cat([q, *(copied(x, q.shape[0], each) for x in (k, v))])
        if (scale := plain.get(f"blocks.{block}.gamma_1")) is not None:
            plain[f"blocks.{block}.ls2.gamma"] = torch.ones_like(scale)
    return plain


def copied(x: Tensor, rows: int, each: int) -> Tensor:
    """Repeat each of Sapiens 2's shared heads, `each` rows, until there are `rows`: `[kv·each …]` → `[rows …]`.

    >>> copied(torch.tensor([1, 2, 3, 4]), rows=8, each=2).tolist()
    [1, 2, 1, 2, 3, 4, 3, 4]
    """
    result: Tensor = x.unflatten(0, (-1, each)).repeat_interleave(rows // x.shape[0], dim=0).flatten(0, 1)
    return result


SAPIENS2 = replace(
    TIMM,
    name="sapiens2",
    recognise=lambda tensors: (
        "blocks.0.attn.wq.weight" in tensors
        or (
            {"blocks.0.attn.q_proj.weight", "blocks.0.attn.k_proj.bias", "blocks.0.attn.q_norm.weight"} <= set(tensors)
            and "patch_embed.proj.weight" in tensors
            and "blocks.0.gamma_1" in tensors
            and "blocks.0.gamma_2" not in tensors
        )
    ),
    ignored=("mask_token", "rope_embed.*", "rope.*"),
    prepare=prepare,
)
