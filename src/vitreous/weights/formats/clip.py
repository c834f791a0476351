"""Read and write CLIP's vision tower, keys and configs: transformers' files, and OpenAI's and OpenCLIP's own.

The projection into the space shared with text becomes the head, without a bias; the text tower is ignored.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from vitreous.models.vit import ViT
from vitreous.weights.adapt import PAPER_VIT, ConvertedCheckpoint, adapted, check_limits, library_models
from vitreous.weights.config_files import check_fields
from vitreous.weights.formats.huggingface import add_prefix, with_sidecars
from vitreous.weights.formats.huggingface_config import (
    CLIPS,
    HARMLESS,
    HARMLESS_NUMBERS,
    MLP,
    USUAL,
    activation_name,
    count_labels,
    read_fields,
    shared_fields,
    task_of,
    unsupported_kind,
)
from vitreous.weights.keymap import (
    JOIN_QKV,
    TABLE,
    TOKEN,
    TRANSPOSE,
    Allowed,
    Format,
    Tensors,
    rule,
    strip_prefix,
    to_theirs,
)
from vitreous.weights.safety import CheckpointError

CLIP = {key: value for key, value in USUAL.items() if key != "qkv_bias"} | MLP
CLIP |= {"patch_size": 32, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5, "projection_dim": 512}
CLIPSEG_DECODER = (
    *("extract_layers", "reduce_dim", "decoder_attention_dropout", "decoder_hidden_act", "conditional_layer"),
    "use_complex_transposed_convolution",
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
    """Return what bare files of OpenAI's and OpenCLIP's CLIP may be: models that differ in the activation."""
    return library_models(
        embedding_norm=(True,),
        patch_bias=(False,),
        head_bias=(False,),
        norm_eps=(1e-5,),
        activation=("quick_gelu", "gelu"),
    )(shapes, assume)


def known_classifiers(shapes: Mapping[str, Any], assume: Mapping[str, Any]) -> tuple[Allowed, str]:
    """Return what bare files of transformers' CLIPForImageClassification may be."""
    allowed, like = known_models(shapes, assume)
    return allowed | {"head_bias": (True,), "final_norm": (False,), "pool": ("mean",)}, like


def read_clip_config(sidecar: Mapping[str, Any]) -> Allowed:
    """Read our fields from a CLIP's `config.json`; a complete CLIP has the vision tower's one level deeper."""
    kind, vision = str(sidecar.get("model_type")), sidecar
    family = kind.removesuffix("_vision_model")
    if family not in CLIPS or kind == "git":
        raise unsupported_kind(sidecar.get("model_type"))
    task = task_of(sidecar, (f"{CLIPS[family]}Vision", CLIPS[family]))
    whole = kind == family
    if whole:
        known = ("vision_config", "text_config", "vision_config_dict", "text_config_dict", "projection_dim")
        decoder = CLIPSEG_DECODER if kind == "clipseg" else ()
        check_fields(sidecar, (*known, *decoder, *HARMLESS, *HARMLESS_NUMBERS), "config.json")
        vision = sidecar.get("vision_config") or {}
        older = sidecar.get("vision_config_dict") or {}
        if differing := [name for name in older if name in vision and older[name] != vision[name]]:
            raise CheckpointError(f"config.json says two things of {differing[0]}: get it again")
        vision = older | vision
    values = read_fields(vision, CLIP | ({"patch_size": 16} if family == "git" else {}))
    classifier = task == "ForImageClassification"
    allowed = shared_fields(values) | {
        "class_token": (True,),
        "distillation_token": (False,),
        "distillation_head": (False,),
        "registers": (0,),
        "prefix_positions": (True,),
        "patch_bias": (False,),
        "qkv_bias": (True,),
        "swiglu": (False,),
        "embedding_norm": (True,),
        "layer_scale": (0.0,),
        "representation_size": (0,),
        "head_bias": (classifier,),
        "final_norm": (not classifier,),
        "pool": ("mean",) if classifier else ("token",),
    }
    if classifier:
        allowed["classes"] = (count_labels(sidecar),)
    elif task == "ModelWithProjection" or (task == "Model" and whole and "Vision" not in sidecar["architectures"][0]):
        allowed["classes"] = (sidecar.get("projection_dim", 512) if whole else values["projection_dim"],)
    elif task == "Model":
        allowed["classes"] = (0,)
    return allowed


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
    """Convert a model to transformers' CLIP vision tower."""
    tensors, config = adapted(model, prefix_positions=1, head_bias=False)
    limits = PAPER_VIT | {
        "embedding_norm": (True,),
        "patch_bias": (False,),
        "qkv_bias": (True,),
        "representation_size": (0,),
    }
    check_limits(config, "transformers' CLIP", limits, square=True)
    if "head.bias" in tensors and tensors.pop("head.bias").any():
        raise ValueError("transformers' CLIP cannot hold this model: its projection has no bias, this head has one")
    theirs = add_prefix(to_theirs(tensors, HUGGINGFACE_RULES, config), "vision_model.")
    config_json = {
        "architectures": ["CLIPVisionModelWithProjection" if config.classes else "CLIPVisionModel"],
        "model_type": "clip_vision_model",
        "intermediate_size": config.mlp_width,
        "hidden_act": activation_name(config),
        "projection_dim": config.classes or 512,
    }
    return with_sidecars(model, theirs, config_json, config)
