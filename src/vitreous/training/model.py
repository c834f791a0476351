"""The model of a run: build it with fresh or pre-trained weights, and choose the forward pass that trains it."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.data.image_dataset import ImageDataset
from vitreous.data.preprocess import STATISTICS, Preprocess
from vitreous.models.last_block import logits_only
from vitreous.models.local_start import start_locally
from vitreous.models.resnet import ResNet, ResNetConfig, resnet_config
from vitreous.models.timm_classifier import TimmClassifier, TimmConfig, split_timm
from vitreous.models.variants import split_changes, variant
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.predict.words import begin_with_words
from vitreous.runtime.wording import count
from vitreous.speed.training_forward import has_narrow_heads, on_cpu, shares_graph, training_logits
from vitreous.training.config import TrainConfig
from vitreous.training.stream_batches import StreamedData
from vitreous.weights.card import Card
from vitreous.weights.load import Model, load

FUSED = {
    "activation": "gelu",
    "swiglu": False,
    "attention_norm": False,
    "mlp_norm": False,
    "qkv_bias": True,
    "branch_bias": True,
}
"""What `fused` needs of a ViT whose blocks are plain: its kernels are in `speed/training_forward.py`."""
SMALL = 64  # up to this size images are not cropped; larger ones lose an eighth at the edges, as usual

Forward = Callable[[Model, Tensor], Tensor]
"""Model and images `[b c h w]` → logits `[b classes]`."""


def build_model(config: TrainConfig, data: ImageDataset | StreamedData, log: Callable[[str], object] = print) -> Model:
    """Build the model of a run on the CPU, with its card; fresh weights are drawn from the config's seed."""
    torch.manual_seed(config.seed)
    model = _pretrained(config, data, log) if config.pretrained else _fresh(config, data)
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
        _check_fused(shape)
    if not isinstance(model, ViT):
        kind = "ResNet" if isinstance(model, ResNet) else "timm classifier"
        if config.optimizer == "muon":
            raise ValueError(f"muon is for the blocks of a ViT: choose adamw or sgd for a {kind}")
        unknown = {"dropout": 0.0, "stochastic_depth": 0.0, "layer_decay": 1.0, "initial": "normal"}
        if asked := [name for name, off in unknown.items() if getattr(config, name) != off] + config.forward_options():
            raise ValueError(f"a {kind} has no {', '.join(asked)}: leave it out")
    if isinstance(model, TimmClassifier):
        _check_timm(config, data)
    card = model.card
    card.class_names, card.training = data.class_names, None  # the checkpoint's own are replaced
    card.task, card.independent, card.thresholds = data.task, data.task == "multilabel", None
    numbers = data.targets if isinstance(data, ImageDataset) else data.numbers
    card.standard = _mean_and_std(numbers) if numbers is not None and data.task == "regress" else None
    if data.task == "segment":
        card.preprocess = card.preprocess.with_fit("squash")  # every pixel of an image gets a class
    model.card.report.assumed.pop("preprocessing", None)  # if it was assumed: the trained model has it for certain
    return model.train()


def _mean_and_std(targets: NDArray[np.float32]) -> tuple[tuple[float, float], ...]:
    """Return mean and standard deviation of each number for the model that learns to predict them: from `[n k]`."""
    columns = targets.astype(np.float64)
    return tuple(zip(columns.mean(axis=0).tolist(), columns.std(axis=0).tolist(), strict=True))


def _check_readout(config: TrainConfig, data: ImageDataset | StreamedData) -> None:
    """Raise if training needs a model with patch tokens to read, which a ResNet does not have."""
    if data.task == "segment" or config.readout != "own":
        raise ValueError("a ResNet has no patch tokens, which masks and --readout need: choose a ViT")


def _check_timm(config: TrainConfig, data: ImageDataset | StreamedData) -> None:
    """Raise for what a run cannot do with a classifier of timm's."""
    if data.task != "classify" or config.readout != "own":
        raise ValueError("a timm classifier learns one class of an image, by its own head: choose a ViT")
    if config.parallel == "fsdp":
        raise ValueError("parallel=fsdp does not work with a timm classifier: use ddp or one process")


def _new_head(model: Model, config: TrainConfig, data: ImageDataset | StreamedData) -> None:
    """Give the model of a run a new head for its data, read out as the config says."""
    outputs = len(data.class_names)
    if isinstance(model, ResNet):
        _check_readout(config, data)
        model.reset_classifier(outputs)
    elif isinstance(model, TimmClassifier):
        _check_timm(config, data)
        model.reset_classifier(outputs)
    elif data.task == "segment":
        model.reset_dense(outputs, "decoder" if config.readout == "decoder" else "linear")
    else:
        cast(ViT, model).reset_classifier(outputs, "attention" if config.readout == "attention" else None)


def _check_fused(shape: ViTConfig) -> None:
    """Raise if the model built for a run is not as plain as `fused` needs it."""
    unlike = [f"{name}={getattr(shape, name)}" for name, value in FUSED.items() if getattr(shape, name) != value]
    if not shape.plain:
        unlike.append("other blocks than the paper's")
    if found := ", ".join(unlike):
        raise ValueError(
            f"fused needs a plain GELU network whose layers all have biases, this one has {found}: leave it out"
        )


def _check_stated(name: str, kind: type, changes: Mapping[str, Any]) -> None:
    """Raise if a field that follows the name of a run's model contradicts a setting of the run."""
    for field, value in split_changes(name, kind)[1].items():
        if changes.get(field) not in (None, value):
            raise ValueError(
                f"{name} states {field}={value}, and the run has {field}={changes[field]}: make them equal"
            )


def _fresh(config: TrainConfig, data: ImageDataset | StreamedData) -> Model:
    """Build the model of a run with fresh weights."""
    classes = len(data.class_names)
    if (known := resnet_config(config.model, classes=classes)) is not None:
        _check_readout(config, data)
        _check_stated(config.model, ResNetConfig, {"channels": config.channels, "image_size": config.image_size})
        channels = config.channels or known.channels
        model: Model = ResNet(replace(known, image_size=config.image_size or known.image_size, channels=channels))
    elif (timm := split_timm(config.model)) is not None:
        if timm[1]:
            raise ValueError(f"{config.model} names weights: to start from them, use vitreous finetune or --pretrained")
        channels = config.channels or 3
        model = TimmClassifier(TimmConfig(timm[0], classes, config.image_size, channels))
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
            raise ValueError(
                f"{config.model} is a checkpoint, and training from scratch takes a variant's name: to start from its "
                "weights, use vitreous finetune or --pretrained"
            )
        _check_stated(config.model, ViTConfig, changes)
        shape = variant(config.model, **changes)
        model, channels = ViT(shape), shape.channels
        if config.initial == "local":
            start_locally(model)
        if data.task == "segment" or config.readout != "own":
            _new_head(model, config, data)
    size = model.config.size
    shorter = min(size) if max(size) <= SMALL else round(min(size) * 8 / 7)
    resize: int | tuple[int, int] = shorter if size[0] == size[1] else size
    mean, std = STATISTICS["half"]
    preprocess = Preprocess(size=size, resize=resize, mean=mean[:channels], std=std[:channels])
    family = "timm" if isinstance(model, TimmClassifier) else type(model).__name__
    model.card = Card(name=config.model, preprocess=preprocess, origin="trained", family=family)
    return model


def _pretrained(config: TrainConfig, data: ImageDataset | StreamedData, log: Callable[[str], object]) -> Model:
    """Build the model of a run from a checkpoint, with a new head for the run's classes."""
    model = load(config.model, image_size=config.image_size)
    model.card.report.assumed.pop("class names", None)  # the data's names replace them
    for line in model.card.report.remarks():
        log(line)
    card = model.card
    if config.channels is not None and config.channels != len(card.preprocess.mean):
        raise ValueError(
            f"{config.model} takes images of {len(card.preprocess.mean)} channels, not {config.channels}: leave "
            "--channels out"
        )
    shape, weights = model.config, model.state_dict()
    if isinstance(shape, ViTConfig):  # dropout is this run's choice, not the checkpoint's
        wanted = replace(shape, dropout=config.dropout, stochastic_depth=config.stochastic_depth)
        if wanted != shape:
            model = ViT(wanted)
            model.load_state_dict(weights)
            model.card = card
    if config.head == "text":
        begin_with_words(model, data.class_names, config.template, note=log)
    elif _keeps_head(card, config, data):
        log("the data's classes are the checkpoint's own: its head is kept")
    else:
        what = {"multilabel": "label", "regress": "number"}.get(data.task, "class")
        log(f"a new head for {count(len(data.class_names), what)} replaces the one for {model.config.classes:,}")
        _new_head(model, config, data)
    card.head = "classifier"
    return model


def _keeps_head(card: Card, config: TrainConfig, data: ImageDataset | StreamedData) -> bool:
    """Return whether a checkpoint's head answers what the run learns; numbers begin anew, in the data's own units."""
    same = card.head == "classifier" and card.task == data.task and card.class_names == data.class_names
    return same and config.readout == "own" and data.task != "regress"


def choose_forward(
    model: Model, device: torch.device, config: TrainConfig | None = None, *, sharded: bool = False
) -> Forward:
    """Choose the forward pass of a run's model: on a CPU without needless work, on a GPU as `config` asks.

    Without a config (for evaluation) its memory and speed options are off.
    """
    if sharded:  # FSDP2 gathers a block when it is called as a whole
        return call_model
    if not isinstance(model, ViT):
        if device.type == "cpu":
            return _on_cpu(call_model)
        return _call_channels_last if is_convolutional(model) else call_model
    forward: Forward = logits_only if device.type == "cpu" else call_model
    in_parts = config is not None and compiles_parts(model, config)
    if config is not None and config.forward_options():
        residual = torch.bfloat16 if config.residual == "bf16" else None
        options = {"fused": config.fused, "recompute": config.recompute, "in_parts": in_parts}
        forward = partial(training_logits, residual=residual, **options)  # type: ignore[arg-type]
    if device.type != "cpu" or in_parts:  # compiled code keeps torch's products
        return forward
    return _on_cpu(forward)


def _on_cpu(forward: Forward) -> Forward:
    """Let the model of a run use a CPU's fastest products and attention, backward too."""
    return lambda model, x: on_cpu(partial(forward, model), has_narrow_heads(model), x)


def compiles_parts(model: Model, config: TrainConfig) -> bool:
    """Return whether the model of a run is compiled in parts, of which one serves all blocks."""
    dtype = torch.bfloat16 if config.precision == "bf16" else torch.float32
    return config.compile and config.fused and shares_graph(model, dtype)


def is_convolutional(model: Model) -> bool:
    """Return whether a run's model is fastest on a GPU with channels last: a ResNet, or timm's with batch norms."""
    return isinstance(model, ResNet) or (isinstance(model, TimmClassifier) and model.has_batch_norm())


def call_model(model: Model, x: Tensor) -> Tensor:
    """Compute the logits of a run's model by its own forward pass."""
    logits: Tensor = model(x)
    return logits


def _call_channels_last(model: Model, x: Tensor) -> Tensor:
    """Compute the logits of a run's convolutional network on a GPU, with images in its weights' memory format."""
    return call_model(model, x.contiguous(memory_format=torch.channels_last))
