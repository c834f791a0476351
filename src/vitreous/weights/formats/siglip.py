"""transformers' SigLIP and DINOv3 vision models; a complete SigLIP's text tower is ignored.

SigLIP 2 of a fixed size is stored as a SigLIP. The learned query of its head attends by torch's `MultiheadAttention`,
whose queries, keys and values are one matrix.
"""

from dataclasses import replace

from vitreous.weights.formats.clip import HUGGINGFACE_RULES
from vitreous.weights.formats.huggingface_config import read_dinov3_config, read_siglip_config
from vitreous.weights.keymap import JOIN_GATE, JOIN_QKV, Format, Tensors, library_models, rule, strip_prefix
from vitreous.weights.safety import CheckpointError

POOL = "head.attention.in_proj_"
SIGLIP_RULES = (
    *(r for r in HUGGINGFACE_RULES if not r.ours.startswith(("cls_token", "norm_pre", "head"))),
    rule("attn_pool.latent", "head.probe"),
    *(rule(f"attn_pool.{part}.{{p}}", f"{POOL}{part}.{{p}}") for part in ("q", "kv")),
    rule("attn_pool.proj.{p}", "head.attention.out_proj.{p}"),
    rule("attn_pool.norm.{p}", "head.layernorm.{p}"),
    *(rule(f"attn_pool.mlp.{layer}.{{p}}", f"head.mlp.{layer}.{{p}}") for layer in ("fc1", "fc2")),
)
LAYER = "layer.{n}"
DINOV3_RULES = (
    rule("cls_token", "embeddings.cls_token"),
    rule("reg_token", "embeddings.register_tokens"),
    rule("patch_embed.proj.{p}", "embeddings.patch_embeddings.{p}"),
    *(rule(f"blocks.{{n}}.{name}.{{p}}", f"{LAYER}.{name}.{{p}}") for name in ("norm1", "norm2")),
    *(rule(f"blocks.{{n}}.ls{n}.gamma", f"{LAYER}.layer_scale{n}.lambda1") for n in (1, 2)),
    rule("blocks.{n}.attn.qkv.weight", *(f"{LAYER}.attention.{x}_proj.weight" for x in "qkv"), transform=JOIN_QKV),
    *(rule(f"blocks.{{n}}.attn.qkv.{x}_bias", f"{LAYER}.attention.{x}_proj.bias") for x in "qv"),
    rule("blocks.{n}.attn.proj.{p}", f"{LAYER}.attention.o_proj.{{p}}"),
    rule("blocks.{n}.mlp.fc1.{p}", f"{LAYER}.mlp.gate_proj.{{p}}", f"{LAYER}.mlp.up_proj.{{p}}", transform=JOIN_GATE),
    rule("blocks.{n}.mlp.fc2.{p}", f"{LAYER}.mlp.down_proj.{{p}}"),
    rule("norm.{p}", "norm.{p}"),
)
DINOV3_PLAIN_RULES = tuple(
    rule(r.ours, f"{LAYER}.mlp.up_proj.{{p}}") if r.ours == "blocks.{n}.mlp.fc1.{p}" else r for r in DINOV3_RULES
)


def split_pool(tensors: Tensors) -> Tensors:
    """Remove the vision tower's prefix, and split the pool's matrix into that of the query and those of the tokens."""
    plain = strip_prefix("vision_model.")(tensors)
    for kind in ("weight", "bias"):
        if (whole := plain.pop(POOL + kind, None)) is not None:
            width = whole.shape[0] // 3
            plain |= {f"{POOL}q.{kind}": whole[:width], f"{POOL}kv.{kind}": whole[width:]}
    return plain


def strip_encoder(tensors: Tensors) -> Tensors:
    """Remove the encoder's name, which transformers 5 has in memory; registers of no tokens are left out."""
    plain = {key.removeprefix("model."): value for key, value in tensors.items()}
    registers, token = (plain.get(f"embeddings.{name}") for name in ("register_tokens", "cls_token"))
    if registers is None or token is None or registers.shape != (1, *registers.shape[1:2], token.shape[-1]):
        raise CheckpointError("embeddings.register_tokens should be [1 tokens width]: the checkpoint is incomplete")
    return {key: value for key, value in plain.items() if registers.numel() or value is not registers}


SIGLIP = Format(
    "huggingface-siglip",
    lambda tensors: any(key.endswith("head.probe") for key in tensors),
    SIGLIP_RULES,
    ("text_model.*", "logit_scale", "logit_bias", "embeddings.position_ids"),
    prepare=split_pool,
    read_config=read_siglip_config,
    resize="huggingface",
)
DINOV3_GATED = Format(
    "huggingface-dinov3-gated",
    lambda tensors: (
        any("attention.q_proj" in key for key in tensors)
        and any("mlp.gate_proj" in key for key in tensors)
        and "embeddings.patch_embeddings.weight" in tensors
    ),
    DINOV3_RULES,
    ("embeddings.mask_token",),
    prepare=strip_encoder,
    read_config=read_dinov3_config,
    known=library_models(position=("none",)),
)
DINOV3 = replace(
    DINOV3_GATED,
    name="huggingface-dinov3",
    recognise=lambda tensors: (
        "embeddings.patch_embeddings.weight" in tensors and any(key.endswith("layer_scale1.lambda1") for key in tensors)
    ),
    rules=DINOV3_PLAIN_RULES,
)
