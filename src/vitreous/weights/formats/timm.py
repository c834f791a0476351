"""timm's checkpoints, and others with timm's names: DeiT, AugReg, DeiT-III, MAE, DINO, DINOv2, and our own files.

Our keys are timm's, so the rules list the keys that exist; only a few older spellings differ. DINOv2's own files differ
in registers, the gated MLP and a mask token that inference does not need.
"""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from vitreous.data.preprocess import Preprocess
from vitreous.models.variants import VARIANTS
from vitreous.models.vit import ACTIVATIONS, ViT, ViTConfig
from vitreous.weights.card import card_of
from vitreous.weights.keymap import ConvertedCheckpoint, Format, adapted, check_limits, fold_class_position, rule

LAYERS = ("patch_embed.proj", "norm_pre", "norm", "fc_norm", "head", "head_dist")
BLOCK = ("norm1", "attn.qkv", "attn.q_norm", "attn.k_norm", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2")
POOLS = {"token": "token", "avg": "mean"}


RULES = (
    *(rule(name, name) for name in ("cls_token", "dist_token", "reg_token", "pos_embed")),
    *(rule(f"{name}.{{p}}", f"{name}.{{p}}") for name in LAYERS),
    rule("head.hidden.{p}", "head.hidden.{p}", older=["pre_logits.fc.{p}"]),  # timm before 0.8
    *(rule(f"blocks.{{n}}.{name}.{{p}}", f"blocks.{{n}}.{name}.{{p}}") for name in BLOCK),
    rule("blocks.{n}.ls1.gamma", "blocks.{n}.ls1.gamma", older=["blocks.{n}.gamma_1"]),  # DeiT-III's own files
    rule("blocks.{n}.ls2.gamma", "blocks.{n}.ls2.gamma", older=["blocks.{n}.gamma_2"]),
)


def read_config(sidecar: Mapping[str, Any]) -> dict[str, Any]:
    """Read what keys do not state from the architecture's name, then from `model_args` and the other fields."""
    known: dict[str, Any] = {}
    name = str(sidecar.get("architecture", ""))
    if name in VARIANTS:
        known |= {field: getattr(VARIANTS[name], field) for field in ("heads", "norm_eps", "activation", "pool")}
    pretrained = sidecar.get("pretrained_cfg") or sidecar
    arguments = sidecar.get("model_args") or {}
    if isinstance(size := pretrained.get("input_size"), list | tuple) and len(size) == 3:
        known["image_size"] = (size[1], size[2])
    if "img_size" in arguments:
        size = arguments["img_size"]
        known["image_size"] = tuple(size) if isinstance(size, list | tuple) else size
    if arguments.get("pos_embed") in ("", "none"):
        known["position"] = "none"
    if arguments.get("final_norm") is False:
        known["final_norm"] = False
    if "num_heads" in arguments:
        known["heads"] = arguments["num_heads"]
    if arguments.get("act_layer") in ACTIVATIONS:  # timm's names are ours
        known["activation"] = arguments["act_layer"]
    pool = arguments.get("global_pool", sidecar.get("global_pool"))
    if pool in POOLS:
        known["pool"] = POOLS[pool]
    elif pool:
        raise ValueError(f"timm's global_pool={pool!r} is not supported: expected one of {', '.join(POOLS)}")
    return known


def defaults(tensors: Mapping[str, Any], known: ViTConfig | None) -> dict[str, Any]:
    """Return timm's defaults, or those of the known variant of the same shape."""
    clip = "norm_pre.weight" in tensors
    return {
        "norm_eps": known.norm_eps if known else 1e-5 if clip else 1e-6,
        "activation": known.activation if known else "gelu",
    }


TIMM = Format(
    "timm",
    lambda tensors: "patch_embed.proj.weight" in tensors and "blocks.0.norm1.weight" in tensors,
    RULES,
    read_config=read_config,
    defaults=defaults,
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
    defaults=lambda tensors, known: {"norm_eps": 1e-6, "activation": "gelu", "pool": "token"},
    resize="dinov2",
)
DINOV2_REGISTERS = replace(
    DINOV2,
    name="dinov2-registers",
    recognise=lambda tensors: DINOV2.recognise(tensors) and "register_tokens" in tensors,
    adjust=fold_class_position,
    resize="dinov2-registers",
)


def architecture(config: ViTConfig) -> tuple[str, dict[str, Any]]:
    """Return the timm entry point that builds this config, and the arguments that differ from its defaults."""
    for name, known in VARIANTS.items():
        if asdict(config) | {"classes": known.classes} == asdict(known) and config.size[0] > 64:
            return name, {}
    if config.distillation_token:
        name = "deit_base_distilled_patch16_224"
    elif config.swiglu:
        name = "vit_giant_patch14_dinov2"  # the one entry point whose MLP is gated: a class, which JSON cannot name
    elif config.embedding_norm:
        name = "vit_base_patch16_clip_224"
    else:
        name = "vit_base_patch16_224"
    arguments: dict[str, Any] = {
        "img_size": list(config.size),
        "patch_size": list(config.patch),
        "in_chans": config.channels,
        "embed_dim": config.width,
        "depth": config.depth,
        "num_heads": config.heads,
        # half a unit more, so that timm's int(width × ratio) does not round down to one less
        "mlp_ratio": (config.mlp_width * (2 if config.swiglu else 1) + 0.5) / config.width,
        "qkv_bias": config.qkv_bias,
        "qk_norm": config.qk_norm,
        "init_values": config.layer_scale or None,
        "no_embed_class": not config.prefix_positions,
        "pos_embed": "none" if config.position == "none" else "learn",
        "fc_norm": config.fc_norm,
        "final_norm": config.final_norm or config.fc_norm,
    }
    if not config.swiglu:
        arguments["act_layer"] = config.activation
    if not config.distillation_token:
        arguments |= {
            "class_token": config.class_token,
            "reg_tokens": config.registers,
            "global_pool": {"token": "token", "mean": "avg"}[config.pool],
        }
    return name, arguments


def to_timm(model: ViT) -> ConvertedCheckpoint:
    """Convert to timm: its keys are ours, and `config.json` names the entry point that builds the model."""
    tensors, config = adapted(model, prefix_positions=None)
    patch_bias = not config.embedding_norm  # CLIP's ViTs have none
    limits = {"representation_size": (0,), "pool": ("token", "mean"), "patch_bias": (patch_bias,)}
    check_limits(config, "timm", limits)
    if config.distillation_token:
        check_limits(
            config, "timm", {"distillation_head": (bool(config.classes),), "registers": (0,), "pool": ("token",)}
        )
    if config.fc_norm and config.final_norm:
        raise ValueError("timm cannot hold this model: it has a norm before or after pooling, not both")
    name, arguments = architecture(config)
    card = card_of(model)
    config_json: dict[str, Any] = {
        "architecture": name,
        "num_classes": config.classes,
        "num_features": config.width,
        "global_pool": {"token": "token", "mean": "avg"}[config.pool],
        "pretrained_cfg": {
            "num_classes": config.classes,
            "input_size": [config.channels, *config.size],
            "first_conv": "patch_embed.proj",
            "classifier": ["head", "head_dist"] if config.distillation_head else "head",
            **_preprocess_config(card.preprocess),
        },
    }
    if arguments:
        config_json["model_args"] = arguments
    if card.class_names:
        config_json["label_names"] = list(card.class_names)
    return ConvertedCheckpoint(tensors, {"config.json": config_json})


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
