"""`TorchvisionDataset`: torchvision's datasets by name (MNIST, CIFAR, flowers, pets, ImageNet), mostly downloaded."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitreous.data.image_dataset import ImageDataset
from vitreous.data.sources.hub import one_line

if TYPE_CHECKING:
    from PIL.Image import Image


class TorchvisionDataset:
    """A dataset of torchvision's; `splits` are the arguments of each split."""

    def __init__(self, kind: str, **splits: dict[str, Any]) -> None:
        self.kind, self.splits = kind, splits
        first = "downloaded on first use" if "download" in splits["train"] else "to be put into the data folder by hand"
        self.__doc__ = f"torchvision's {kind}, {first}."

    def __call__(self, root: Path, split: str) -> ImageDataset:
        import torchvision.datasets

        kind = self.kind
        try:
            found = getattr(torchvision.datasets, kind)(root, **self.splits[split])
        except (RuntimeError, OSError) as error:  # no network, no space, or (ImageNet) nothing to download
            reason = one_line(error)
            if "download" not in self.splits[split]:
                raise FileNotFoundError(f"{kind} is not in {root} and has to be put there: {reason}") from error
            raise FileNotFoundError(
                f"{kind} is not in {root} and could not be downloaded ({reason}): check the network, or name a folder "
                "of images or parquet files"
            ) from error
        labels = next(getattr(found, n) for n in ("targets", "_labels") if hasattr(found, n))
        return ImageDataset(
            kind,
            tuple(name[0] if isinstance(name, tuple) else str(name) for name in found.classes),
            tuple(int(label) for label in labels),
            partial(_image, found),
            partial(_name, found, f"{kind} {split}"),
            partial(str, f"torchvision {kind} {split} {len(labels)}"),
        )


def _file(found: Any, i: int) -> Path | None:
    """Return the file of an image, if a torchvision dataset has files: we open it with `read_image`."""
    for attribute in ("samples", "_image_files", "_images"):  # ImageNet, Flowers102, OxfordIIITPet
        if files := getattr(found, attribute, None):
            return Path(files[i][0] if attribute == "samples" else files[i])
    return None


def _image(found: Any, i: int) -> Image | Path:
    """Return an image of torchvision's dataset, as its file if it has one."""
    return _file(found, i) or found[i][0]


def _name(found: Any, title: str, i: int) -> str:
    """Name an image of torchvision's dataset, by its file or its number."""
    path = _file(found, i)
    return f"{title} #{i}" if path is None else str(path)


def _splits(**names: str) -> dict[str, dict[str, Any]]:
    """Spell out torchvision's arguments for each split."""
    return {split: {"split": name, "download": True} for split, name in names.items()}


_FLAG: dict[str, dict[str, Any]] = {s: {"train": s == "train", "download": True} for s in ("train", "test")}
TORCHVISION_DATASETS = {
    "mnist": TorchvisionDataset("MNIST", **_FLAG),
    "cifar10": TorchvisionDataset("CIFAR10", **_FLAG),
    "cifar100": TorchvisionDataset("CIFAR100", **_FLAG),
    "flowers102": TorchvisionDataset("Flowers102", **_splits(train="train", validation="val", test="test")),
    "pets": TorchvisionDataset("OxfordIIITPet", **_splits(train="trainval", test="test")),
    "imagenet": TorchvisionDataset("ImageNet", train={"split": "train"}, test={"split": "val"}),
}
