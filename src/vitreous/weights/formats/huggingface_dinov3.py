"""Read transformers' DINOv3 ViTs: keys, known models and `config.json`."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from vitreous.models.vit import ViT
from vitreous.weights.adapt import PAPER_VIT, ConvertedCheckpoint, adapted, check_limits, library_models
from vitreous.weights.formats.huggingface import with_sidecars
from vitreous.weights.formats.huggingface_config import (
    USUAL,
    activation_name,
    check_backbone,
    check_types,
    read_fields,
    shared_fields,
    task_of,
    unsupported_kind,
)
from vitreous.weights.keymap import JOIN_GATE, JOIN_QKV, Allowed, Format, Tensors, rule, to_theirs
from vitreous.weights.safety import CheckpointError

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


def strip_encoder(tensors: Tensors) -> Tensors:
    """Remove the encoder's name, which transformers 5 has, in DINOv3's keys; registers of no tokens are left out."""
    plain = {key.removeprefix("model."): value for key, value in tensors.items()}
    registers, token = (plain.get(f"embeddings.{name}") for name in ("register_tokens", "cls_token"))
    if registers is None or token is None or registers.shape != (1, *registers.shape[1:2], token.shape[-1]):
        raise CheckpointError("embeddings.register_tokens should be [1 tokens width]: the checkpoint is incomplete")
    return {key: value for key, value in plain.items() if registers.numel() or value is not registers}


def read_dinov3_config(sidecar: Mapping[str, Any]) -> Allowed:
    """Read our fields from the `config.json` of transformers' DINOv3."""
    if (kind := sidecar.get("model_type")) != "dinov3_vit":
        raise unsupported_kind(kind)
    flags = {"query_bias": True, "key_bias": False, "value_bias": True, "proj_bias": True, "mlp_bias": True}
    augmentations = ("pos_embed_shift", "pos_embed_jitter", "pos_embed_rescale")  # in training only
    defaults = {key: value for key, value in USUAL.items() if key != "qkv_bias"} | flags
    defaults |= {"hidden_size": 384, "intermediate_size": 1536, "num_attention_heads": 6, "layer_norm_eps": 1e-5}
    defaults |= {"rope_theta": 100.0, "layerscale_value": 1.0, "use_gated_mlp": False, "num_register_tokens": 0}
    values = read_fields({name: value for name, value in sidecar.items() if name not in augmentations}, defaults)
    check_types(sidecar, augmentations, (float, type(None)))
    biases = [values[name] for name in flags]
    if biases[1] or not all(biases[3:]) or biases[0] != biases[2]:
        raise CheckpointError("config.json has biases in another combination than DINOv3's, which is not supported")
    gated = values["use_gated_mlp"]
    if gated and values["hidden_act"] not in ("silu", "swish"):
        raise CheckpointError(f"a gated MLP with hidden_act={values['hidden_act']!r:.40} is not supported")
    task = task_of(sidecar, ("DINOv3ViT",))
    check_backbone(sidecar, task, values["num_hidden_layers"])
    return shared_fields(values) | {
        "class_token": (True,),
        "distillation_token": (False,),
        "distillation_head": (False,),
        "registers": (values["num_register_tokens"],),
        "position": ("none",),
        "prefix_positions": (True,),
        "patch_bias": (True,),
        "qkv_bias": (False,),
        "qv_bias": (values["query_bias"],),
        "swiglu": (gated,),
        "embedding_norm": (False,),
        "layer_scale": (1e-5,),
        "representation_size": (0,),
        "classes": (0,),
        "pool": ("token",),
        "rope": ("dinov3",),
        "rope_temperature": (values["rope_theta"],),
        "rope_offset": (0.0,),
        "rope_reference": (0,),
        "rope_order": ("yx",),
    }


def known_models(shapes: Mapping[str, Any], assume: Mapping[str, Any]) -> tuple[Allowed, str]:
    """Return the choices of transformers' DINOv3: all rotate alike, and the largest have a gated MLP."""
    rotation = {"rope": ("dinov3",), "rope_temperature": (100.0,), "rope_offset": (0.0,), "rope_reference": (0,)}
    return library_models(
        **rotation,
        rope_order=("yx",),
        position=("none",),
        norm_eps=(1e-5,),
        qkv_bias=(False,),
        qv_bias=(True, False),
        layer_scale=(1e-5,),
        registers=(shapes["registers"],),
        swiglu=(shapes["swiglu"],),
        activation=("silu",) if shapes["swiglu"] else ("gelu",),
    )(shapes, assume)


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
    read_shapes=lambda tensors: {"position": ("none",)},  # its positions are rotary
    known=known_models,
)
DINOV3 = replace(
    DINOV3_GATED,
    name="huggingface-dinov3",
    recognise=lambda tensors: (
        "embeddings.patch_embeddings.weight" in tensors and any(key.endswith("layer_scale1.lambda1") for key in tensors)
    ),
    rules=DINOV3_PLAIN_RULES,
)


def to_huggingface(model: ViT) -> ConvertedCheckpoint:
    """Convert to transformers' DINOv3."""
    tensors, config = adapted(model, prefix_positions=None)
    limits: Allowed = PAPER_VIT | {
        "rope": ("dinov3",),
        "rope_order": ("yx",),
        "rope_offset": (0.0,),
        "rope_reference": (0,),
        "position": ("none",),
        "patch_bias": (True,),
        "qkv_bias": (False,),
        "qv_bias": (True, False),
        "registers": (config.registers,),
        "swiglu": (True, False),
        "layer_scale": (config.layer_scale,),
        "representation_size": (0,),
        "classes": (0,),
    }
    check_limits(config, "transformers' DINOv3", limits)
    if not config.layer_scale:
        names = (f"blocks.{n}.ls{i}.gamma" for n in range(config.depth) for i in (1, 2))
        tensors |= {name: torch.ones(config.width) for name in names}
    activation = "silu" if config.swiglu else config.activation  # a gated MLP has its own
    config = replace(config, layer_scale=config.layer_scale or 1.0, activation=activation)
    theirs = to_theirs(tensors, DINOV3_RULES if config.swiglu else DINOV3_PLAIN_RULES, config)
    theirs["embeddings.mask_token"] = torch.zeros(1, 1, config.width)  # used in pre-training only
    theirs.setdefault("embeddings.register_tokens", torch.zeros(1, 0, config.width))
    config_json = {
        "architectures": ["DINOv3ViTModel"],
        "model_type": "dinov3_vit",
        "intermediate_size": config.mlp_width,
        "hidden_act": activation_name(config),
        **dict.fromkeys(("query_bias", "value_bias"), config.qv_bias),
        "key_bias": False,
        "layerscale_value": config.layer_scale,
        "rope_theta": config.rope_temperature,
        "use_gated_mlp": config.swiglu,
        "num_register_tokens": config.registers,
    }
    return with_sidecars(model, theirs, config_json, config)
