"""A model as transformers' files: ViT, DeiT, DINOv2 or CLIP's vision tower, with its config and its preprocessor."""

from typing import Any

import torch

from vitreous.data.preprocess import INTERPOLATIONS, Preprocess
from vitreous.models.vit import ViT, ViTConfig
from vitreous.weights.adapt import PLAIN, Written, card_of, refuse, smoothed
from vitreous.weights.formats import clip, huggingface
from vitreous.weights.keymap import Rule, Tensors, rule, to_theirs


def to_huggingface(model: ViT) -> Written:
    """transformers has a class for each family: the first that can hold the model is written."""
    config = model.config
    if config.embedding_norm:
        tensors, described = _clip(model)
    elif config.registers or config.layer_scale or config.swiglu:
        tensors, described = _dinov2(model)
    else:
        tensors, described = _vit(model)
    card = card_of(model)
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
        raise ValueError("transformers' CLIP cannot hold this model: its images and patches are square")
    theirs = _prefixed(to_theirs(tensors, clip.HUGGINGFACE_RULES, config), "vision_model.")
    described = {
        "architectures": ["CLIPVisionModelWithProjection" if config.classes else "CLIPVisionModel"],
        "model_type": "clip_vision_model",
        "intermediate_size": config.mlp_width,
        "hidden_act": _activation(config),
        "projection_dim": config.classes or 512,
    }
    return theirs, described


def _prefixed(tensors: Tensors, prefix: str) -> Tensors:
    heads = ("classifier.", "cls_classifier.", "distillation_classifier.", "visual_projection.")
    return {key if key.startswith(heads) else prefix + key: value for key, value in tensors.items()}


def _activation(config: ViTConfig) -> str:
    return {"gelu_tanh": "gelu_pytorch_tanh"}.get(config.activation, config.activation)


def _side(pair: tuple[int, int]) -> int | list[int]:
    return pair[0] if pair[0] == pair[1] else list(pair)


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
