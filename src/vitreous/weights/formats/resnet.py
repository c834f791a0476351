"""torchvision's ResNets, whose keys are ours too: the number of blocks gives the depth, the first kernel the stem."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import nn

from vitreous.data.preprocess import Preprocess
from vitreous.models.resnet import DEPTHS, ResNet, ResNetConfig
from vitreous.weights.build import check_shapes, data_types
from vitreous.weights.card import Card, LoadReport
from vitreous.weights.fetch import CheckpointFiles
from vitreous.weights.formats.vitreous import read_own
from vitreous.weights.read import RawCheckpoint
from vitreous.weights.safety import CheckpointError
from vitreous.weights.sidecar import class_names, preprocessing


def load_resnet(raw: RawCheckpoint, files: CheckpointFiles, sidecar: Mapping[str, Any], classes: int | None) -> ResNet:
    """Build the ResNet that the checkpoint holds; `classes` replaces its head by a fresh one."""
    tensors = raw.tensors
    layers = [len({key.split(".")[1] for key in tensors if key.startswith(f"layer{i}.")}) for i in (1, 2, 3, 4)]
    bottleneck = "layer1.0.conv3.weight" in tensors
    depth = next((d for d, (_, n) in DEPTHS.items() if n == layers and (d >= 50) == bottleneck), None)
    if depth is None:
        raise CheckpointError(f"a ResNet with {layers} blocks a stage is none of {', '.join(map(str, DEPTHS))}")
    head = tensors.get("fc.weight")
    stored = 0 if head is None else head.shape[0]
    stem: Literal["imagenet", "small"] = "small" if tensors["conv1.weight"].shape[-2:] == (3, 3) else "imagenet"
    with torch.device("meta"):
        model = ResNet(ResNetConfig(depth, stored, stem=stem))
    wanted = model.state_dict()
    check_shapes(wanted, tensors)
    if missing := [key for key in wanted if key not in tensors and not key.endswith("num_batches_tracked")]:
        raise CheckpointError(f"{len(missing)} weight(s) are missing: {', '.join(missing[:4])}")
    zeros = {key: torch.zeros_like(value, device="cpu") for key, value in wanted.items() if key not in tensors}
    model.load_state_dict({**{k: v.clone() for k, v in tensors.items()}, **zeros}, assign=True)
    report = LoadReport(format="torchvision-resnet", tensors=len(tensors), stored_as=data_types(tensors))
    if classes is not None and classes != stored:
        model.reset_classifier(classes)
        if isinstance(model.fc, nn.Linear):
            report.reinitialised = ["fc.weight", "fc.bias"]
    own = read_own(sidecar)
    if "preprocess" in own:
        preprocess, reason = Preprocess.from_dict(own["preprocess"]), None
        sidecar = own
    else:
        preprocess, reason = preprocessing(files, sidecar, report.format, (224, 224), 3)
    if reason:
        report.assumed["preprocessing"] = f"{preprocess.describe()} ({reason})"
    names, reason = class_names(files, sidecar, stored) if not report.reinitialised else (None, None)
    if reason:
        report.assumed["class names"] = reason
    model.config = replace(model.config, image_size=preprocess.size)
    model.card = Card(
        name=str(files.name),
        preprocess=preprocess,
        class_names=names,
        head="classifier" if model.config.classes else "none",
        origin=files.origin,
        files=tuple(str(path) for path in files.weights),
        family="ResNet",
        report=report,
        training=None if report.reinitialised else own.get("training"),
    )
    return model
