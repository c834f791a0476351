"""transformers' AIMv2: a ViT with root mean square norms and a gated MLP; a complete one's text tower is ignored.

The attention pool of the variants tuned with text (LiT) has neither a projection of its query nor an MLP. Ours has
both: the identity and a hidden layer of one zero compute the same.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vitreous.models.vit import ViT
from vitreous.weights.adapt import PAPER_VIT, ConvertedCheckpoint, adapted, check_limits, library_models
from vitreous.weights.config_files import check_fields
from vitreous.weights.formats.huggingface import with_sidecars
from vitreous.weights.formats.huggingface_config import (
    HARMLESS,
    HARMLESS_NUMBERS,
    read_fields,
    shared_fields,
    task_of,
    unsupported_kind,
)
from vitreous.weights.keymap import (
    JOIN_GATE,
    JOIN_QKV,
    TABLE,
    Allowed,
    Format,
    Tensors,
    Transform,
    rule,
    strip_prefix,
    to_theirs,
)
from vitreous.weights.safety import CheckpointError

LAYER = "encoder.layers.{n}"
JOIN_KV = Transform(lambda parts: torch.cat(list(parts)), lambda x, _: x.chunk(2))
RULES = (
    rule("patch_embed.proj.{p}", "embeddings.patch_embed.{p}"),
    rule("patch_embed.norm.weight", "embeddings.rms_norm.weight"),
    rule("pos_embed", "embeddings.position_embedding.weight", transform=TABLE),
    *(rule(f"blocks.{{n}}.norm{i}.weight", f"{LAYER}.rms_norm{i}.weight") for i in (1, 2)),
    rule("blocks.{n}.attn.qkv.{p}", *(f"{LAYER}.attention.{x}_proj.{{p}}" for x in "qkv"), transform=JOIN_QKV),
    rule("blocks.{n}.attn.proj.{p}", f"{LAYER}.attention.out_proj.{{p}}"),
    rule("blocks.{n}.mlp.fc1.{p}", *(f"{LAYER}.ffn.{x}_proj.{{p}}" for x in ("gate", "up")), transform=JOIN_GATE),
    rule("blocks.{n}.mlp.fc2.{p}", f"{LAYER}.ffn.down_proj.{{p}}"),
    rule("norm.weight", "rms_norm.weight"),
    rule("attn_pool.latent", "head.cls_token"),
    rule("attn_pool.kv.{p}", "head.k_proj.{p}", "head.v_proj.{p}", transform=JOIN_KV),
    rule("attn_pool.proj.{p}", "head.output_proj.{p}"),
    rule("head.weight", "visual_projection.weight"),
)
FIELDS: dict[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 24,
    "num_attention_heads": 8,
    "num_channels": 3,
    "image_size": 224,
    "patch_size": 14,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "qkv_bias": False,
    "mlp_bias": False,
    "use_head": True,
    "is_native": False,
}


def pool_parts(width: int) -> Tensors:
    """Return what AIMv2's attention pool lacks of ours, so that the function stays the same."""
    zeros = {"q.bias": width, "kv.bias": 2 * width, "norm.bias": width, "mlp.fc1.bias": 1, "mlp.fc2.bias": width}
    parts = {f"attn_pool.{name}": torch.zeros(size) for name, size in zeros.items()}
    parts |= {"attn_pool.q.weight": torch.eye(width), "attn_pool.norm.weight": torch.ones(width)}
    return parts | {
        "attn_pool.mlp.fc1.weight": torch.zeros(1, width),
        "attn_pool.mlp.fc2.weight": torch.zeros(width, 1),
    }


def complete_pool(tensors: Tensors) -> Tensors:
    """Add the parts of our attention pool that AIMv2's lacks, if the model has one."""
    if (latent := tensors.get("attn_pool.latent")) is None:
        return tensors
    return pool_parts(latent.shape[-1]) | tensors


def read_aimv2_config(sidecar: Mapping[str, Any]) -> Allowed:
    """Read our fields from an AIMv2's `config.json`; a complete one has the vision tower's one level deeper."""
    kind, vision = sidecar.get("model_type"), sidecar
    if kind not in ("aimv2", "aimv2_vision_model"):
        raise unsupported_kind(kind)
    whole = kind == "aimv2"
    if task_of(sidecar, ("Aimv2" if whole else "Aimv2Vision",)) not in ("Model", None):
        raise CheckpointError(f"the architecture {sidecar['architectures']!r:.80} in config.json is not supported")
    if whole:
        known = ("vision_config", "text_config", "projection_dim", "max_logit_scale")
        check_fields(sidecar, (*known, *HARMLESS, *HARMLESS_NUMBERS), "config.json")
        vision = sidecar.get("vision_config") or {}
    values = read_fields(vision, FIELDS)
    if values["is_native"]:
        raise CheckpointError("config.json says is_native=True: an AIMv2 for images of any size is not supported")
    if values["hidden_act"] not in ("silu", "swish"):
        raise CheckpointError(f"an AIMv2 with hidden_act={values['hidden_act']!r:.40} is not supported: expected silu")
    if (bias := values["qkv_bias"]) != values["mlp_bias"]:
        raise CheckpointError("config.json has qkv_bias and mlp_bias of two values, which is not supported")
    if whole and not values["use_head"]:
        raise CheckpointError("config.json says use_head=False: a complete AIMv2 has nothing to project without it")
    classes = sidecar.get("projection_dim", 512) if whole else 0
    if type(classes) is not int:
        raise CheckpointError(f"projection_dim must be a whole number, got {classes!r:.40}")
    pooled: Allowed = {"pool": ("mean",)}
    if values["use_head"]:
        pooled = {"pool": ("attention",), "pool_heads": (values["num_attention_heads"],), "pool_mlp_width": (1,)}
    fields = shared_fields(values | {"layer_norm_eps": values["rms_norm_eps"]})
    return (
        fields
        | pooled
        | {
            "class_token": (False,),
            "prefix_positions": (True,),
            "norm": ("rms",),
            "patch_norm": (True,),
            "patch_bias": (True,),
            "qkv_bias": (bias,),
            "branch_bias": (bias,),
            "swiglu": (True,),
            "representation_size": (0,),
            "classes": (classes,),
            "head_bias": (False,),
        }
    )


def known_models(shapes: Mapping[str, Any], assume: Mapping[str, Any]) -> tuple[Allowed, str]:
    """Return the choices of transformers' AIMv2."""
    pooled = shapes.get("pool") == "attention"
    return library_models(
        norm_eps=(1e-5,),
        norm=("rms",),
        patch_norm=(True,),
        class_token=(False,),
        qkv_bias=(shapes["qkv_bias"],),
        branch_bias=(shapes["qkv_bias"],),
        swiglu=(True,),
        activation=("silu",),
        head_bias=(False,),
        pool=("attention" if pooled else "mean",),
        pool_heads=() if pooled else (0,),
    )(shapes, assume)


def _recognise(tensors: Mapping[str, Tensor]) -> bool:
    return any(key.endswith("embeddings.rms_norm.weight") for key in tensors)


AIMV2 = Format(
    "huggingface-aimv2",
    _recognise,
    RULES,
    ("text_model.*", "text_projection.weight", "logit_scale", "embeddings.position_ids"),
    prepare=strip_prefix("vision_model."),
    adjust=complete_pool,
    read_config=read_aimv2_config,
    known=known_models,
    resize="huggingface",
)


def to_huggingface(model: ViT) -> ConvertedCheckpoint:
    """Convert to transformers' AIMv2 vision model, with its attention pool or, if patches are averaged, without."""
    tensors, config = adapted(model, prefix_positions=None)
    pooled = config.pool == "attention"
    limits: Allowed = PAPER_VIT | {
        "class_token": (False,),
        "position": ("learned",),
        "norm": ("rms",),
        "patch_norm": (True,),
        "patch_bias": (True,),
        "branch_bias": (config.qkv_bias,),
        "swiglu": (True,),
        "pool": ("mean", "attention"),
        "pool_heads": (config.heads if pooled else 0,),
        "representation_size": (0,),
        "classes": (0,),
    }
    check_limits(config, "transformers' AIMv2", limits, square=True)
    for name, part in (pool_parts(config.width) if pooled else {}).items():
        written = config.qkv_bias and name == "attn_pool.kv.bias"
        if not written and not torch.equal(tensors[name], part):
            raise ValueError("transformers' AIMv2 cannot hold this model: its pool projects no query and has no MLP")
        tensors = tensors if written else {key: value for key, value in tensors.items() if key != name}
    config = replace(config, activation="silu")  # a gated MLP has its own
    config_json = {
        "architectures": ["Aimv2VisionModel"],
        "model_type": "aimv2_vision_model",
        "intermediate_size": config.mlp_width,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_eps,
        "qkv_bias": config.qkv_bias,
        "mlp_bias": config.branch_bias,
        "use_head": pooled,
        "is_native": False,
    }
    converted = with_sidecars(model, to_theirs(tensors, RULES, config), config_json, config)
    del converted.sidecars["config.json"]["layer_norm_eps"]  # `rms_norm_eps` instead
    return converted
