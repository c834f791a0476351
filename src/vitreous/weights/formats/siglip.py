"""Read transformers' SigLIP vision models: keys and `config.json`; a complete SigLIP's text tower is ignored.

SigLIP 2 of a fixed size is stored as a SigLIP; that for images of any shape (NaFlex) is read at its square grid. The
learned query of the head attends by torch's `MultiheadAttention`, whose queries, keys and values are one matrix.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from vitreous.models.vit import ViT
from vitreous.weights.adapt import PAPER_VIT, ConvertedCheckpoint, adapted, check_limits, library_models
from vitreous.weights.config_files import check_fields
from vitreous.weights.formats.clip import HUGGINGFACE_RULES
from vitreous.weights.formats.huggingface import add_prefix, with_sidecars
from vitreous.weights.formats.huggingface_config import (
    HARMLESS,
    HARMLESS_NUMBERS,
    MLP,
    USUAL,
    activation_name,
    check_types,
    count_labels,
    read_fields,
    shared_fields,
    task_of,
    unsupported_kind,
)
from vitreous.weights.keymap import Allowed, Format, Tensors, rule, strip_prefix, to_theirs
from vitreous.weights.safety import CheckpointError
from vitreous.weights.timm_architectures import known_heads

POOL = "head.attention.in_proj_"
PATCHES = "embeddings.patch_embedding.weight"
KINDS = {"siglip": "Siglip", "siglip2": "Siglip2"}
FIELDS: dict[str, Any] = {name: value for name, value in USUAL.items() if name != "qkv_bias"} | MLP
FIELDS |= {"hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6, "vision_use_head": True}
TEXT_NUMBERS = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("max_position_embeddings", "layer_norm_eps", "attention_dropout", "projection_size"),
)
TEXT_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
SIGLIP_RULES = (
    *(r for r in HUGGINGFACE_RULES if not r.ours.startswith(("cls_token", "norm_pre", "head"))),
    rule("attn_pool.latent", "head.probe"),
    *(rule(f"attn_pool.{part}.{{p}}", f"{POOL}{part}.{{p}}") for part in ("q", "kv")),
    rule("attn_pool.proj.{p}", "head.attention.out_proj.{p}"),
    rule("attn_pool.norm.{p}", "head.layernorm.{p}"),
    *(rule(f"attn_pool.mlp.{layer}.{{p}}", f"head.mlp.{layer}.{{p}}") for layer in ("fc1", "fc2")),
)


def split_pool(tensors: Tensors) -> Tensors:
    """Remove the prefix of SigLIP's vision tower, and split its pool's matrix into the query's and the tokens'."""
    plain = strip_prefix("vision_model.")(tensors)
    for kind in ("weight", "bias"):
        if (whole := plain.pop(POOL + kind, None)) is not None:
            width = whole.shape[0] // 3
            plain |= {f"{POOL}q.{kind}": whole[:width], f"{POOL}kv.{kind}": whole[width:]}
    return plain


def read_siglip_config(sidecar: Mapping[str, Any]) -> Allowed:
    """Read our fields from a SigLIP's `config.json`; a complete one has the vision tower's one level deeper.

    SigLIP 2 states the number of patches instead of an image size: a square of as many is read.
    """
    kind, vision = str(sidecar.get("model_type")), sidecar
    family = kind.removesuffix("_vision_model")
    if family not in KINDS:
        raise unsupported_kind(sidecar.get("model_type"))
    task = task_of(sidecar, (KINDS[family], f"{KINDS[family]}Vision"))
    if task not in ("Model", "ForImageClassification", None):
        raise CheckpointError(f"the architecture {sidecar['architectures']!r:.80} in config.json is not supported")
    if kind == family:
        check_fields(sidecar, ("vision_config", "text_config", *HARMLESS, *HARMLESS_NUMBERS), "config.json")
        vision, text = sidecar.get("vision_config") or {}, sidecar.get("text_config") or {}
        check_types(sidecar, HARMLESS_NUMBERS, (int, float))
        check_types(text, TEXT_NUMBERS, (int, float))
        check_types(text, TEXT_IDS, (int, list, type(None)))
    defaults = FIELDS
    if family == "siglip2":
        defaults = {name: value for name, value in FIELDS.items() if name != "image_size"} | {"num_patches": 256}
    values = read_fields(vision, defaults)
    if family == "siglip2":
        side, patch = math.isqrt(max(values["num_patches"], 0)), values["patch_size"]
        if side**2 != values["num_patches"] or type(patch) is not int:
            raise CheckpointError("config.json should have a square num_patches, and one number as patch_size")
        values["image_size"] = side * patch
    if not values["vision_use_head"]:
        raise CheckpointError("config.json says vision_use_head=False: a SigLIP without its head is not supported")
    pool: Allowed = {
        "pool": ("attention",),
        "pool_heads": (values["num_attention_heads"],),
        "pool_mlp_width": (values["intermediate_size"],),
    }
    if task == "ForImageClassification":  # it averages the tokens and never uses the attention pool
        pool = {"pool": ("mean",), "pool_heads": (0,), "pool_mlp_width": (0,)}
    classes = count_labels(sidecar) if task == "ForImageClassification" else 0
    plain = {"prefix_positions": (True,), "patch_bias": (True,), "qkv_bias": (True,), "representation_size": (0,)}
    return shared_fields(values) | plain | pool | {"class_token": (False,), "classes": (classes,)}


def drop_pool(tensors: Tensors) -> Tensors:
    """Leave out the attention pool, which transformers' SiglipForImageClassification has and never uses."""
    width, hidden = (tensors[key].shape[0] for key in ("norm.weight", "blocks.0.mlp.fc1.weight"))
    wanted = {f"{name}.weight": [size, width] for name, size in (("q", width), ("kv", 2 * width), ("proj", width))}
    wanted |= {"mlp.fc1.weight": [hidden, width], "mlp.fc2.weight": [width, hidden], "norm.weight": [width]}
    wanted |= {name.replace("weight", "bias"): size[:1] for name, size in wanted.items()} | {"latent": [1, 1, width]}
    pool = {key.removeprefix("attn_pool."): list(t.shape) for key, t in tensors.items() if key.startswith("attn_pool.")}
    if wrong := next((name for name, size in wanted.items() if pool.get(name) != size), None):
        raise CheckpointError(f"attn_pool.{wrong} should be {wanted[wrong]}, got {pool.get(wrong)}: get it again")
    return {key: value for key, value in tensors.items() if not key.startswith("attn_pool.")}


def known_models(shapes: Mapping[str, Any], assume: Mapping[str, Any]) -> tuple[Allowed, str]:
    """Return the choices of transformers' SigLIP: its head has as many heads as a block."""
    heads = assume.get("heads") or (known[0] if len(known := known_heads(shapes)) == 1 else None)
    pool = shapes.get("pool", "mean")
    return library_models(
        class_token=(False,),
        activation=("gelu_tanh",),
        pool=(pool,),
        pool_heads=(0,) if pool == "mean" else (heads,) if heads else (),
    )(shapes, assume)


def _is(tensors: Mapping[str, Tensor], classifier: bool, flat: bool) -> bool:
    """Return whether these keys are a SigLIP's; SigLIP 2 for images of any shape has `flat` patches, as a matrix."""
    patches = next((tensor for key, tensor in tensors.items() if key.endswith(PATCHES)), None)
    if patches is None or not any(key.endswith("head.probe") for key in tensors):
        return False
    return ("classifier.weight" in tensors) == classifier and (patches.dim() == 2) == flat


def unflatten_patches(tensors: Tensors) -> Tensors:
    """Prepare transformers' SigLIP 2: split its pool's matrix, and reshape its flat patch embedding to a convolution's.

    Channels come last in the flat one.
    """
    plain = split_pool(tensors)
    weight = plain[PATCHES]
    side = math.isqrt(weight.shape[1] // 3)
    if 3 * side**2 != weight.shape[1]:
        raise CheckpointError(f"{PATCHES} should have 3 channels of a square patch, got {tuple(weight.shape)}")
    return plain | {PATCHES: weight.unflatten(1, (side, side, 3)).permute(0, 3, 1, 2)}


SIGLIP = Format(
    "huggingface-siglip",
    partial(_is, classifier=False, flat=False),
    SIGLIP_RULES,
    ("text_model.*", "logit_scale", "logit_bias", "embeddings.position_ids"),
    prepare=split_pool,
    read_config=read_siglip_config,
    known=known_models,
    resize="huggingface",
)
SIGLIP_CLASSIFIER = replace(
    SIGLIP,
    name="huggingface-siglip-classifier",
    recognise=partial(_is, classifier=True, flat=False),
    rules=(*SIGLIP_RULES, rule("head.{p}", "classifier.{p}")),
    adjust=drop_pool,
)
SIGLIP2 = replace(
    SIGLIP,
    name="huggingface-siglip2",
    recognise=partial(_is, classifier=False, flat=True),
    prepare=unflatten_patches,
    resize="siglip2",
)
SIGLIP2_CLASSIFIER = replace(
    SIGLIP_CLASSIFIER,
    name="huggingface-siglip2-classifier",
    recognise=partial(_is, classifier=True, flat=True),
    prepare=unflatten_patches,
    resize="siglip2",
)


def to_huggingface(model: ViT) -> ConvertedCheckpoint:
    """Convert to transformers' SigLIP vision model."""
    tensors, config = adapted(model, prefix_positions=None)
    limits: Allowed = PAPER_VIT | {
        "class_token": (False,),
        "position": ("learned",),
        "patch_bias": (True,),
        "qkv_bias": (True,),
        "pool": ("attention",),
        "pool_heads": (config.heads,),
        "pool_mlp_width": (config.mlp_width,),
        "representation_size": (0,),
        "classes": (0,),
    }
    check_limits(config, "transformers' SigLIP", limits, square=True)
    theirs = to_theirs(tensors, SIGLIP_RULES, config)
    for kind in ("weight", "bias"):
        theirs[POOL + kind] = torch.cat([theirs.pop(f"{POOL}{part}.{kind}") for part in ("q", "kv")])
    config_json = {
        "architectures": ["SiglipVisionModel"],
        "model_type": "siglip_vision_model",
        "intermediate_size": config.mlp_width,
        "hidden_act": activation_name(config),
    }
    return with_sidecars(model, add_prefix(theirs, "vision_model."), config_json, config)
