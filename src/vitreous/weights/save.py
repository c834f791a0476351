"""Models to files, in our own layout: `config.json` and `model.safetensors`. Every write is whole or not at all."""

import os
import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from vitreous.data.preprocess import HALF, IMAGENET_MEAN, IMAGENET_STD, Preprocess
from vitreous.models.vit import ViT, ViTConfig
from vitreous.runtime.files import write_atomic, write_json
from vitreous.weights.card import Card
from vitreous.weights.keymap import Tensors

if TYPE_CHECKING:
    from vitreous.models.resnet import ResNet


def save(model: "ViT | ResNet", folder: str | Path) -> list[Path]:
    """Write a model with its preprocessing and class names; `load(folder)` gives it back.

    >>> import tempfile
    >>> from vitreous.models.variants import variant
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [path.name for path in save(ViT(variant("vit_femto_patch4_32")), folder)]
    ['model.safetensors', 'config.json']
    """
    folder = Path(folder)
    tensors = {key: value.detach().cpu().contiguous() for key, value in model.state_dict().items()}
    return [
        write_safetensors(folder / "model.safetensors", tensors),
        write_json(folder / "config.json", describe(model, folder.name)),
    ]


def describe(model: "ViT | ResNet", name: str = "") -> dict[str, Any]:
    """What `config.json` holds: the model's shape, its preprocessing and its class names."""
    config, card = model.config, model.card
    if card is None:
        if not isinstance(config, ViTConfig):
            raise ValueError("a ResNet is saved with its preprocessing: set model.card")
        card = Card(name=name, preprocess=usual_preprocess(config))
    own = {"version": 1, "config": asdict(config), **card.described()}
    return {"vitreous": own, "num_classes": config.classes}


def usual_preprocess(config: ViTConfig) -> Preprocess:
    """For a model that was made in memory: ImageNet's statistics for colour, 0.5 for grey, no crop."""
    mean, std = (HALF[:1], HALF[:1]) if config.channels == 1 else (IMAGENET_MEAN, IMAGENET_STD)
    return Preprocess(size=config.size, resize=config.size, mean=mean, std=std)


def write_safetensors(path: Path, tensors: Tensors) -> Path:
    """Tensors as safetensors, whole or not at all; a full disk is an `OSError` as everywhere."""

    def write(temporary: Path) -> None:
        try:
            save_file(tensors, temporary, metadata={"format": "pt"})
        except SafetensorError as error:
            if (failed := re.search(r"os error (\d+)", str(error))) is None:
                raise
            raise OSError(int(failed[1]), os.strerror(int(failed[1])), str(path)) from error  # a full disk is one

    return write_atomic(path, write)


def write_pickle(path: Path, tensors: Tensors) -> Path:
    """Tensors as `torch.save` writes them, whole or not at all."""
    return write_atomic(path, lambda temporary: torch.save(tensors, temporary))


def write_npz(path: Path, tensors: Tensors) -> Path:
    """Tensors as NumPy's arrays, whole or not at all."""
    arrays = {key: value.numpy() for key, value in tensors.items()}

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:  # given a name, NumPy would add a suffix of its own
            np.savez(file, **arrays)  # type: ignore[arg-type]

    return write_atomic(path, write)
