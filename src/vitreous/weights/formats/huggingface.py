"""Read and write transformers' ViT, DeiT, ViT-MAE, ViT-MSN, DINOv2 (also with registers): keys, known models, files.

transformers 5 renamed most keys in memory but still writes the old ones to disk: both are read, the old ones written.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vitreous.data.preprocess import INTERPOLATIONS, Preprocess
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.weights.adapt import PAPER_VIT, ConvertedCheckpoint, adapted, check_limits, library_models
from vitreous.weights.card import PROBLEM_TYPES, card_of
from vitreous.weights.formats.huggingface_config import activation_name, read_config
from vitreous.weights.keymap import JOIN_GATE, JOIN_QKV, Allowed, Format, Rule, Tensors, rule, strip_prefix, to_theirs
from vitreous.weights.positions import fold_class_position

PATCHES = "embeddings.patch_embeddings.projection.weight"
OLD, NEW = "encoder.layer.{n}", "layers.{n}"  # DINOv2's blocks kept the old name

EMBEDDINGS = (
    rule("cls_token", "embeddings.cls_token"),
    rule("dist_token", "embeddings.distillation_token"),
    rule("reg_token", "embeddings.register_tokens"),
    rule("pos_embed", "embeddings.position_embeddings"),
    rule("patch_embed.proj.{p}", "embeddings.patch_embeddings.projection.{p}"),
)
HEADS = (
    rule("norm.{p}", "layernorm.{p}"),
    rule("head.hidden.{p}", "pooler.dense.{p}"),
    rule("head.{p}", "classifier.{p}", older=["cls_classifier.{p}"]),
    rule("head_dist.{p}", "distillation_classifier.{p}"),
)
QKV_OLD = [f"{OLD}.attention.attention.{name}.{{p}}" for name in ("query", "key", "value")]
QKV_NEW = [[f"{block}.attention.{name}_proj.{{p}}" for name in "qkv"] for block in (NEW, OLD)]
BLOCKS = (
    rule("blocks.{n}.attn.qkv.{p}", *QKV_OLD, transform=JOIN_QKV, older=QKV_NEW),
    rule(
        "blocks.{n}.attn.proj.{p}",
        f"{OLD}.attention.output.dense.{{p}}",
        older=[f"{NEW}.attention.o_proj.{{p}}", f"{OLD}.attention.o_proj.{{p}}"],
    ),
)
VIT_BLOCKS = (
    rule("blocks.{n}.norm1.{p}", f"{OLD}.layernorm_before.{{p}}", older=[f"{NEW}.layernorm_before.{{p}}"]),
    rule("blocks.{n}.norm2.{p}", f"{OLD}.layernorm_after.{{p}}", older=[f"{NEW}.layernorm_after.{{p}}"]),
    rule("blocks.{n}.mlp.fc1.{p}", f"{OLD}.intermediate.dense.{{p}}", older=[f"{NEW}.mlp.fc1.{{p}}"]),
    rule("blocks.{n}.mlp.fc2.{p}", f"{OLD}.output.dense.{{p}}", older=[f"{NEW}.mlp.fc2.{{p}}"]),
)
DINO_BLOCKS = (
    rule("blocks.{n}.norm1.{p}", f"{OLD}.norm1.{{p}}"),
    rule("blocks.{n}.norm2.{p}", f"{OLD}.norm2.{{p}}"),
    rule("blocks.{n}.ls1.gamma", f"{OLD}.layer_scale1.lambda1"),
    rule("blocks.{n}.ls2.gamma", f"{OLD}.layer_scale2.lambda1"),
)
DINO_MLP = (
    rule("blocks.{n}.mlp.fc1.{p}", f"{OLD}.mlp.fc1.{{p}}"),
    rule("blocks.{n}.mlp.fc2.{p}", f"{OLD}.mlp.fc2.{{p}}"),
)
_GATE_NEW = rule(
    "blocks.{n}.mlp.fc1.{p}", f"{OLD}.mlp.gate_proj.{{p}}", f"{OLD}.mlp.up_proj.{{p}}", transform=JOIN_GATE
)
DINO_SWIGLU = (
    rule("blocks.{n}.mlp.fc1.{p}", f"{OLD}.mlp.weights_in.{{p}}"),
    rule("blocks.{n}.mlp.fc2.{p}", f"{OLD}.mlp.weights_out.{{p}}", older=[f"{OLD}.mlp.down_proj.{{p}}"]),
)
VIT_RULES: tuple[Rule, ...] = (*EMBEDDINGS, *BLOCKS, *VIT_BLOCKS, *HEADS)
DINO_RULES: tuple[Rule, ...] = (*EMBEDDINGS, *BLOCKS, *DINO_BLOCKS, *DINO_MLP, *HEADS)
DINO_SWIGLU_RULES: tuple[Rule, ...] = (*EMBEDDINGS, *BLOCKS, *DINO_BLOCKS, *DINO_SWIGLU, *HEADS)


def _is(tensors: Mapping[str, Tensor], dino: bool) -> bool:
    huggingface = any(key.endswith(PATCHES) for key in tensors)
    return huggingface and any("layer_scale1.lambda1" in key for key in tensors) == dino


def known_models(shapes: Mapping[str, Any], assume: Mapping[str, Any]) -> tuple[Allowed, str]:
    """Return the choices of transformers' ViT, DeiT, ViT-MAE, ViT-MSN and I-JEPA, which have two values of epsilon.

    Only ViT has a pooler, only DeiT a distillation token, both have one epsilon; only I-JEPA has no class token.
    """
    distilled, placed = shapes["distillation_token"], shapes["class_token"]
    return library_models(
        norm_eps=(1e-12,) if shapes["representation_size"] or distilled else (1e-12, 1e-6),
        class_token=(placed,),
        pool=("token",) if placed else ("mean",),
        distillation_token=(distilled,),
        distillation_head=(True, False) if distilled and shapes["classes"] else (False,),
    )(shapes, assume)


def known_dinov2_models(shapes: Mapping[str, Any], assume: Mapping[str, Any]) -> tuple[Allowed, str]:
    """Return the models that a bare file with the keys of transformers' DINOv2 may be, with and without registers."""
    return library_models(
        layer_scale=(1e-5,),
        swiglu=(True, False),
        registers=(shapes["registers"],),
        prefix_positions=(not shapes["registers"],),
        pool=("token+mean" if shapes["classes"] else "token",),
    )(shapes, assume)


IGNORED = ("embeddings.mask_token", "decoder.*", "mask_token")
VIT = Format(
    "huggingface",
    lambda tensors: _is(tensors, dino=False),
    VIT_RULES,
    IGNORED,
    prepare=strip_prefix("vit.", "deit.", "ijepa.", "dinov2.", "dinov2_with_registers."),
    read_config=read_config,
    known=known_models,
    resize="huggingface",
)
DINOV2 = replace(
    VIT,
    name="huggingface-dinov2",
    recognise=lambda tensors: _is(tensors, dino=True),
    rules=(*DINO_RULES, *DINO_SWIGLU, _GATE_NEW),
    adjust=fold_class_position,
    known=known_dinov2_models,
)
DINOV2_REGISTERS = replace(
    DINOV2,
    name="huggingface-dinov2-registers",
    recognise=lambda tensors: _is(tensors, dino=True) and any(key.endswith("register_tokens") for key in tensors),
    resize="dinov2-registers",  # transformers antialiases for this one alone
)


def to_huggingface(model: ViT) -> ConvertedCheckpoint:
    """Convert a model to transformers' DINOv2, DeiT or ViT: the first that can hold it. `clip.py` has CLIP's."""
    config = model.config
    dino = config.registers or config.layer_scale or config.swiglu
    return with_sidecars(model, *(_to_dinov2(model) if dino else _to_vit(model)))


def with_sidecars(model: ViT, tensors: Tensors, config_json: dict[str, Any], config: ViTConfig) -> ConvertedCheckpoint:
    """Finish the conversion of a ViT to Hugging Face's transformers: add the sidecars that all its families have.

    They are the fields of `config.json` that every family has, and the preprocessor's file.
    """
    card = card_of(model)
    config_json |= {
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
        config_json["id2label"] = {str(i): name for i, name in enumerate(names)}
        config_json["label2id"] = {name: i for i, name in enumerate(names)}
        if card.task != "classify":
            config_json["problem_type"] = {task: name for name, task in PROBLEM_TYPES.items()}[card.task]
    preprocessor = _preprocess_config(card.preprocess)
    sidecars = {"config.json": config_json, "preprocessor_config.json": preprocessor}
    return ConvertedCheckpoint(tensors, config, sidecars)


def _to_vit(model: ViT) -> tuple[Tensors, dict[str, Any], ViTConfig]:
    distilled = model.config.distillation_token
    tensors, config = adapted(model, prefix_positions=2 if distilled else 1)
    name, kind = ("DeiT", "deit") if distilled else ("ViT", "vit")
    limits = {"distillation_token": (distilled,), "distillation_head": (True, False), "patch_bias": (True,)}
    check_limits(config, f"transformers' {name}", PAPER_VIT | limits)
    if config.classes and config.representation_size:
        raise ValueError(f"transformers' {name} cannot hold this model: it has a pooler or a classifier, not both")
    rules: tuple[Rule, ...] = VIT_RULES
    if config.distillation_head:
        rules = (rule("head.{p}", "cls_classifier.{p}"), *rules)
    suffix = "Model"
    if config.classes:
        suffix = "ForImageClassificationWithTeacher" if config.distillation_head else "ForImageClassification"
    config_json = {
        "architectures": [f"{name}{suffix}"],
        "model_type": kind,
        "intermediate_size": config.mlp_width,
        "hidden_act": activation_name(config),
        "qkv_bias": config.qkv_bias,
    }
    if config.representation_size:
        config_json["pooler_output_size"] = config.representation_size
    theirs = to_theirs(tensors, rules, config)
    return (add_prefix(theirs, f"{kind}.") if config.classes else theirs), config_json, config


def _to_dinov2(model: ViT) -> tuple[Tensors, dict[str, Any], ViTConfig]:
    registers = model.config.registers
    tensors, config = adapted(model, prefix_positions=1)
    name, kind = ("Dinov2WithRegisters", "dinov2_with_registers") if registers else ("Dinov2", "dinov2")
    limits = PAPER_VIT | {
        "registers": (registers,),
        "layer_scale": (config.layer_scale,),
        "swiglu": (True, False),
        "pool": ("token+mean",) if config.classes else ("token",),
        "patch_bias": (True,),
        "representation_size": (0,),
    }
    check_limits(config, f"transformers' {name}", limits)
    if registers and model.config.prefix_positions:
        raise ValueError(f"transformers' {name} cannot hold this model: its registers have no positions")
    if not config.layer_scale:
        ones = torch.ones(config.width)
        tensors |= {f"blocks.{n}.{scale}.gamma": ones.clone() for n in range(config.depth) for scale in ("ls1", "ls2")}
        config = replace(config, layer_scale=1.0)
    ratio = config.mlp_width / config.width
    if config.swiglu:  # transformers takes two thirds of ratio × width and rounds up to a multiple of 8
        ratio = next((r for r in range(1, 17) if (int(r * config.width * 2 / 3) + 7) // 8 * 8 == config.mlp_width), 0)
    if not ratio or int(ratio) != ratio:
        raise ValueError(f"transformers' {name} cannot hold this model: mlp_width={config.mlp_width} fits no ratio")
    rules = DINO_SWIGLU_RULES if config.swiglu else DINO_RULES
    theirs = to_theirs(tensors, rules, config)
    theirs["embeddings.mask_token"] = torch.zeros(1, config.width)  # used in pre-training only
    config_json = {
        "architectures": [f"{name}{'ForImageClassification' if config.classes else 'Model'}"],
        "model_type": kind,
        "mlp_ratio": int(ratio),
        "use_swiglu_ffn": config.swiglu,
        "layerscale_value": config.layer_scale or 1.0,
        "hidden_act": activation_name(config),
        "qkv_bias": config.qkv_bias,
    }
    if registers:
        config_json["num_register_tokens"] = registers
    config = replace(config, prefix_positions=not registers)  # `fold_class_position` when it is read
    return (add_prefix(theirs, f"{kind}.") if config.classes else theirs), config_json, config


def add_prefix(tensors: Tensors, prefix: str) -> Tensors:
    """Put the base model's name before every key but the heads', as transformers does."""
    heads = ("classifier.", "cls_classifier.", "distillation_classifier.", "visual_projection.")
    return {key if key.startswith(heads) else prefix + key: value for key, value in tensors.items()}


def _side(pair: tuple[int, int]) -> int | list[int]:
    return pair[0] if pair[0] == pair[1] else list(pair)


def _preprocess_config(preprocess: Preprocess) -> dict[str, Any]:
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
