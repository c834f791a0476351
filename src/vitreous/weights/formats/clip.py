"""CLIP's vision tower: transformers' files, and OpenAI's and OpenCLIP's own.

The projection into the space shared with text becomes the head, without a bias; the text tower is ignored.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from vitreous.models.vit import ViT
from vitreous.weights.formats.huggingface import activation_name, add_prefix, with_sidecars
from vitreous.weights.formats.huggingface_config import read_clip_config
from vitreous.weights.keymap import (
    JOIN_QKV,
    PAPER_VIT,
    TABLE,
    TOKEN,
    TRANSPOSE,
    Allowed,
    ConvertedCheckpoint,
    Format,
    Tensors,
    adapted,
    check_limits,
    library_models,
    rule,
    strip_prefix,
    to_theirs,
)

LAYER = "encoder.layers.{n}"
HUGGINGFACE_RULES = (
    rule("cls_token", "embeddings.class_embedding", transform=TOKEN),
    rule("pos_embed", "embeddings.position_embedding.weight", transform=TABLE),
    rule("patch_embed.proj.{p}", "embeddings.patch_embedding.{p}"),
    rule("norm_pre.{p}", "pre_layrnorm.{p}"),  # transformers' own spelling
    rule("blocks.{n}.norm1.{p}", f"{LAYER}.layer_norm1.{{p}}"),
    rule("blocks.{n}.attn.qkv.{p}", *(f"{LAYER}.self_attn.{name}_proj.{{p}}" for name in "qkv"), transform=JOIN_QKV),
    rule("blocks.{n}.attn.proj.{p}", f"{LAYER}.self_attn.out_proj.{{p}}"),
    rule("blocks.{n}.norm2.{p}", f"{LAYER}.layer_norm2.{{p}}"),
    rule("blocks.{n}.mlp.fc1.{p}", f"{LAYER}.mlp.fc1.{{p}}"),
    rule("blocks.{n}.mlp.fc2.{p}", f"{LAYER}.mlp.fc2.{{p}}"),
    rule("norm.{p}", "post_layernorm.{p}"),
    rule("head.weight", "visual_projection.weight"),
)

BLOCK = "transformer.resblocks.{n}"
OPENAI_RULES = (
    rule("cls_token", "class_embedding", transform=TOKEN),
    rule("pos_embed", "positional_embedding", transform=TABLE),
    rule("patch_embed.proj.{p}", "conv1.{p}"),
    rule("norm_pre.{p}", "ln_pre.{p}"),
    rule("blocks.{n}.norm1.{p}", f"{BLOCK}.ln_1.{{p}}"),
    rule("blocks.{n}.attn.qkv.{p}", f"{BLOCK}.attn.in_proj_{{p}}"),
    rule("blocks.{n}.attn.proj.{p}", f"{BLOCK}.attn.out_proj.{{p}}"),
    rule("blocks.{n}.norm2.{p}", f"{BLOCK}.ln_2.{{p}}"),
    rule("blocks.{n}.mlp.fc1.{p}", f"{BLOCK}.mlp.c_fc.{{p}}"),
    rule("blocks.{n}.mlp.fc2.{p}", f"{BLOCK}.mlp.c_proj.{{p}}"),
    rule("norm.{p}", "ln_post.{p}"),
    rule("head.weight", "proj", transform=TRANSPOSE),
)


def _huggingface(tensors: Mapping[str, Tensor]) -> bool:
    return any(key.endswith("embeddings.class_embedding") for key in tensors)


def _openai(tensors: Mapping[str, Tensor]) -> bool:
    return "visual.class_embedding" in tensors or {"class_embedding", "ln_pre.weight"} <= set(tensors)


def known_models(shapes: Mapping[str, Any], assume: Mapping[str, Any]) -> tuple[Allowed, str]:
    """Return the choices of OpenAI's and OpenCLIP's models: they differ in the activation."""
    return library_models(
        embedding_norm=(True,),
        patch_bias=(False,),
        head_bias=(False,),
        norm_eps=(1e-5,),
        activation=("quick_gelu", "gelu"),
    )(shapes, assume)


def known_classifiers(shapes: Mapping[str, Any], assume: Mapping[str, Any]) -> tuple[Allowed, str]:
    """Return the choices of transformers' CLIPForImageClassification."""
    allowed, like = known_models(shapes, assume)
    return allowed | {"head_bias": (True,), "final_norm": (False,), "pool": ("mean",)}, like


def split_towers(tensors: Tensors) -> Tensors:
    """Remove the vision tower's prefix in OpenAI's files; give the text tower, which has none, the prefix `text.`."""
    if "visual.class_embedding" not in tensors:
        return tensors
    return {
        key.removeprefix("visual.") if key.startswith("visual.") else f"text.{key}": value
        for key, value in tensors.items()
    }


OPENAI_IGNORED = (
    *("text.transformer.resblocks.*", "text.token_embedding.weight", "text.positional_embedding", "text.ln_final.{p}"),
    *("text.text_projection", "text.logit_scale", "text.logit_bias", "text.attn_mask"),
    *("text.input_resolution", "text.context_length", "text.vocab_size"),
)
IGNORED = ("text_model.*", "text_projection.*", "logit_scale", "embeddings.position_ids")
HUGGINGFACE_CLIP = Format(
    "huggingface-clip",
    _huggingface,
    HUGGINGFACE_RULES,
    IGNORED,
    prepare=strip_prefix("vision_model."),
    read_config=read_clip_config,
    known=known_models,
    resize="huggingface",
)
HUGGINGFACE_CLIP_CLASSIFIER = replace(
    HUGGINGFACE_CLIP,
    name="huggingface-clip-classifier",
    recognise=lambda tensors: _huggingface(tensors) and "classifier.weight" in tensors,
    rules=(*HUGGINGFACE_RULES, rule("head.{p}", "classifier.{p}")),
    # transformers' CLIPForImageClassification averages the tokens before the last norm and never uses that norm
    adjust=lambda tensors: {key: value for key, value in tensors.items() if not key.startswith("norm.")},
    known=known_classifiers,
)
OPENAI_CLIP = Format(
    "clip",
    _openai,
    OPENAI_RULES,
    OPENAI_IGNORED,
    prepare=split_towers,
    # only OpenAI's own archives hold this number, and all their models have this activation
    read_shapes=lambda tensors: {"activation": ("quick_gelu",)} if "text.input_resolution" in tensors else {},
    known=known_models,
    resize="huggingface",
)


def to_huggingface(model: ViT) -> ConvertedCheckpoint:
    """Convert to transformers' CLIP vision tower."""
    tensors, config = adapted(model, prefix_positions=1, head_bias=False)
    limits = PAPER_VIT | {
        "embedding_norm": (True,),
        "patch_bias": (False,),
        "qkv_bias": (True,),
        "representation_size": (0,),
    }
    check_limits(config, "transformers' CLIP", limits)
    if "head.bias" in tensors and tensors.pop("head.bias").any():
        raise ValueError("transformers' CLIP cannot hold this model: its projection has no bias, this head has one")
    if config.patch[0] != config.patch[1] or config.size[0] != config.size[1]:
        raise ValueError("transformers' CLIP cannot hold this model: its images and patches are square")
    theirs = add_prefix(to_theirs(tensors, HUGGINGFACE_RULES, config), "vision_model.")
    config_json = {
        "architectures": ["CLIPVisionModelWithProjection" if config.classes else "CLIPVisionModel"],
        "model_type": "clip_vision_model",
        "intermediate_size": config.mlp_width,
        "hidden_act": activation_name(config),
        "projection_dim": config.classes or 512,
    }
    return with_sidecars(model, theirs, config_json, config)
