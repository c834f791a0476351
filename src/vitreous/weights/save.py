"""`save`: write our own model folders, weights and `config.json`; write safetensors, pickle and npz files.

Weights are `model.safetensors` under timm's keys (`formats/timm.py`). `config.json` holds everything else under
`"vitreous"`: the version of the layout, the model's config, preprocessing, class names, how positions are resized,
source and training. `saved_config.py` reads it.
"""

import os
import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from vitreous.inside.artifacts import has_registers
from vitreous.models.dense_head import RegionHead
from vitreous.models.text import SentenceHead
from vitreous.models.vit import ViT
from vitreous.runtime.files import write_arrays, write_atomic, write_json
from vitreous.weights.card import card_of
from vitreous.weights.keymap import Tensors
from vitreous.weights.saved_config import VERSION

if TYPE_CHECKING:
    from vitreous.models.resnet import ResNet
    from vitreous.models.timm_classifier import TimmClassifier


def save(model: "ViT | ResNet | TimmClassifier", folder: str | Path) -> list[Path]:
    """Save a model with its preprocessing and class names to `folder`; `load(folder)` reads it.

    >>> import tempfile
    >>> from vitreous.models.variants import variant
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [path.name for path in save(ViT(variant("vit_femto_patch4_32")), folder)]
    ['model.safetensors', 'config.json']
    """
    folder = Path(folder)
    check_head(model)
    description = describe_model(model, folder.name)  # first: a model that cannot be described is not written
    held: Any = model.network if hasattr(model, "network") else model  # timm's keys of a timm classifier
    tensors = {key: value.detach().cpu().contiguous() for key, value in held.state_dict().items()}
    return [
        write_safetensors(folder / "model.safetensors", tensors),
        write_json(folder / "config.json", description),
    ]


def check_head(model: torch.nn.Module) -> None:
    """Raise if the classes of a model to save are words, of which only a text tower can make features again."""
    if isinstance(getattr(model, "head", None), SentenceHead):
        raise ValueError(
            "words as classes are not stored: save the model without them and name them again, or export it as a graph"
        )


def write_safetensors(path: Path, tensors: Tensors) -> Path:
    """Save a model's tensors as safetensors; a full disk is an `OSError`, as for other files."""

    def write(temporary: Path) -> None:
        try:
            save_file(tensors, temporary, metadata={"format": "pt"})
        except SafetensorError as error:
            if (code := re.search(r"os error (\d+)", str(error))) is None:
                raise
            raise OSError(int(code[1]), os.strerror(int(code[1])), str(path)) from error

    return write_atomic(path, write)


def write_pickle(path: Path, tensors: Tensors) -> Path:
    """Save a model's tensors with `torch.save`."""
    return write_atomic(path, lambda temporary: torch.save(tensors, temporary))


def write_npz(path: Path, tensors: Tensors) -> Path:
    """Save a model's tensors to an npz file."""
    return write_arrays(path, {key: value.numpy() for key, value in tensors.items()}, compressed=False)


def describe_model(model: "ViT | ResNet | TimmClassifier", name: str = "") -> dict[str, Any]:
    """Return what is saved of a model besides its weights: its config, its preprocessing and its class names.

    It is the content of `config.json`.
    """
    if not hasattr(model, "card") or not hasattr(model, "config"):
        raise ValueError(f"expected a model of vitreous, got a {type(model).__name__}: pass what `load` returns")
    if has_registers(model):
        raise ValueError("test-time registers are not stored: save the model without, load it with test_time_registers")
    card, dense = card_of(model, name), getattr(model.config, "dense", "none") != "none"
    if isinstance(getattr(model, "head", None), RegionHead):
        raise ValueError("one pixel's class is not stored: save the model that has a class for each pixel")
    if (card.task == "segment") != dense:
        kind = "a dense head" if dense else "no dense head"
        raise ValueError(f"the model has {kind}, and its card says task={card.task!r}: set model.card.task")
    classes = model.config.classes
    if card.class_names is not None and len(card.class_names) != classes:
        found = f"{len(card.class_names)} class names for {classes} outputs"
        raise ValueError(f"the card has {found}: set model.card.class_names, to None if they are not known")
    own = {"version": VERSION, "config": asdict(model.config), **card.to_dict()}
    return {"vitreous": own, "num_classes": model.config.classes}
