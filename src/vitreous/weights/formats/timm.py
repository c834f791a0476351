"""Read and write timm's files, and others with timm's names: DeiT, AugReg, MAE, DINO, DINOv2, BEiT, and our own.

Our keys are timm's, so the rules list the keys that exist; only a few older spellings differ. DINOv2's own files differ
in registers, the gated MLP and a mask token that inference does not need.
"""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from torch import Tensor

from vitreous.data.preprocess import Preprocess
from vitreous.models.stems import STEMS
from vitreous.models.variants import VARIANTS
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.weights.adapt import ConvertedCheckpoint, adapted, check_limits, library_models
from vitreous.weights.card import card_of
from vitreous.weights.config_files import check_fields
from vitreous.weights.keymap import JOIN_GATE, JOIN_QKV, SAME, Allowed, Format, rule, to_theirs
from vitreous.weights.positions import fold_class_position
from vitreous.weights.safety import CheckpointError
from vitreous.weights.timm_architectures import Architecture, from_arguments, states, timm_arguments, timm_models
from vitreous.weights.timm_classes import OURS, POOLS, beit_arguments, eva_arguments, shared_arguments

LAYERS = ("patch_embed.norm", "norm_pre", "norm", "fc_norm", "head", "head_dist")
POOL = ("q", "kv", "proj", "norm", "mlp.fc1", "mlp.fc2")
DENSE = ("norms", "projections", "convolutions", "group_norms")
BIAS = "relative_position_bias_table"
BLOCK = (
    *("norm1", "attn.qkv", "attn.q_norm", "attn.k_norm", "attn.norm", "attn.proj", "norm2", "mlp.fc1", "mlp.norm"),
    "mlp.fc2",
)


def _scale(gain: Tensor, variance: Tensor) -> Tensor:
    """Return what a batch norm in a file of timm's multiplies each channel by; its epsilon is torch's default."""
    return gain * (variance + 1e-5).rsqrt()


# a convolution or the bias of its batch norm, then the norm's gain, mean and variance; they are not written
FOLD_WEIGHT = replace(SAME, read=lambda parts: parts[0] * _scale(parts[1], parts[3])[:, None, None, None])
FOLD_BIAS = replace(SAME, read=lambda parts: parts[0] - parts[2] * _scale(parts[1], parts[3]))
STEM = (  # of a hybrid
    *(f"patch_embed.backbone.{name}.{{p}}" for name in ("conv", "norm", "stem.conv", "stem.norm")),
    *(
        f"patch_embed.backbone.stages.{stage}.blocks.{{n}}.{name}.{{p}}"
        for stage in range(4)
        for name in (
            *(f"{kind}{i}" for kind in ("conv", "norm") for i in (1, 2, 3)),
            "downsample.conv",
            "downsample.norm",
        )
    ),
)
NORM = "patch_embed.backbone.{n}.bn"  # the batch norms of MobileCLIP's stem
STATISTICS = tuple(f"{NORM}.{name}" for name in ("weight", "running_mean", "running_var"))
RULES = (
    *(rule(name, name) for name in STEM),
    rule("patch_embed.proj.{p}", "patch_embed.proj.{p}", older=["patch_embed.backbone.2.conv.{p}"]),
    rule("patch_embed.backbone.{n}.{p}", "patch_embed.backbone.{n}.{p}"),
    rule("patch_embed.backbone.{n}.weight", "patch_embed.backbone.{n}.conv.weight", *STATISTICS, transform=FOLD_WEIGHT),
    rule("patch_embed.backbone.{n}.bias", f"{NORM}.bias", *STATISTICS, transform=FOLD_BIAS),
    *(rule(name, name) for name in ("cls_token", "dist_token", "reg_token", "pos_embed", "attn_pool.latent")),
    *(rule(f"attn_pool.{name}.{{p}}", f"attn_pool.{name}.{{p}}") for name in POOL),
    *(rule(f"{name}.{{p}}", f"{name}.{{p}}") for name in LAYERS),
    rule("head.norm.weight", "head.norm.weight"),  # of ours
    rule("head.hidden.{p}", "head.hidden.{p}", older=["pre_logits.fc.{p}"]),  # timm before 0.8
    *(rule(f"head.{name}.{{n}}.{{p}}", f"head.{name}.{{n}}.{{p}}") for name in DENSE),  # of ours
    *(rule(f"blocks.{{n}}.{name}.{{p}}", f"blocks.{{n}}.{name}.{{p}}") for name in BLOCK),
    rule("blocks.{n}.ls1.gamma", "blocks.{n}.ls1.gamma", older=["blocks.{n}.gamma_1"]),  # DeiT-III's own files
    rule("blocks.{n}.ls2.gamma", "blocks.{n}.ls2.gamma", older=["blocks.{n}.gamma_2"]),
    *(
        rule(
            f"blocks.{{n}}.attn.qkv.{x}_bias", f"blocks.{{n}}.attn.{x}_bias", older=[f"blocks.{{n}}.attn.qkv.{x}_bias"]
        )
        for x in "qv"
    ),
    rule(f"blocks.{{n}}.attn.rel_pos.{BIAS}", f"blocks.{{n}}.attn.rel_pos.{BIAS}"),
    rule(f"shared_rel_pos.{BIAS}", f"shared_rel_pos.{BIAS}"),
    rule("blocks.{n}.mlp.fc1.{p}", *(f"blocks.{{n}}.mlp.fc1_{x}.{{p}}" for x in "gx"), transform=JOIN_GATE),
    *(
        rule(f"{name}.mlp.{layer}.{{p}}", f"{name}.mlp.{layer}.{{p}}")
        for name in ("blocks.{n}.attn.rel_pos", "shared_rel_pos")
        for layer in ("fc1", "fc2")
    ),
    rule("rope.freqs", "rope.freqs"),
    # timm's Eva has some of its layers in parts
    rule("blocks.{n}.attn.qkv.weight", *(f"blocks.{{n}}.attn.{x}_proj.weight" for x in "qkv"), transform=JOIN_QKV),
    *(rule(f"blocks.{{n}}.attn.qkv.{x}_bias", f"blocks.{{n}}.attn.{x}_proj.bias") for x in "qv"),
)
GATE_IN_PARTS = tuple(r for r in RULES if r.theirs != ("blocks.{n}.mlp.fc1.{p}",))
SCALES = {f"blocks.{{n}}.ls{i}.gamma": f"blocks.{{n}}.gamma_{i}" for i in (1, 2)}  # in timm's Beit and Eva
BEIT_NAMES = SCALES | {
    f"blocks.{{n}}.attn.rel_pos.{BIAS}": f"blocks.{{n}}.attn.{BIAS}",
    f"shared_rel_pos.{BIAS}": f"rel_pos_bias.{BIAS}",
}
BEIT_RULES = tuple(replace(r, theirs=(BEIT_NAMES.get(r.ours, r.theirs[0]),), older=(r.theirs, *r.older)) for r in RULES)


FIELDS = (  # read here or in preprocessing.py
    *("architecture", "num_classes", "num_features", "global_pool", "model_args", "pretrained_cfg"),
    *("label_names", "label_descriptions", "labels", "class_names"),
)
PRETRAINED_FIELDS = (  # read here or in preprocessing.py
    *("input_size", "test_input_size", "fixed_input_size", "interpolation", "crop_pct", "test_crop_pct", "crop_mode"),
    *("mean", "std", "num_classes", "label_names", "label_descriptions"),
)
HARMLESS = (  # where the weights come from, and names of layers for timm's own surgery
    *("url", "file", "hf_hub_id", "hf_hub_filename", "source", "architecture", "tag", "custom_load", "state_dict"),
    *("min_input_size", "pool_size", "test_pool_size", "first_conv", "classifier", "label_offset"),
    *("license", "description", "origin_url", "paper_name", "paper_ids", "notes"),
)
WRAPPER = ("vitreous", "model_type", "transformers_version", "torch_dtype", "dtype", "initializer_range", "do_pooling")


def read_config(sidecar: Mapping[str, Any]) -> Allowed:
    """Read the config of a file in timm's format as timm does: architecture, `pretrained_cfg`, then `model_args`."""
    name, pretrained = sidecar.get("architecture"), sidecar.get("pretrained_cfg", sidecar)
    if not isinstance(name, str):
        raise CheckpointError("config.json names no architecture of timm's: pass --assume architecture=NAME")
    if name not in timm_arguments() or "unsupported" in timm_arguments()[name]:
        raise CheckpointError(f"its config says architecture={name!r:.60}, which is not a supported one of timm's")
    legacy = pretrained is sidecar
    if legacy:  # the oldest files have all fields at one level
        check_fields(sidecar, (*PRETRAINED_FIELDS, *HARMLESS, "num_features", "labels"), "config.json")
    else:
        check_fields(sidecar, (*FIELDS, *HARMLESS, *WRAPPER), "config.json")
        check_fields(pretrained, (*PRETRAINED_FIELDS, *HARMLESS), "pretrained_cfg")
    arguments, given = dict(timm_arguments()[name]), _given(sidecar)
    size = pretrained.get("input_size", (3, 224, 224))
    if not isinstance(size, list | tuple) or len(size) != 3:
        raise CheckpointError(f"input_size must be channels, height and width, got {size!r:.60}")
    usual = {"num_classes": sidecar.get("num_classes", pretrained.get("num_classes", 1000)), "in_chans": size[0]}
    shown = arguments.pop("input_size", None) is None
    if pretrained.get("fixed_input_size") or not shown:
        usual["img_size"] = list(size[1:])
    config = from_arguments(usual | arguments | given)
    implied = {"num_classes": config.classes, "global_pool": POOLS[config.pool], "num_features": config.width}
    said = dict(sidecar) | {"num_classes": usual["num_classes"]}
    for field, value in implied.items():
        if said.get(field, value) != value and (said[field] is not None or field == "num_classes"):
            raise CheckpointError(
                f"config.json contradicts itself: it says {field}={said[field]!r:.40}, and its architecture and "
                f"model_args make it {value!r}"
            )
    return states(config)


def _given(sidecar: Mapping[str, Any]) -> dict[str, Any]:
    """Return `model_args` from the config of a checkpoint in timm's format; one that only our table has is an error."""
    given = dict(sidecar.get("model_args") or {})
    if foreign := [name for name in given if name in OURS]:
        raise CheckpointError(f"timm's argument {foreign[0]}={given[foreign[0]]!r:.60} is not supported")
    return given


def read_training_script(stated: Mapping[str, Any], entry: Architecture | None) -> Allowed:
    """Read the fields that a checkpoint in timm's format states inside, where timm's training script wrote them.

    They follow from an architecture (`entry`, if it is known) and its arguments. Sizes count where the script was given
    them: its default is that of the weights that it began with.
    """
    name, given = stated.get("architecture"), _given(stated)
    if entry is None or entry.name not in timm_arguments():
        if given:
            raise CheckpointError(
                f"its arch is {name!r:.60}, which is not one of timm's, and its model_kwargs are {given!r:.60}: pass "
                "--assume architecture=NAME"
            )
        return {} if entry is None else states(entry.config, sizes=False)
    if entry.unsupported:
        raise CheckpointError(f"its arch is timm's {entry.name}, which is not supported")
    config = from_arguments(timm_arguments()[entry.name] | given)
    said = {"img_size": ("image_size", config.size), "in_chans": ("channels", config.channels)}
    allowed = states(config, sizes=False) | {field: (value,) for key, (field, value) in said.items() if key in given}
    return allowed | ({"classes": (stated["num_classes"],)} if "num_classes" in stated else {})


TIMM = Format(
    "timm",
    lambda tensors: (
        "blocks.0.norm1.weight" in tensors
        and ("patch_embed.proj.weight" in tensors or "patch_embed.backbone.2.conv.weight" in tensors)
    ),
    RULES,
    ("patch_embed.backbone.{n}.bn.num_batches_tracked",),
    read_config=read_config,
    known=timm_models,
)
BEIT = replace(
    TIMM,
    name="beit",
    recognise=lambda tensors: (
        "patch_embed.proj.weight" in tensors
        and any(key in tensors for key in (f"blocks.0.attn.{BIAS}", f"rel_pos_bias.{BIAS}"))
    ),
    rules=BEIT_RULES,
    ignored=("mask_token", "lm_head.*", "*relative_position_index"),
)
RENAMED = {
    "reg_token": "register_tokens",
    "blocks.{n}.mlp.fc1.{p}": "blocks.{n}.mlp.w12.{p}",
    "blocks.{n}.mlp.fc2.{p}": "blocks.{n}.mlp.w3.{p}",
}
DINOV2 = Format(
    "dinov2",
    lambda tensors: "mask_token" in tensors and "patch_embed.proj.weight" in tensors,  # timm's own have no mask token
    tuple(replace(r, theirs=(RENAMED[r.ours],), older=(r.theirs,)) if r.ours in RENAMED else r for r in RULES),
    ("mask_token",),
    read_config=read_config,
    known=library_models(layer_scale=(1e-5,), swiglu=(True, False)),
    resize="dinov2",
)
DINOV2_REGISTERS = replace(
    DINOV2,
    name="dinov2-registers",
    recognise=lambda tensors: "register_tokens" in tensors and "patch_embed.proj.weight" in tensors,
    adjust=fold_class_position,
    known=lambda shapes, assume: library_models(
        layer_scale=(1e-5,), swiglu=(True, False), prefix_positions=(False,), registers=(shapes["registers"],)
    )(shapes, assume),
    resize="dinov2-registers",
)


def architecture(config: ViTConfig) -> tuple[str, dict[str, Any]]:
    """Choose, to write a model in timm's format, the entry point that builds its config, and arguments that differ."""
    if config.rope != "none":  # an entry point states the epsilon, which no argument in JSON can
        eva = {1e-6: "eva02_tiny_patch14_224", 1e-5: "vit_small_patch16_dinov3"}
        check_limits(config, "timm's Eva", {"norm_eps": tuple(eva)})
        return eva[config.norm_eps], eva_arguments(config)
    if config.relative_position.endswith("table") or config.qv_bias:
        return "beit_base_patch16_224", beit_arguments(config)
    for name, known in VARIANTS.items():
        if asdict(config) | {"classes": known.classes} == asdict(known) and config.size[0] > 64:
            return name, {}
    if config.distillation_token:
        name = "deit_base_distilled_patch16_224"
    elif config.stem != "none":
        name = {"r": "vit_tiny_r_s16_p8_224", "r26": "vit_small_r26_s32_224"}.get(config.stem, "vit_large_r50_s32_224")
        name = "vit_base_r50_s16_224" if config.stem == "r50-s16" else name
    elif config.norm == "rms":
        name = "aimv2_large_patch14_224"
    elif config.swiglu:
        name = "vit_giant_patch14_dinov2"  # the one entry point whose MLP is gated: a class, which JSON cannot name
    elif config.embedding_norm:
        name = "vit_base_patch16_clip_224"
    elif config.relative_position != "none":
        name = "vit_relpos_base_patch32_plus_rpn_256" if config.post_norm else "vit_relpos_base_patch16_224"
    elif config.post_norm:
        name = "vit_base_patch16_rpn_224"
    else:
        name = "vit_base_patch16_224"
    joined = config.swiglu and config.norm != "rms"  # timm counts both halves of its gated MLP
    arguments = shared_arguments(config, config.mlp_width * (2 if joined else 1)) | {
        "patch_size": [side // config.stem_stride for side in config.patch],
        "qkv_bias": config.qkv_bias,
        "qk_norm": config.qk_norm,
        "no_embed_class": not config.prefix_positions,
        "pos_embed": "none" if config.position == "none" else "learn",
        "fc_norm": config.fc_norm,
        "final_norm": config.final_norm or config.fc_norm,
    }
    if config.relative_position != "none":
        arguments = {key: value for key, value in arguments.items() if key not in RELATIVE_LACKS}
        check_limits(config, "timm's ViT with relative positions", {"activation": ("gelu",), "position": ("none",)})
        shared = config.relative_position.startswith("shared")
        arguments |= {"rel_pos_dim": config.relative_width, "shared_rel_pos": shared}
    elif not config.swiglu:
        arguments["act_layer"] = config.activation
    if not config.distillation_token:
        arguments |= {
            "class_token": config.class_token,
            **({"reg_tokens": config.registers} if config.relative_position == "none" else {}),
        }
        if config.pool_prefix:
            arguments["pool_include_prefix"] = True
    for field, argument in (("attention_norm", "scale_attn_norm"), ("mlp_norm", "scale_mlp_norm")):
        if getattr(config, field):
            arguments[argument] = True
    return name, arguments


RELATIVE_LACKS = ("no_embed_class", "pos_embed", "final_norm")
"""Arguments that timm's class with relative positions does not have."""


def to_timm(model: ViT) -> ConvertedCheckpoint:
    """Convert a model to timm: its keys are ours, and `config.json` names the entry point that builds it."""
    tensors, config = adapted(model, prefix_positions=None)
    if config.swiglu and config.rope != "none" and config.pool != "attention":
        config = replace(config, activation="gelu")  # a gated MLP does not use it
    patch_bias = not config.embedding_norm  # CLIP's ViTs have none
    limits: Allowed = {"representation_size": (0,), "pool": tuple(POOLS), "patch_bias": (patch_bias,)}
    limits |= {"talking_heads": (False,), "pool_layers": (0,), "head_norm": (False,), "stem": ("none", *STEMS)}
    limits |= {"dense": ("none",), "residual_norm": (False,)}
    if config.pool == "attention" and config.rope == "none":
        limits |= {"pool_heads": (config.heads,), "pool_mlp_width": (config.mlp_width,)}
    check_limits(config, "timm", limits)
    if config.distillation_token:
        check_limits(
            config, "timm", {"distillation_head": (bool(config.classes),), "registers": (0,), "pool": ("token",)}
        )
    if config.fc_norm and config.final_norm:
        raise ValueError("timm cannot hold this model: it has a norm before or after pooling, not both")
    name, arguments = architecture(config)
    if name.startswith("beit_"):
        tensors = to_theirs(tensors, BEIT_RULES, config)
    elif name.startswith("aimv2"):
        tensors = to_theirs(tensors, GATE_IN_PARTS, config)
    elif config.rope != "none":
        rules = GATE_IN_PARTS if config.swiglu and config.mlp_norm else RULES
        scales = tuple(rule(ours, theirs) for ours, theirs in SCALES.items())
        tensors = to_theirs(tensors, (*scales, *rules), config)
    card = card_of(model)
    config_json: dict[str, Any] = {
        "architecture": name,
        "num_classes": config.classes,
        "num_features": config.width,
        "global_pool": POOLS[config.pool],
        "pretrained_cfg": {
            "num_classes": config.classes,
            "input_size": [config.channels, *config.size],
            "fixed_input_size": True,
            "first_conv": "patch_embed.proj",
            "classifier": ["head", "head_dist"] if config.distillation_head else "head",
            **_preprocess_config(card.preprocess),
        },
    }
    if arguments:
        config_json["model_args"] = arguments
    if card.class_names:
        config_json["label_names"] = list(card.class_names)
    return ConvertedCheckpoint(tensors, config, {"config.json": config_json})


def _preprocess_config(preprocess: Preprocess) -> dict[str, Any]:
    height = preprocess.size[0]
    resize = preprocess.resize or preprocess.size
    squash = isinstance(resize, tuple) and not preprocess.cover
    first = resize[0] if isinstance(resize, tuple) else resize
    return {
        "mean": list(preprocess.mean),
        "std": list(preprocess.std),
        "interpolation": preprocess.interpolation,
        "crop_pct": 1.0 if first == height else height / (first + 0.5),  # timm rounds height / crop_pct down
        "crop_mode": "squash" if squash else "center",
    }
