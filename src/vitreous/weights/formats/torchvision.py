"""Read and write torchvision's `vit_*` checkpoints; read its ResNets, whose keys are ours too."""

import re
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from vitreous.data.preprocess import Preprocess
from vitreous.models.vit import ViT
from vitreous.weights.adapt import PAPER_VIT, ConvertedCheckpoint, adapted, check_limits, library_models
from vitreous.weights.build import check_shapes
from vitreous.weights.card import LoadReport
from vitreous.weights.fetch import CheckpointFiles
from vitreous.weights.keymap import Format, rule, to_theirs
from vitreous.weights.loaded_card import classifier_card
from vitreous.weights.preprocessing import preprocessing
from vitreous.weights.read import data_types
from vitreous.weights.safety import CheckpointError
from vitreous.weights.saved_config import read_own
from vitreous.weights.timm_classes import is_dropout
from vitreous.weights.unwrap import RawCheckpoint

if TYPE_CHECKING:
    from vitreous.models.resnet import ResNet

LAYER = "encoder.layers.encoder_layer_{n}"

RULES = (
    rule("cls_token", "class_token"),
    rule("pos_embed", "encoder.pos_embedding"),
    rule("patch_embed.proj.{p}", "conv_proj.{p}"),
    rule("blocks.{n}.norm1.{p}", f"{LAYER}.ln_1.{{p}}"),
    rule("blocks.{n}.attn.qkv.{p}", f"{LAYER}.self_attention.in_proj_{{p}}"),  # in_proj_weight, in_proj_bias
    rule("blocks.{n}.attn.proj.{p}", f"{LAYER}.self_attention.out_proj.{{p}}"),
    rule("blocks.{n}.norm2.{p}", f"{LAYER}.ln_2.{{p}}"),
    rule("blocks.{n}.mlp.fc1.{p}", f"{LAYER}.mlp.0.{{p}}", older=[f"{LAYER}.mlp.linear_1.{{p}}"]),
    rule("blocks.{n}.mlp.fc2.{p}", f"{LAYER}.mlp.3.{{p}}", older=[f"{LAYER}.mlp.linear_2.{{p}}"]),
    rule("norm.{p}", "encoder.ln.{p}"),
    rule("head.hidden.{p}", "heads.pre_logits.{p}"),
    rule("head.{p}", "heads.head.{p}"),
)
TORCHVISION = Format(
    "torchvision",
    lambda tensors: "encoder.pos_embedding" in tensors and "class_token" in tensors,
    RULES,
    known=library_models(),
    resize="torchvision",
)


def to_torchvision(model: ViT) -> ConvertedCheckpoint:
    """Convert a model to torchvision's state dict; torchvision reads no config file."""
    tensors, config = adapted(model, prefix_positions=1)
    limits = PAPER_VIT | {"activation": ("gelu",), "qkv_bias": (True,), "patch_bias": (True,), "norm_eps": (1e-6,)}
    check_limits(config, "torchvision", limits, square=True)
    if not config.classes:
        raise ValueError("torchvision cannot hold this model: its ViTs always have a head, this one has none")
    return ConvertedCheckpoint(to_theirs(tensors, RULES, config), config)


def load_resnet(
    raw: RawCheckpoint,
    files: CheckpointFiles,
    sidecar: Mapping[str, Any],
    classes: int | None,
    image_size: int | tuple[int, int] | None,
) -> "ResNet":
    """Build the ResNet in torchvision's checkpoint: the number of blocks gives its depth, the first kernel its stem.

    `classes` replaces its head by a fresh one; `image_size` is what its preprocessing makes, since it takes any.
    """
    from vitreous.models.resnet import DEPTHS, ResNet, ResNetConfig  # it imports torchvision, which takes a second

    tensors, own = raw.tensors, read_own(sidecar)
    stated = own.get("config", {})
    if not isinstance(stated, Mapping) or set(stated) - {field.name for field in fields(ResNetConfig)}:
        raise CheckpointError("config.json was not written by this version: its model has unknown fields")
    layers = [len({key.split(".")[1] for key in tensors if key.startswith(f"layer{i}.")}) for i in (1, 2, 3, 4)]
    bottleneck = "layer1.0.conv3.weight" in tensors
    head, first = tensors.get("fc.weight"), tensors["conv1.weight"]
    stored = 0 if head is None else head.shape[0]
    if first.dim() != 4 or 0 in first.shape:
        raise CheckpointError(f"conv1.weight should have four dimensions, got {tuple(first.shape)}")
    depth = next((d for d, (_, n) in DEPTHS.items() if n == layers and (d >= 50) == bottleneck), None)
    if depth is None:
        raise CheckpointError(f"a ResNet with {layers} blocks a stage is none of {', '.join(map(str, DEPTHS))}")
    if depth == 14 and not stated and "fc.weight" not in tensors:
        raise CheckpointError(
            "it has neither layer4 nor fc: a part of a larger ResNet, or a resnet14 without its config"
        )
    shape = {"depth": depth, "classes": stored, "channels": first.shape[1], "width": first.shape[0]}
    if unlike := [name for name, value in shape.items() if stated.get(name, value) != value]:
        said = f"{unlike[0]}={stated[unlike[0]]!r:.40}, and its tensors {unlike[0]}={shape[unlike[0]]}"
        raise CheckpointError(f"config.json says {said}: get both files again")
    plain = {"num_classes": stored, "in_chans": first.shape[1], "global_pool": "avg"}
    for source, section in (("config.json", sidecar), ("its training script", raw.stated)):
        name = str(section.get("architecture", ""))
        given = {"global_pool": section.get("global_pool") or "avg"} | dict(section.get("model_args") or {})
        given = {key: value for key, value in given.items() if value != plain.get(key, "") and not is_dropout(key)}
        kind = re.match(r"(?:wide_)?resn[a-z]*\d+[a-z]*", name)
        if given or (kind and kind[0] != f"resnet{depth}"):  # timm's resnetaa50 has the tensors of a resnet50
            also = f" with {given!r:.60}" if given else ""
            raise CheckpointError(f"{source} says {name}{also}, and its tensors are those of a plain resnet{depth}")
    small: Literal["imagenet", "small"] = "small" if first.shape[-2:] == (3, 3) else "imagenet"
    stem = stated.get("stem", small)
    with torch.device("meta"):
        model = ResNet(ResNetConfig(stem=stem, **shape))
    wanted = model.state_dict()
    check_shapes(wanted, tensors)
    if missing := [key for key in wanted if key not in tensors and not key.endswith("num_batches_tracked")]:
        raise CheckpointError(f"{len(missing)} weight(s) are missing: {', '.join(missing[:4])}")
    zeros = {key: torch.zeros_like(value, device="cpu") for key, value in wanted.items() if key not in tensors}
    model.load_state_dict({**{k: v.clone() for k, v in tensors.items()}, **zeros}, assign=True)
    report = LoadReport(format="torchvision-resnet", tensors=len(tensors), stored_as=data_types(tensors))
    if stem == "small" and "stem" not in stated:
        report.assumed["stem"] = "small (the first kernel is 3×3: no max-pool after it)"
    replaced = classes is not None and classes != stored
    if classes is not None and replaced:
        model.reset_classifier(classes)
        if isinstance(model.fc, nn.Linear):
            report.reinitialised = ["fc.weight", "fc.bias"]
    if "preprocess" in own:
        preprocess, sidecar = Preprocess.from_dict(own["preprocess"]), own
    else:
        preprocess = preprocessing(files, sidecar, (224, 224), first.shape[1], report, raw.stated)
    if image_size is not None:
        preprocess = preprocess.with_size(image_size)
    model.config = replace(model.config, image_size=preprocess.size)
    model.card = classifier_card(
        "ResNet", files, sidecar, own, preprocess, report, model.config, stored, replaced=replaced
    )
    return model
