"""Write models to files: `config.json` and `model.safetensors` in a folder, or tensors alone. Every write is atomic."""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from vitreous.models.vit import ViT
from vitreous.runtime.files import write_atomic, write_json
from vitreous.weights.formats.vitreous import describe_model
from vitreous.weights.keymap import Tensors

if TYPE_CHECKING:
    from vitreous.models.resnet import ResNet


def save(model: "ViT | ResNet", folder: str | Path) -> list[Path]:
    """Write a model with its preprocessing and class names to `folder`; `load(folder)` reads it.

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
        write_json(folder / "config.json", describe_model(model, folder.name)),
    ]


def write_safetensors(path: Path, tensors: Tensors) -> Path:
    """Write tensors as safetensors; a full disk is an `OSError`, as for other files."""

    def write(temporary: Path) -> None:
        try:
            save_file(tensors, temporary, metadata={"format": "pt"})
        except SafetensorError as error:
            if (code := re.search(r"os error (\d+)", str(error))) is None:
                raise
            raise OSError(int(code[1]), os.strerror(int(code[1])), str(path)) from error

    return write_atomic(path, write)


def write_pickle(path: Path, tensors: Tensors) -> Path:
    """Write tensors with `torch.save`."""
    return write_atomic(path, lambda temporary: torch.save(tensors, temporary))


def write_npz(path: Path, tensors: Tensors) -> Path:
    """Write tensors as NumPy arrays."""
    arrays = {key: value.numpy() for key, value in tensors.items()}

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:  # given a path, NumPy would add a suffix to it
            np.savez(file, **arrays)  # type: ignore[arg-type]

    return write_atomic(path, write)
