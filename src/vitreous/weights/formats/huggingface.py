"""transformers' ViT, DeiT, DINOv2 (with and without registers) and ViT-MAE encoders.

transformers 5 renamed most keys in memory but still writes the old ones to disk; both are read, the old written.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from vitreous.models.vit import ViTConfig
from vitreous.weights.keymap import (
    JOIN_GATE,
    JOIN_QKV,
    Format,
    Rule,
    Tensors,
    fold_class_position,
    rule,
    strip_prefix,
)

PREFIXES = {"vit": "vit.", "deit": "deit.", "dinov2": "dinov2.", "dinov2_with_registers": "dinov2_with_registers."}
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
PATCHES = "embeddings.patch_embeddings.projection.weight"
OLD, NEW, DINO = "encoder.layer.{n}", "layers.{n}", "encoder.layer.{n}"  # DINOv2's blocks kept their place

EMBEDDINGS = (
    rule("cls_token", "embeddings.cls_token"),
    rule("dist_token", "embeddings.distillation_token"),
    rule("reg_token", "embeddings.register_tokens"),
    rule("pos_embed", "embeddings.position_embeddings"),
    rule("patch_embed.proj.{p}", "embeddings.patch_embeddings.projection.{p}"),
)
HEADS = (
    rule("norm.{p}", "layernorm.{p}"),
    rule("head.hidden.{p}", "pooler.dense.{p}"),
    rule("head.{p}", "classifier.{p}", older=["cls_classifier.{p}"]),
    rule("head_dist.{p}", "distillation_classifier.{p}"),
)
QKV_OLD = [f"{OLD}.attention.attention.{name}.{{p}}" for name in ("query", "key", "value")]
QKV_NEW = [f"{{}}.attention.{name}_proj.{{{{p}}}}" for name in "qkv"]


def _new(block: str) -> list[str]:
    return [name.format(block) for name in QKV_NEW]


BLOCKS = (
    rule("blocks.{n}.attn.qkv.{p}", *QKV_OLD, transform=JOIN_QKV, older=[_new(NEW), _new(DINO)]),
    rule(
        "blocks.{n}.attn.proj.{p}",
        f"{OLD}.attention.output.dense.{{p}}",
        older=[f"{NEW}.attention.o_proj.{{p}}", f"{DINO}.attention.o_proj.{{p}}"],
    ),
)
VIT_BLOCKS = (
    rule("blocks.{n}.norm1.{p}", f"{OLD}.layernorm_before.{{p}}", older=[f"{NEW}.layernorm_before.{{p}}"]),
    rule("blocks.{n}.norm2.{p}", f"{OLD}.layernorm_after.{{p}}", older=[f"{NEW}.layernorm_after.{{p}}"]),
    rule("blocks.{n}.mlp.fc1.{p}", f"{OLD}.intermediate.dense.{{p}}", older=[f"{NEW}.mlp.fc1.{{p}}"]),
    rule("blocks.{n}.mlp.fc2.{p}", f"{OLD}.output.dense.{{p}}", older=[f"{NEW}.mlp.fc2.{{p}}"]),
)
DINO_BLOCKS = (
    rule("blocks.{n}.norm1.{p}", f"{DINO}.norm1.{{p}}"),
    rule("blocks.{n}.norm2.{p}", f"{DINO}.norm2.{{p}}"),
    rule("blocks.{n}.ls1.gamma", f"{DINO}.layer_scale1.lambda1"),
    rule("blocks.{n}.ls2.gamma", f"{DINO}.layer_scale2.lambda1"),
)
DINO_MLP = (
    rule("blocks.{n}.mlp.fc1.{p}", f"{DINO}.mlp.fc1.{{p}}"),
    rule("blocks.{n}.mlp.fc2.{p}", f"{DINO}.mlp.fc2.{{p}}"),
)
_GATE_NEW = rule(
    "blocks.{n}.mlp.fc1.{p}", f"{DINO}.mlp.gate_proj.{{p}}", f"{DINO}.mlp.up_proj.{{p}}", transform=JOIN_GATE
)
DINO_SWIGLU = (
    rule("blocks.{n}.mlp.fc1.{p}", f"{DINO}.mlp.weights_in.{{p}}"),
    rule("blocks.{n}.mlp.fc2.{p}", f"{DINO}.mlp.weights_out.{{p}}", older=[f"{DINO}.mlp.down_proj.{{p}}"]),
)
VIT_RULES: tuple[Rule, ...] = (*EMBEDDINGS, *BLOCKS, *VIT_BLOCKS, *HEADS)
DINO_RULES: tuple[Rule, ...] = (*EMBEDDINGS, *BLOCKS, *DINO_BLOCKS, *DINO_MLP, *HEADS)
DINO_SWIGLU_RULES: tuple[Rule, ...] = (*EMBEDDINGS, *BLOCKS, *DINO_BLOCKS, *DINO_SWIGLU, *HEADS)


def _is(tensors: Mapping[str, Tensor], dino: bool) -> bool:
    here = any(key.endswith(PATCHES) for key in tensors)
    return here and any("layer_scale1.lambda1" in key for key in tensors) == dino


def read_config(sidecar: Mapping[str, Any]) -> dict[str, Any]:
    """`config.json` to our fields."""
    names = {
        "num_attention_heads": "heads",
        "layer_norm_eps": "norm_eps",
        "num_channels": "channels",
        "hidden_size": "width",
        "num_hidden_layers": "depth",
    }
    known = {ours: sidecar[theirs] for theirs, ours in names.items() if theirs in sidecar}
    if sidecar:
        known["pool"] = "token"  # unless the head's shape says more
    for field in ("image_size", "patch_size"):
        if field in sidecar:
            known[field] = tuple(sidecar[field]) if isinstance(sidecar[field], list) else sidecar[field]
    if (name := sidecar.get("hidden_act")) is not None:
        if name not in ACTIVATIONS:
            raise ValueError(f"activation {name!r} is not built here; known are {', '.join(ACTIVATIONS)}")
        known["activation"] = ACTIVATIONS[name]
    return known


def assumed(tensors: Tensors, known: ViTConfig | None) -> dict[str, Any]:
    """transformers' defaults."""
    dino = "blocks.0.ls1.gamma" in tensors
    return {"norm_eps": 1e-6 if dino else 1e-12, "activation": "gelu"}


LEFT_OUT = ("embeddings.mask_token", "decoder.*", "mask_token")
VIT = Format(
    "huggingface",
    lambda tensors: _is(tensors, dino=False),
    VIT_RULES,
    LEFT_OUT,
    prepare=strip_prefix(*PREFIXES.values()),
    read_config=read_config,
    assumed=assumed,
    resize="huggingface",
)
DINOV2 = Format(
    "huggingface-dinov2",
    lambda tensors: _is(tensors, dino=True),
    (*DINO_RULES, *DINO_SWIGLU, _GATE_NEW),
    LEFT_OUT,
    prepare=strip_prefix(*PREFIXES.values()),
    adjust=fold_class_position,
    read_config=read_config,
    assumed=assumed,
    resize="huggingface",
)
DINOV2_REGISTERS = replace(
    DINOV2,
    name="huggingface-dinov2-registers",
    recognise=lambda tensors: _is(tensors, dino=True) and any(key.endswith("register_tokens") for key in tensors),
    resize="dinov2-registers",  # transformers antialiases for this one alone
)
