"""`DATASETS` and `open_dataset`: labelled images by name, from a folder, from parquet files or from the Hub."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitreous.data.finding import find_images
from vitreous.data.image_dataset import SPELLINGS, DatasetSource, ImageDataset, digest, file_state, split_parts
from vitreous.data.sources.hub import PREFIX, hub_source, is_hub_name, one_line
from vitreous.data.sources.parquet import find_parquet, parquet_source

if TYPE_CHECKING:
    from PIL.Image import Image


def open_dataset(name: str | Path, split: str = "test", root: Path | None = None) -> ImageDataset:
    """Open a dataset: a name of `DATASETS`, a folder with a sub-folder for each class, parquet files, or a Hub name.

    A folder may hold `train/` and `val/` or `test/` folders of such; `split` chooses, and `train+validation` joins two.
    A dataset without splits is a test split (`open_split` divides it). Named datasets are downloaded to `root` on first
    use.

    >>> len(open_dataset("digits")), open_dataset("digits").class_names[:3]
    (360, ('0', '1', '2'))
    """
    split_parts(split)  # a misspelled split is found before a download
    return find_source(name, root).open(split)


def find_source(name: str | Path, root: Path | None = None) -> DatasetSource:
    """Find a dataset: a local folder or file comes first, then `DATASETS`, then the Hub."""
    path = Path(name).expanduser()
    if str(name) in DATASETS and not path.is_dir():
        build = DATASETS[str(name)]
        known = getattr(build, "splits", ("train", "test"))
        return DatasetSource(str(name), {split: partial(build, root or data_root(), split) for split in known})
    if not str(name).startswith(PREFIX):
        if files := find_parquet(name):
            return parquet_source(name, files)
        if path.is_dir():
            return folder_source(path)
    if is_hub_name(name):
        return hub_source(str(name), root)
    if path.is_file():
        raise ValueError(f"{name} is a single file: expected a folder with a sub-folder for each class, or .parquet")
    if path.suffix == ".parquet":
        raise FileNotFoundError(f"there is no parquet file {name}: check the path")
    close = difflib.get_close_matches(str(name), DATASETS, n=1)
    hint = f"did you mean {close[0]}?" if close else "give a folder with a sub-folder for each class, or one of those"
    raise FileNotFoundError(f"{name} is neither a folder nor a known dataset ({', '.join(DATASETS)}): {hint}")


def from_folder(folder: Path) -> ImageDataset:
    """Open `<folder>/<class>/<image>` as a dataset."""
    classes = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not classes:
        raise ValueError(f"{folder} has no sub-folders: expected one for each class, {folder}/<class>/<image>")
    paths: list[Path] = []
    labels: list[int] = []
    for label, path in enumerate(classes):
        found, _ = find_images([path])
        paths += found
        labels += [label] * len(found)
    if not paths:
        raise ValueError(
            f"{folder} has {len(classes)} sub-folders but no images in them: expected {folder}/<class>/<image>"
        )
    return ImageDataset(
        name=folder.name or str(folder),
        class_names=tuple(path.name for path in classes),
        labels=tuple(labels),
        image=paths.__getitem__,
        name_of=partial(_name_of, paths),
        version=partial(fingerprint_files, folder, paths),
    )


def folder_source(folder: Path) -> DatasetSource:
    """Find the splits of a folder by the names of its sub-folders; without such names it is one dataset."""
    parts = {part: folder / part for part in SPELLINGS if (folder / part).is_dir()}
    return DatasetSource(
        name=str(folder),
        splits={part: partial(from_folder, path) for part, path in parts.items()},
        whole=None if parts else partial(from_folder, folder),
        part="{}/ folder",
        layout=f"{folder}/{{}}/<class>/<image>",
        folder=folder,
    )


def fingerprint_files(folder: Path, paths: Sequence[Path]) -> str:
    """Return a text that changes whenever a file is added, removed, renamed or written; no file is opened.

    The folder's path counts too: two folders unpacked from archives may agree in all names, sizes and times.
    """
    root = os.path.abspath(folder)
    return digest([root, *(text for path in paths for text in (os.path.relpath(path, folder), file_state(path)))])


def _name_of(paths: Sequence[Path], i: int) -> str:
    return str(paths[i])


def data_root() -> Path:
    """Return the folder of downloaded datasets: `VITREOUS_DATA`, else the user's cache."""
    return Path(os.environ.get("VITREOUS_DATA") or Path.home() / ".cache/vitreous/data")


def digits(root: Path, split: str) -> ImageDataset:
    """scikit-learn's 1,797 handwritten digits of 8×8 px, inside its wheel; every fifth is held out for testing."""
    import numpy as np
    import sklearn
    from sklearn.datasets import load_digits

    found = load_digits()
    pixels = np.round(found.images * (255 / 16)).astype(np.uint8)  # 17 levels of grey
    keep = [i for i in range(len(pixels)) if (i % 5 == 0) == (split == "test")]
    whole = ImageDataset(
        "digits",
        tuple(str(i) for i in range(10)),
        tuple(int(label) for label in found.target),
        partial(_from_pixels, pixels),
        version=partial(str, f"scikit-learn {sklearn.__version__} digits"),
    )
    return whole.take(keep)


def _from_pixels(pixels: Any, i: int) -> Image:
    from PIL.Image import fromarray

    return fromarray(pixels[i])


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
            partial(_from_torchvision, found),
            partial(_name_torchvision, found, f"{kind} {split}"),
            partial(str, f"torchvision {kind} {split} {len(labels)}"),
        )


def _file_torchvision(found: Any, i: int) -> Path | None:
    """Return the file of an image, if the dataset is made of files: we open it with `read_image`."""
    for attribute in ("samples", "_image_files", "_images"):  # ImageNet, Flowers102, OxfordIIITPet
        if files := getattr(found, attribute, None):
            return Path(files[i][0] if attribute == "samples" else files[i])
    return None


def _from_torchvision(found: Any, i: int) -> Image | Path:
    return _file_torchvision(found, i) or found[i][0]


def _name_torchvision(found: Any, title: str, i: int) -> str:
    path = _file_torchvision(found, i)
    return f"{title} #{i}" if path is None else str(path)


def _splits(**names: str) -> dict[str, dict[str, Any]]:
    return {split: {"split": name, "download": True} for split, name in names.items()}


_FLAG: dict[str, dict[str, Any]] = {s: {"train": s == "train", "download": True} for s in ("train", "test")}
DATASETS: dict[str, Callable[[Path, str], ImageDataset]] = {
    "digits": digits,
    "mnist": TorchvisionDataset("MNIST", **_FLAG),
    "cifar10": TorchvisionDataset("CIFAR10", **_FLAG),
    "cifar100": TorchvisionDataset("CIFAR100", **_FLAG),
    "flowers102": TorchvisionDataset("Flowers102", **_splits(train="train", validation="val", test="test")),
    "pets": TorchvisionDataset("OxfordIIITPet", **_splits(train="trainval", test="test")),
    "imagenet": TorchvisionDataset("ImageNet", train={"split": "train"}, test={"split": "val"}),
}
