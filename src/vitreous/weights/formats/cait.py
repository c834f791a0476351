"""CaiT's checkpoints, of timm and of its authors: class attention after the blocks, and heads that talk."""

from dataclasses import replace

from vitreous.weights.formats.timm import RULES, TIMM
from vitreous.weights.keymap import rule

LAYER = "blocks_token_only.{n}"
PARTS = ("norm1", "norm2", "mlp.fc1", "mlp.fc2")
CAIT_RULES = (
    rule("fc_norm.{p}", "norm.{p}"),  # applied to the class token, which is pooled by then
    rule("attn_pool.cls_token", "cls_token"),
    *(rule(f"blocks.{{n}}.attn.talk.{name}.{{p}}", f"blocks.{{n}}.attn.{name}.{{p}}") for name in ("proj_l", "proj_w")),
    *(rule(f"blocks.{{n}}.ls{i}.gamma", f"blocks.{{n}}.gamma_{i}") for i in (1, 2)),
    *(rule(f"attn_pool.layers.{{n}}.{name}.{{p}}", f"{LAYER}.{name}.{{p}}") for name in PARTS),
    *(rule(f"attn_pool.layers.{{n}}.{x}.{{p}}", f"{LAYER}.attn.{x}.{{p}}") for x in ("q", "k", "v", "proj")),
    *(rule(f"attn_pool.layers.{{n}}.ls{i}.gamma", f"{LAYER}.gamma_{i}") for i in (1, 2)),
)
WRITTEN = {template for known in CAIT_RULES for template in known.theirs}
CAIT = replace(
    TIMM,
    name="cait",
    recognise=lambda tensors: any(key.startswith("blocks_token_only.") for key in tensors),
    rules=(*CAIT_RULES, *(known for known in RULES if not WRITTEN & set(known.theirs) and known.ours != "norm.{p}")),
)
