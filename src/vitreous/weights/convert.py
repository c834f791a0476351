"""A model to another library's files: what the library can hold, under its names, with its config beside.

Some differences vanish without changing the function: fixed positions become a learned table, a missing class
position becomes a row of zeros, a missing bias becomes zeros. What cannot vanish is refused by name.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitreous.data.preprocess import INTERPOLATIONS, Preprocess
from vitreous.models.vit import ViT, ViTConfig
from vitreous.weights import clip, google_npz, huggingface, save, timm, torchvision
from vitreous.weights.card import Card
from vitreous.weights.keymap import Rule, Tensors, rule, to_theirs

PLAIN: dict[str, tuple[Any, ...]] = {  # what every target but timm wants: the paper's ViT
    "class_token": (True,),
    "distillation_token": (False,),
    "distillation_head": (False,),
    "registers": (0,),
    "pool": ("token",),
    "qk_norm": (False,),
    "swiglu": (False,),
    "embedding_norm": (False,),
    "final_norm": (True,),
    "fc_norm": (False,),
    "layer_scale": (0.0,),
}


@dataclass(frozen=True)
class Written:
    """What goes to disk: tensors under the target's names, and the files beside them."""

    tensors: Tensors
    beside: dict[str, dict[str, Any]]


def convert(model: nn.Module, out: str | Path, to: str) -> list[Path]:
    """Write `model` for another library; `out` is a folder, or a file by its suffix.

    `to` is one of `TARGETS`. A folder gets `model.safetensors` (Google: `model.npz`) and the config files that the
    library reads. A `.safetensors`, `.pth`, `.pt` or `.npz` file gets the tensors alone; preprocessing and class names,
    for which such a file has no place, go to a `.json` of the same name, which `load` reads.
    """
    if to not in TARGETS:
        raise ValueError(f"the format must be one of {', '.join(TARGETS)}, got {to!r}")
    if not isinstance(model, ViT):
        raise ValueError(f"only ViTs are converted, got a {type(model).__name__}")
    out = Path(out)
    if to == "vitreous":
        if out.suffix:
            raise ValueError(f"our own format is a folder, got {out.name}: leave the suffix off")
        return save.save(model, out)
    if (out.suffix == ".npz") != (to == "google") and out.suffix:
        raise ValueError(f"{to} is not written as {out.suffix}: try {out.with_suffix(SUFFIX[to]).name}")
    written = TARGETS[to](model)
    travelling = {"vitreous": _card(model).described()}  # what the format has no place for; we read it back
    if out.suffix in WRITERS:
        return [WRITERS[out.suffix](out, written.tensors), save.write_json(out.with_suffix(".json"), travelling)]
    if out.suffix:
        raise ValueError(f"{out.suffix} is no file format known here: {', '.join(WRITERS)}, or a folder")
    beside = written.beside or {"config.json": travelling}
    suffix = ".npz" if to == "google" else ".safetensors"
    paths = [WRITERS[suffix](out / f"model{suffix}", written.tensors)]
    return paths + [save.write_json(out / name, value) for name, value in beside.items()]


WRITERS: dict[str, Callable[[Path, Tensors], Path]] = {
    ".safetensors": save.write_safetensors,
    ".pth": save.write_pickle,
    ".pt": save.write_pickle,
    ".npz": save.write_npz,
}
SUFFIX = {"google": ".npz", "torchvision": ".pth", "timm": ".safetensors", "huggingface": ".safetensors"}


def refuse(config: ViTConfig, target: str, limits: dict[str, tuple[Any, ...]]) -> None:
    """Raise where the target has no place for what the model has, naming all of it."""
    over = [f"{name}={getattr(config, name)!r}" for name, held in limits.items() if getattr(config, name) not in held]
    if over:
        raise ValueError(f"{target} cannot hold this model: it has no place for {', '.join(over)}")


def smoothed(model: ViT, class_slots: int | None, head_bias: bool = True) -> tuple[Tensors, ViTConfig]:
    """The model's tensors with harmless differences smoothed out.

    `class_slots` is how many tokens in front of the patches have a position in the target: None keeps the model's.
    """
    config = model.config
    tensors = {key: value.detach().cpu().float() for key, value in model.state_dict().items()}
    if model.pos_embed is not None:
        tensors["pos_embed"] = model.pos_embed.detach().cpu().float()
    elif class_slots is not None:
        tensors["pos_embed"] = torch.zeros(1, config.positions, config.width)
    if config.position != "none" or class_slots is not None:
        config = replace(config, position="learned")
    if class_slots is not None and not config.prefix_positions:
        zeros = torch.zeros(1, class_slots, config.width)
        tensors["pos_embed"] = torch.cat([zeros, tensors["pos_embed"]], dim=1)
        config = replace(config, prefix_positions=True)
    if head_bias and config.classes and not config.head_bias:
        tensors["head.bias"] = torch.zeros(config.classes)
        config = replace(config, head_bias=True)
    return tensors, config


def to_timm(model: ViT) -> Written:
    """Keys are timm's already; `config.json` names the entry point that builds the model."""
    tensors, config = smoothed(model, class_slots=None)
    clip_like = config.embedding_norm
    refuse(config, "timm", {"representation_size": (0,), "pool": ("token", "mean"), "patch_bias": (not clip_like,)})
    if config.distillation_token:
        refuse(config, "timm", {"distillation_head": (bool(config.classes),), "registers": (0,), "pool": ("token",)})
    if config.fc_norm and config.final_norm:
        raise ValueError("timm cannot hold this model: it has a norm before or after pooling, not both")
    name, arguments = timm.architecture(config)
    card = _card(model)
    described: dict[str, Any] = {
        "architecture": name,
        "num_classes": config.classes,
        "num_features": config.width,
        "global_pool": {"token": "token", "mean": "avg"}[config.pool],
        "pretrained_cfg": {
            "num_classes": config.classes,
            "input_size": [config.channels, *config.size],
            "first_conv": "patch_embed.proj",
            "classifier": ["head", "head_dist"] if config.distillation_head else "head",
            **_timm_preprocess(card.preprocess),
        },
    }
    if arguments:
        described["model_args"] = arguments
    if card.class_names:
        described["label_names"] = list(card.class_names)
    return Written(tensors, {"config.json": described})


def to_torchvision(model: ViT) -> Written:
    """A state dict alone: torchvision reads no config."""
    tensors, config = smoothed(model, class_slots=1)
    refuse(config, "torchvision", PLAIN | {"activation": ("gelu",), "qkv_bias": (True,), "patch_bias": (True,)})
    if not config.classes:
        raise ValueError("torchvision cannot hold this model: its ViTs always have a head, this one has none")
    return Written(to_theirs(tensors, torchvision.RULES, config), {})


def to_google(model: ViT) -> Written:
    """The arrays of the original release, which has no config either."""
    tensors, config = smoothed(model, class_slots=1)
    limits = PLAIN | {"activation": ("gelu", "gelu_tanh"), "qkv_bias": (True,), "patch_bias": (True,)}
    refuse(config, "Google's .npz", limits)
    return Written(to_theirs(tensors, google_npz.ORIGINAL_RULES, config), {})


def to_huggingface(model: ViT) -> Written:
    """transformers has a class for each family: the first that can hold the model is written."""
    config = model.config
    if config.embedding_norm:
        tensors, described = _clip(model)
    elif config.registers or config.layer_scale or config.swiglu:
        tensors, described = _dinov2(model)
    else:
        tensors, described = _vit(model)
    card = _card(model)
    described |= {
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.heads,
        "image_size": _side(config.size),
        "patch_size": _side(config.patch),
        "num_channels": config.channels,
        "layer_norm_eps": config.norm_eps,
        "torch_dtype": "float32",
    }
    if card.head == "classifier" and config.classes:
        names = card.class_names or [f"LABEL_{i}" for i in range(config.classes)]
        described["id2label"] = {str(i): name for i, name in enumerate(names)}
        described["label2id"] = {name: i for i, name in enumerate(names)}
    beside = {"config.json": described, "preprocessor_config.json": _huggingface_preprocess(card.preprocess)}
    return Written(tensors, beside)


def _vit(model: ViT) -> tuple[Tensors, dict[str, Any]]:
    distilled = model.config.distillation_token
    tensors, config = smoothed(model, class_slots=2 if distilled else 1)
    name, kind = ("DeiT", "deit") if distilled else ("ViT", "vit")
    refuse(
        config,
        f"transformers' {name}",
        PLAIN | {"distillation_token": (distilled,), "distillation_head": (True, False), "patch_bias": (True,)},
    )
    if config.classes and config.representation_size:
        raise ValueError(f"transformers' {name} cannot hold this model: it has a pooler or a classifier, not both")
    rules: tuple[Rule, ...] = huggingface.VIT_RULES
    if config.distillation_head:
        rules = (rule("head.{p}", "cls_classifier.{p}"), *rules)
    suffix = "Model"
    if config.classes:
        suffix = "ForImageClassificationWithTeacher" if config.distillation_head else "ForImageClassification"
    described = {
        "architectures": [f"{name}{suffix}"],
        "model_type": kind,
        "intermediate_size": config.mlp_width,
        "hidden_act": _activation(config),
        "qkv_bias": config.qkv_bias,
    }
    if config.representation_size:
        described["pooler_output_size"] = config.representation_size
    theirs = to_theirs(tensors, rules, config)
    return (_prefixed(theirs, f"{kind}.") if config.classes else theirs), described


def _dinov2(model: ViT) -> tuple[Tensors, dict[str, Any]]:
    registers = model.config.registers
    tensors, config = smoothed(model, class_slots=1)
    name, kind = ("Dinov2WithRegisters", "dinov2_with_registers") if registers else ("Dinov2", "dinov2")
    limits = PLAIN | {
        "registers": (registers,),
        "layer_scale": (config.layer_scale,),
        "swiglu": (True, False),
        "pool": ("token+mean",) if config.classes else ("token",),
        "patch_bias": (True,),
        "representation_size": (0,),
    }
    refuse(config, f"transformers' {name}", limits)
    if registers and model.config.prefix_positions:
        raise ValueError(f"transformers' {name} cannot hold this model: its registers have no positions")
    if not config.layer_scale:
        ones = torch.ones(config.width)
        tensors |= {f"blocks.{n}.{scale}.gamma": ones.clone() for n in range(config.depth) for scale in ("ls1", "ls2")}
    ratio = config.mlp_width / config.width
    if config.swiglu:  # transformers takes two thirds of ratio × width and rounds up to a multiple of 8
        ratio = next((r for r in range(1, 17) if (int(r * config.width * 2 / 3) + 7) // 8 * 8 == config.mlp_width), 0)
    if not ratio or int(ratio) != ratio:
        raise ValueError(f"transformers' {name} cannot hold this model: mlp_width={config.mlp_width} fits no ratio")
    rules = huggingface.DINO_SWIGLU_RULES if config.swiglu else huggingface.DINO_RULES
    theirs = to_theirs(tensors, rules, config)
    theirs["embeddings.mask_token"] = torch.zeros(1, config.width)  # used in pre-training alone
    described = {
        "architectures": [f"{name}{'ForImageClassification' if config.classes else 'Model'}"],
        "model_type": kind,
        "mlp_ratio": int(ratio),
        "use_swiglu_ffn": config.swiglu,
        "layerscale_value": config.layer_scale or 1.0,
        "hidden_act": _activation(config),
        "qkv_bias": config.qkv_bias,
    }
    if registers:
        described["num_register_tokens"] = registers
    return (_prefixed(theirs, f"{kind}.") if config.classes else theirs), described


def _clip(model: ViT) -> tuple[Tensors, dict[str, Any]]:
    tensors, config = smoothed(model, class_slots=1, head_bias=False)
    limits = PLAIN | {
        "embedding_norm": (True,),
        "patch_bias": (False,),
        "qkv_bias": (True,),
        "representation_size": (0,),
    }
    refuse(config, "transformers' CLIP", limits)
    if "head.bias" in tensors and tensors.pop("head.bias").any():
        raise ValueError("transformers' CLIP cannot hold this model: its projection has no bias, this head has one")
    if config.patch[0] != config.patch[1] or config.size[0] != config.size[1]:
        raise ValueError("transformers' CLIP cannot hold this model: its pictures and patches are square")
    theirs = _prefixed(to_theirs(tensors, clip.HUGGINGFACE_RULES, config), "vision_model.")
    described = {
        "architectures": ["CLIPVisionModelWithProjection" if config.classes else "CLIPVisionModel"],
        "model_type": "clip_vision_model",
        "intermediate_size": config.mlp_width,
        "hidden_act": _activation(config),
        "projection_dim": config.classes or 512,
    }
    return theirs, described


TARGETS: dict[str, Callable[[ViT], Written]] = {
    "timm": to_timm,
    "torchvision": to_torchvision,
    "huggingface": to_huggingface,
    "google": to_google,
    "vitreous": lambda model: Written({}, {}),
}


def _prefixed(tensors: Tensors, prefix: str) -> Tensors:
    heads = ("classifier.", "cls_classifier.", "distillation_classifier.", "visual_projection.")
    return {key if key.startswith(heads) else prefix + key: value for key, value in tensors.items()}


def _activation(config: ViTConfig) -> str:
    return {"gelu_tanh": "gelu_pytorch_tanh"}.get(config.activation, config.activation)


def _side(pair: tuple[int, int]) -> int | list[int]:
    return pair[0] if pair[0] == pair[1] else list(pair)


def _card(model: ViT) -> Card:
    return model.card or Card(name="model", preprocess=save.usual_preprocess(model.config))


def _timm_preprocess(preprocess: Preprocess) -> dict[str, Any]:
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


def _huggingface_preprocess(preprocess: Preprocess) -> dict[str, Any]:
    resize, crop = preprocess.resize, preprocess.resize != preprocess.size
    sides = {"height": preprocess.size[0], "width": preprocess.size[1]}
    size: dict[str, int] = sides
    if isinstance(resize, int):
        size = {"shortest_edge": resize}
    elif resize is not None:
        size = {"height": resize[0], "width": resize[1]}
    return {
        "image_processor_type": "BitImageProcessor" if crop else "ViTImageProcessor",
        "do_resize": resize is not None,
        "size": size,
        "resample": int(INTERPOLATIONS[preprocess.interpolation]),
        "do_center_crop": crop,
        "crop_size": sides,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(preprocess.mean),
        "image_std": list(preprocess.std),
    }
