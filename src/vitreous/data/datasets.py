"""Labelled pictures by name or folder: `open_set("digits")`, `open_set("pics/")`.

A `PictureSet` gives pictures one at a time and knows its labels without opening any.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitreous.data.pictures import find_pictures

if TYPE_CHECKING:
    from PIL.Image import Image

SPLITS = {"train": ("train", "training"), "test": ("test", "val", "valid", "validation")}


@dataclass(frozen=True)
class PictureSet:
    """Pictures with a class each."""

    name: str
    class_names: tuple[str, ...]
    labels: tuple[int, ...]
    """One index into `class_names` a picture."""
    picture: Callable[[int], Image | Path]
    """The picture of an index, or the file that holds it."""

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: Sequence[int]) -> PictureSet:
        """The same set with these pictures alone."""
        labels, picture = tuple(self.labels[i] for i in indices), self.picture
        return replace(self, labels=labels, picture=lambda i: picture(indices[i]))

    def spread(self, limit: int) -> PictureSet:
        """At most `limit` pictures, taken evenly over the whole set."""
        if limit < 1:
            raise ValueError(f"limit must be at least 1, got {limit}")
        if limit >= len(self):
            return self
        return self.take([i * len(self) // limit for i in range(limit)])


def open_set(name: str | Path, split: str = "test", root: Path | None = None) -> PictureSet:
    """A named set from `DATASETS`, or a folder with a sub-folder for each class.

    A folder may hold `train/` and `val/` or `test/` folders of such; `split` chooses. Named sets are downloaded to
    `root` on first use.

    >>> len(open_set("digits")), open_set("digits").class_names[:3]
    (360, ('0', '1', '2'))
    """
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    if str(name) in DATASETS and not Path(name).is_dir():
        return DATASETS[str(name)](root or data_root(), split)
    folder = Path(name).expanduser()
    if not folder.is_dir():
        known = ", ".join(DATASETS)
        raise FileNotFoundError(f"{name} is neither a folder nor a known data set ({known})")
    for part in SPLITS[split]:
        if (folder / part).is_dir():
            return from_folder(folder / part)
    if split == "train":
        raise FileNotFoundError(f"{folder} has no train/ folder: expected {folder}/train/<class>/<picture>")
    if any((folder / part).is_dir() for part in SPLITS["train"]):
        raise FileNotFoundError(
            f"{folder} has a train/ but no test/ or val/ folder: add {folder}/test/<class>/<picture>"
        )
    return from_folder(folder)


def data_root() -> Path:
    """Where downloaded sets are kept: `VITREOUS_DATA`, else the user's cache."""
    return Path(os.environ.get("VITREOUS_DATA") or Path.home() / ".cache/vitreous/data")


def from_folder(folder: Path) -> PictureSet:
    """A set from `<folder>/<class>/<picture>`."""
    classes = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not classes:
        raise ValueError(f"{folder} has no sub-folders: expected one for each class, {folder}/<class>/<picture>")
    paths: list[Path] = []
    labels: list[int] = []
    for label, path in enumerate(classes):
        found, _ = find_pictures([path])
        paths += found
        labels += [label] * len(found)
    if not paths:
        raise ValueError(f"{folder} has {len(classes)} sub-folders but no pictures in them")
    return PictureSet(folder.name, tuple(path.name for path in classes), tuple(labels), paths.__getitem__)


def digits(root: Path, split: str) -> PictureSet:
    """scikit-learn's 1,797 handwritten digits of 8×8 px, inside its wheel; every fifth is held out for testing."""
    import numpy as np
    from PIL.Image import fromarray
    from sklearn.datasets import load_digits

    found = load_digits()
    pixels = np.round(found.images * (255 / 16)).astype(np.uint8)  # 17 levels of grey
    keep = [i for i in range(len(pixels)) if (i % 5 == 0) == (split == "test")]
    whole = PictureSet(
        "digits",
        tuple(str(i) for i in range(10)),
        tuple(int(label) for label in found.target),
        lambda i: fromarray(pixels[i]),
    )
    return whole.take(keep)


def _torchvision(kind: str, **splits: dict[str, Any]) -> Callable[[Path, str], PictureSet]:
    """A set that torchvision knows how to download; `splits` are its arguments for `train` and `test`."""

    def build(root: Path, split: str) -> PictureSet:
        import torchvision.datasets

        create = getattr(torchvision.datasets, kind)
        try:
            found = create(root, **splits[split])
        except (RuntimeError, OSError) as error:  # no network, no space, or (ImageNet) nothing to download
            raise FileNotFoundError(f"{kind} is not in {root} and could not be downloaded: {error}") from error
        labels = next(getattr(found, n) for n in ("targets", "_labels") if hasattr(found, n))
        names = tuple(name[0] if isinstance(name, tuple) else str(name) for name in found.classes)
        return PictureSet(kind, names, tuple(int(label) for label in labels), lambda i: found[i][0])

    first = "downloaded on first use" if "download" in splits["train"] else "to be put into the data folder by hand"
    build.__doc__ = f"torchvision's {kind}, {first}."
    return build


_FLAG: dict[str, dict[str, Any]] = {
    "train": {"train": True, "download": True},
    "test": {"train": False, "download": True},
}
DATASETS: dict[str, Callable[[Path, str], PictureSet]] = {
    "digits": digits,
    "mnist": _torchvision("MNIST", **_FLAG),
    "cifar10": _torchvision("CIFAR10", **_FLAG),
    "cifar100": _torchvision("CIFAR100", **_FLAG),
    "flowers102": _torchvision(
        "Flowers102", train={"split": "train", "download": True}, test={"split": "test", "download": True}
    ),
    "pets": _torchvision(
        "OxfordIIITPet", train={"split": "trainval", "download": True}, test={"split": "test", "download": True}
    ),
    "imagenet": _torchvision("ImageNet", train={"split": "train"}, test={"split": "val"}),
}
