"""What lies beside the weights: preprocessing and class names, from whichever file tells them."""

import json
from collections.abc import Mapping
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from runpy import run_path
from typing import Any

from vitreous.data.preprocess import CLIP_MEAN, CLIP_STD, HALF, IMAGENET_MEAN, IMAGENET_STD, Preprocess
from vitreous.data.preprocess_configs import from_huggingface, from_timm, from_torchvision
from vitreous.weights.fetch import Source
from vitreous.weights.read import CheckpointError

Names = tuple[str, ...] | None
LARGEST = 64 * 2**20
"""Bytes of a config file that are read at the most: one with 21,843 labels has about 2 MB."""


def read_json(path: Path | None) -> dict[str, Any]:
    """A config file as a dict; empty where there is none."""
    if path is None:
        return {}
    if path.stat().st_size > LARGEST:
        raise CheckpointError(f"{path}: a config file of more than {LARGEST >> 20} MiB is not read")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: expected a JSON object, got a {type(value).__name__}")
    return value


def imagenet_names() -> tuple[str, ...]:
    """ImageNet-1k's class names, as torchvision spells them."""
    package = find_spec("torchvision")
    path = Path(package.origin).parent / "models/_meta.py" if package and package.origin else None
    if path is None or not path.is_file():
        from torchvision.models._meta import _IMAGENET_CATEGORIES

        return tuple(_IMAGENET_CATEGORIES)
    # the one file, which holds lists alone: importing torchvision for it would take a second
    return tuple(run_path(str(path))["_IMAGENET_CATEGORIES"])


def imagenet_wordnet_ids() -> tuple[str, ...]:
    """ImageNet-1k's WordNet ids, such as n03028079, in class order."""
    return tuple((files("vitreous.weights") / "imagenet_wordnet_ids.txt").read_text().split())


def class_names(source: Source, sidecar: Mapping[str, Any], classes: int) -> tuple[Names, str | None]:
    """The names of the classes and, where they were assumed, why."""
    names = _told_names(source, sidecar)
    if names is not None and len(names) == classes:
        return names, None
    if classes == 1000:
        return imagenet_names(), "ImageNet-1k's names (there are 1,000 classes)"
    return None, None


def _told_names(source: Source, sidecar: Mapping[str, Any]) -> Names:
    if source.weights_enum is not None:
        return tuple(source.weights_enum.meta["categories"])
    labels = sidecar.get("id2label")
    if isinstance(labels, Mapping) and labels and all(str(key).isdecimal() for key in labels):
        names = tuple(str(labels[key]) for key in sorted(labels, key=int))
        return None if all(name.startswith("LABEL_") for name in names) else names
    for place in (sidecar, sidecar.get("pretrained_cfg") or {}):
        if isinstance(listed := place.get("label_names") or place.get("class_names"), list):
            return tuple(str(name) for name in listed)
    return None


def preprocessing(
    source: Source, sidecar: Mapping[str, Any], format: str, size: tuple[int, int], channels: int
) -> tuple[Preprocess, str | None]:
    """How to prepare an image for a model of this size and, where that was assumed, why."""
    if source.weights_enum is not None:
        return from_torchvision(source.weights_enum.transforms()), None
    if source.preprocessor is not None:
        return from_huggingface(read_json(source.preprocessor), image_size=size), None
    pretrained = sidecar.get("pretrained_cfg") or sidecar
    if "mean" in pretrained and "std" in pretrained:
        return from_timm(dict(pretrained), image_size=size), None
    mean, std, why = usual(format, source)
    if channels != len(mean):
        mean, std, why = (0.5,) * channels, (0.5,) * channels, f"a model of {channels} channel(s)"
    settings = {"mean": list(mean), "std": list(std), "crop_pct": 0.9, "interpolation": "bicubic"}
    return from_timm(settings, image_size=size), f"as is usual for {why}"


def run_size(source: Source, trained_size: tuple[int, int]) -> tuple[int, int] | None:
    """The size that a Hugging Face processor prepares, where the model was trained at another.

    DINOv2 was trained at 518 px, but its processor crops to 224 and its library resizes positions as it runs.
    """
    if source.preprocessor is None:
        return None
    try:
        size = from_huggingface(read_json(source.preprocessor)).size
    except ValueError:  # a processor that leads to no one size
        return None
    return size if size != trained_size else None


def usual(format: str, source: Source) -> tuple[tuple[float, ...], tuple[float, ...], str]:
    """Mean and standard deviation that the family is usually trained with."""
    name = source.name.lower()
    if "clip" in format or "clip" in name:
        return CLIP_MEAN, CLIP_STD, "CLIP"
    if (
        format.startswith("google")
        or "augreg" in name
        or "flexivit" in name
        or (format == "huggingface" and "deit" not in name)
    ):
        return HALF, HALF, "Google's ViTs"
    if format == "timm" and Path(name).name.startswith("vit_") and "dino" not in name and "mae" not in name:
        return HALF, HALF, "timm's vit_* models"
    return IMAGENET_MEAN, IMAGENET_STD, "models trained with ImageNet's statistics"
