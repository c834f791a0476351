"""A config and its data to a model that is ready to learn, and to its preprocessing."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from vitreous.data.image_dataset import ImageDataset
from vitreous.data.preprocess import STATISTICS, Preprocess
from vitreous.models.resnet import ResNet, resnet_config
from vitreous.models.variants import variant
from vitreous.models.vit import ViT, ViTConfig
from vitreous.training.config import TrainConfig
from vitreous.training.stream import Streamed
from vitreous.weights.card import Card
from vitreous.weights.load import Model, load

FUSED = {"activation": "gelu", "swiglu": False, "qkv_bias": True}
"""What a ViT must be for `fused`, whose kernels are written for the paper's blocks (`speed/training_forward.py`)."""
SMALL = 64  # up to this size images come whole; larger ones lose an eighth at the edges, as is the field's custom


def build_model(config: TrainConfig, data: ImageDataset | Streamed, say: Callable[[str], object] = print) -> Model:
    """The model on the CPU with its card; fresh weights are drawn from the config's seed."""
    torch.manual_seed(config.seed)
    model = _pretrained(config, data, say) if config.pretrained else _fresh(config, data)
    if config.statistics is not None:
        mean, std = STATISTICS[config.statistics]
        count = len(model.card.preprocess.mean)
        if count == 1 and len(set(mean)) > 1:
            raise ValueError(
                f"the statistics {config.statistics!r} are for colour, and this model takes grey images: leave "
                "--statistics out"
            )
        model.card.preprocess = replace(model.card.preprocess, mean=mean[:count], std=std[:count])
    if config.fused and isinstance(shape := model.config, ViTConfig):
        _refuse_unlike_fused(shape)
    if isinstance(model, ResNet):
        unknown = {"dropout": 0.0, "stochastic_depth": 0.0, "layer_decay": 1.0}
        if asked := [name for name, off in unknown.items() if getattr(config, name) != off] + config.means():
            raise ValueError(f"a ResNet has no {', '.join(asked)}: leave it out")
    model.card.class_names, model.card.training = data.class_names, None  # what a checkpoint had learned is past
    for name in ("class names", "preprocessing"):  # assumed of the checkpoint: what is trained so has them for sure
        model.card.report.assumed.pop(name, None)
    return model.train()


def _refuse_unlike_fused(shape: ViTConfig) -> None:
    if unlike := [f"{name}={getattr(shape, name)}" for name, value in FUSED.items() if getattr(shape, name) != value]:
        message = "fused works for GELU networks whose layers all have biases"
        raise ValueError(f"{message}, and this one has {', '.join(unlike)}: leave it out")


def _fresh(config: TrainConfig, data: ImageDataset | Streamed) -> Model:
    classes = len(data.class_names)
    if (known := resnet_config(config.model, classes=classes)) is not None:
        if config.channels == 1:
            raise ValueError("a ResNet takes colour images: leave --channels out")
        model: Model = ResNet(replace(known, image_size=config.image_size or known.image_size))
        channels = 3
    else:
        changes: dict[str, Any] = {
            "dropout": config.dropout,
            "stochastic_depth": config.stochastic_depth,
            "classes": classes,
        }
        if config.image_size is not None:
            changes["image_size"] = config.image_size
        if config.channels is not None:
            changes["channels"] = config.channels
        if Path(config.model).exists():
            message = "to begin with its weights, use vitreous finetune or --pretrained"
            raise ValueError(
                f"{config.model} is a checkpoint, and training from scratch takes a variant's name: {message}"
            )
        shape = variant(config.model, **changes)
        model, channels = ViT(shape), shape.channels
    size = _pair(model.config.image_size)
    shorter = min(size) if max(size) <= SMALL else round(min(size) * 8 / 7)
    resize: int | tuple[int, int] = shorter if size[0] == size[1] else size
    mean, std = STATISTICS["half"]
    preprocess = Preprocess(size=size, resize=resize, mean=mean[:channels], std=std[:channels])
    model.card = Card(name=config.model, preprocess=preprocess, origin="trained", family=type(model).__name__)
    return model


def _pretrained(config: TrainConfig, data: ImageDataset | Streamed, say: Callable[[str], object]) -> Model:
    model = load(config.model, image_size=config.image_size)
    if isinstance(model, ResNet) and config.image_size is not None:  # it takes any size, and was loaded at its own
        model.config = replace(model.config, image_size=config.image_size)
        model.card.preprocess = model.card.preprocess.with_size(_pair(config.image_size))
    for line in model.card.report.remarks():
        say(line)
    card = model.card
    if config.channels is not None and config.channels != len(card.preprocess.mean):
        raise ValueError(
            f"{config.model} takes images of {len(card.preprocess.mean)} channels, not {config.channels}: leave "
            "--channels out"
        )
    shape, weights = model.config, model.state_dict()
    if isinstance(shape, ViTConfig):  # what is dropped is this run's choice, not that of the one before
        wanted = replace(shape, dropout=config.dropout, stochastic_depth=config.stochastic_depth)
        if wanted != shape:
            model = ViT(wanted)
            model.load_state_dict(weights)
            model.card = card
    if card.head == "classifier" and card.class_names == data.class_names:
        say("the data's classes are the checkpoint's own: its head goes on learning")
    else:
        say(f"a fresh head for {len(data.class_names)} classes takes the place of the one for {model.config.classes}")
        model.reset_classifier(len(data.class_names))
        card.head = "classifier"
    return model


def _pair(size: int | tuple[int, int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else size
