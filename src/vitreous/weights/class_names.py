"""The class names of a checkpoint: those that its config files state, else ImageNet's for 1,000 classes."""

from collections.abc import Mapping
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from runpy import run_path
from typing import Any

from vitreous.weights.card import LoadReport
from vitreous.weights.fetch import CheckpointFiles

Names = tuple[str, ...] | None


def imagenet_names() -> tuple[str, ...]:
    """Return ImageNet-1k's class names, which are assumed for 1000 classes, as torchvision spells them."""
    package = find_spec("torchvision")
    path = Path(package.origin).parent / "models/_meta.py" if package and package.origin else None
    if path is None or not path.is_file():
        from torchvision.models._meta import _IMAGENET_CATEGORIES

        return tuple(_IMAGENET_CATEGORIES)
    # run this one file, which holds nothing but lists: importing torchvision would take a second
    return tuple(run_path(str(path))["_IMAGENET_CATEGORIES"])


def imagenet_wordnet_ids() -> tuple[str, ...]:
    """Return the WordNet ids of ImageNet-1k's class names, such as n03028079, in class order."""
    return tuple((resources.files("vitreous.weights") / "imagenet_wordnet_ids.txt").read_text().split())


def class_names(files: CheckpointFiles, sidecar: Mapping[str, Any], classes: int, report: LoadReport) -> Names:
    """Return a checkpoint's class names; if they are assumed, the report states it."""
    names = _stated_names(files, sidecar)
    if names is not None or classes != 1000:  # names of another number of classes are those of another model
        return names if names is not None and len(names) == classes else None
    report.assumed["class names"] = "ImageNet-1k's names (there are 1,000 classes)"
    return imagenet_names()


def _stated_names(files: CheckpointFiles, sidecar: Mapping[str, Any]) -> Names:
    """Return the class names that a checkpoint's config files state."""
    if files.weights_enum is not None:
        return tuple(files.weights_enum.meta["categories"])
    by_index = sidecar.get("id2label")
    if isinstance(by_index, Mapping) and by_index and all(str(key).isdecimal() for key in by_index):
        names = tuple(str(by_index[key]) for key in sorted(by_index, key=int))
        return None if all(name.startswith("LABEL_") for name in names) else names
    for section in (sidecar, sidecar.get("pretrained_cfg") or {}):
        if isinstance(listed := section.get("label_names") or section.get("class_names"), list):
            return tuple(str(name) for name in listed)
    return None
