"""Read OpenCLIP's `open_clip_config.json`, and its files whose vision tower is one of timm's (`visual.trunk.`)."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vitreous.weights.config_files import check_fields
from vitreous.weights.formats.clip import OPENAI_CLIP
from vitreous.weights.formats.huggingface_config import read_pair
from vitreous.weights.formats.timm import TIMM
from vitreous.weights.keymap import Allowed, Tensors
from vitreous.weights.safety import CheckpointError
from vitreous.weights.timm_architectures import from_arguments, states, timm_arguments

FIELDS = ("model_cfg", "preprocess_cfg")
MODEL_FIELDS = ("embed_dim", "vision_cfg", "quick_gelu")
HARMLESS = ("text_cfg", "custom_text", "init_logit_scale", "init_logit_bias", "cast_dtype", "nonscalar_logit_scale")
VISION_FIELDS = ("image_size", "layers", "width", "head_width", "mlp_ratio", "patch_size")
TIMM_FIELDS = ("image_size", "timm_model_name", "timm_pool", "timm_proj", "timm_proj_bias")
TRAINING_FIELDS = ("patch_dropout", "timm_model_pretrained", "timm_drop", "timm_drop_path")
USUAL: dict[str, tuple[Any, ...]] = {  # fields that change the numbers, and the values that do not
    "ls_init_value": (None,),
    "attentional_pool": (False, None),
    "no_ln_pre": (False,),
    "pos_embed_type": ("learnable",),
    "final_ln_after_pool": (False,),
    "pool_type": ("tok",),
    "output_tokens": (False,),
    "act_kwargs": (None, {}),
    "norm_kwargs": (None, {}),
}


def read_model(sidecar: Mapping[str, Any], vision_fields: tuple[str, ...]) -> tuple[Mapping[str, Any], dict[str, Any]]:
    """Return the sections of `open_clip_config.json`, `model_cfg` and `vision_cfg`; raise for an unknown field."""
    check_fields(sidecar, FIELDS, "open_clip_config.json")
    model = sidecar.get("model_cfg")
    check_fields(model, (*MODEL_FIELDS, *HARMLESS), "model_cfg")
    assert model is not None  # check_fields has seen a mapping
    vision = model.get("vision_cfg")
    usual = [name for name, values in USUAL.items() if vision and name in vision and vision[name] in values]
    check_fields(vision, (*vision_fields, *TRAINING_FIELDS, *usual), "vision_cfg")
    for section, names in ((model, ("embed_dim",)), (vision, ("image_size",))):
        if missing := [name for name in names if name not in section]:
            raise CheckpointError(f"open_clip_config.json lacks {missing[0]}: get it again")
    if not isinstance(model.get("quick_gelu", False), bool):
        raise CheckpointError(f"quick_gelu must be true or false, got {model['quick_gelu']!r:.40}")
    return model, dict(vision)


def read_config(sidecar: Mapping[str, Any]) -> Allowed:
    """Read `open_clip_config.json` of a model with OpenCLIP's own vision tower."""
    model, vision = read_model(sidecar, VISION_FIELDS)
    given = {"layers": 12, "width": 768, "head_width": 64, "mlp_ratio": 4.0, "patch_size": 16} | vision
    size, patch = (read_pair(given[name]) for name in ("image_size", "patch_size"))
    return {
        "image_size": (size,),
        "patch_size": (patch,),
        "width": (given["width"],),
        "depth": (given["layers"],),
        "heads": (given["width"] // given["head_width"],),
        "mlp_width": (int(given["width"] * given["mlp_ratio"]),),
        "classes": (model["embed_dim"],),
        "activation": ("quick_gelu" if model.get("quick_gelu") else "gelu",),
        "norm_eps": (1e-5,),
        "pool": ("token",),
    }


def read_timm_config(sidecar: Mapping[str, Any]) -> Allowed:
    """Read `open_clip_config.json` of a model whose vision tower is one of timm's."""
    model, vision = read_model(sidecar, TIMM_FIELDS)
    name, pool, projection = (vision.get(f"timm_{field}") for field in ("model_name", "pool", "proj"))
    if name not in timm_arguments() or "unsupported" in timm_arguments()[name]:
        raise CheckpointError(f"its config says timm_model_name={name!r:.60}, which is not a supported one of timm's")
    if projection not in ("linear", "none", "", None):
        raise CheckpointError(f"timm_proj={projection!r:.40} is not supported: expected linear or none")
    arguments = timm_arguments()[name] | {"img_size": list(read_pair(vision["image_size"]))}
    usual = arguments.get("global_pool", "token")
    if projection != "linear":
        arguments |= {"global_pool": pool, "num_classes": 0 if projection == "none" else model["embed_dim"]}
    elif pool not in ("", None, usual):
        raise CheckpointError(f"timm_pool={pool!r:.40} is not supported for {name}: expected {usual}")
    else:
        arguments["num_classes"] = model["embed_dim"]
    bias = bool(vision.get("timm_proj_bias", False)) if projection == "linear" else True
    return states(from_arguments(arguments)) | {"head_bias": (bias,)}


def take_trunk(tensors: Tensors) -> Tensors:
    """Give OpenCLIP's vision tower (`visual.trunk.`) timm's names; a linear projection beside it is the head."""
    names = {"visual.head.proj.weight": "head.weight", "visual.head.proj.bias": "head.bias"}
    return {names.get(key, key.removeprefix("visual.trunk.")): tensor for key, tensor in tensors.items()}


def known_towers(shapes: Mapping[str, Any], assume: Mapping[str, Any]) -> tuple[Allowed, str]:
    """Return what a tower with `open_clip_config.json` may be; it always has a projection."""
    if not shapes["classes"] and "classes" not in assume:
        raise CheckpointError("it has no projection (visual.proj): it is incomplete; if not, pass --assume classes=0")
    return OPENAI_CLIP.known(shapes, assume)


OPEN_CLIP = replace(
    OPENAI_CLIP, ignored=(*OPENAI_CLIP.ignored, "text.text.*"), read_config=read_config, known=known_towers
)
OPEN_CLIP_TIMM = replace(
    TIMM,
    name="clip-timm",
    recognise=lambda tensors: any(key.startswith("visual.trunk.") for key in tensors),
    ignored=(
        *("text.*", "transformer.*", "token_embedding.weight", "positional_embedding", "ln_final.{p}"),
        *("text_projection", "logit_scale", "logit_bias", "attn_mask"),
    ),
    prepare=take_trunk,
    read_config=read_timm_config,
)
