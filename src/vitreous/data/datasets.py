"""`DATASETS`, `open_dataset`, `open_split`: images and targets by name (torchvision), folder, table, Hub; held out."""

from __future__ import annotations

import difflib
import hashlib
import os
import unicodedata
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vitreous.data.finding import find_images, nearest_path
from vitreous.data.image_dataset import (
    NOUNS,
    SPELLINGS,
    TASKS,
    DatasetSource,
    ImageDataset,
    count_names,
    fingerprint_files,
    join_datasets,
    list_some,
    split_parts,
)
from vitreous.data.sources.hub import PREFIX, hub_source, is_hub_name, one_line
from vitreous.data.sources.labels_csv import SUFFIXES as TABLE_SUFFIXES
from vitreous.data.sources.labels_csv import find_tables, open_table, table_source
from vitreous.data.sources.mask_folder import find_mask_folders, mask_source
from vitreous.data.sources.parquet import find_parquet, parquet_source
from vitreous.data.sources.table_targets import guess_task

if TYPE_CHECKING:
    from PIL.Image import Image

COARSE = 0.01  # the largest step between float32 numbers, as a share of their standard deviation
EXPECTED = {
    "classify": "a class for each image: a folder for each, or a table with a column label",
    "multilabel": "a table with a column labels (cat;outdoor), or with a column of 0 and 1 for each label",
    "regress": "a table with columns of numbers",
    "segment": "a folder with images/ and masks/",
}
"""Task → what its data look like, for messages."""


def open_dataset(
    name: str | Path, split: str = "test", root: Path | None = None, task: str | None = None
) -> ImageDataset:
    """Open a dataset: a name of `DATASETS`, a folder with a sub-folder for each class, a table, or a Hub name.

    A table is a .csv file with columns image and label (and perhaps split), or parquet files with the images inside. A
    folder with the Hub's metadata.csv or metadata.jsonl, or with a labels.csv, is read by that.

    `task` is one of `TASKS`, or None to guess it: a table may have several labels for each image, or numbers, and a
    folder may have `images/` and `masks/`.

    A folder may hold `train/` and `val/` or `test/` folders of such; `split` chooses, and `train+validation` joins two.
    A dataset without splits is a test split (`open_split` divides it). Named datasets are downloaded to `root` on first
    use.

    >>> len(open_dataset("digits")), open_dataset("digits").class_names[:3]
    (360, ('0', '1', '2'))
    """
    split_parts(split)  # a misspelled split is found before a download
    return find_source(name, root, task).open(split)


def open_split(
    name: str | Path,
    root: Path | None = None,
    held_out: float = 0.2,
    seed: int = 0,
    train: str = "train",
    task: str | None = None,
) -> tuple[ImageDataset, ImageDataset]:
    """Open a dataset for training: train and test images, of the same classes.

    `train` may be `train+validation`. A dataset without another split to test on is divided: about `held_out` of it are
    test images. `task` is one of `TASKS`, or None to guess it.

    >>> train, test = open_split("digits")
    >>> len(train), len(test)
    (1437, 360)
    """
    if not 0 < held_out < 1:
        raise ValueError(f"held_out is a share between 0 and 1, got {held_out}")
    source = find_source(name, root, task)
    parts = split_parts(train)
    if parts == ["train"] and source.whole is not None and source.spelled("train") is None:
        train_set, test = source.whole(), None
    else:
        used = source.names(parts)
        train_set = join_datasets(_same_classes([source.splits[part]() for part in used]))
        test = source.spelled("test", without=used)  # train images are not tested on
    if source.task == "classify":
        _check_learnable(train_set, source)
    if test is None:
        found = divide(train_set, _keys(train_set, source.folder), held_out, seed)
    else:
        found = train_set, _matched(train_set, source.splits[test](), source, test)
    check_targets(found[0])
    return found


def describe_task(data: ImageDataset) -> str:
    """Say in a line what is learned from a dataset: its task, guessed or named, and its classes.

    >>> describe_task(ImageDataset("zoo", ("cat", "dog"), (0, 1), Path))
    "task: classify (2 classes: 'cat', 'dog')"
    """
    layout = "images/ and masks/, " if data.task == "segment" else ""
    return f"task: {data.task} ({layout}{count_names(data)}: {list_some(data.class_names, 4)})"


def find_source(name: str | Path, root: Path | None = None, task: str | None = None) -> DatasetSource:
    """Find a dataset: a local folder or file comes first, then `DATASETS`, then the Hub.

    `task` is one of `TASKS`, or None to guess it; a `ValueError` says what a dataset of that task looks like.
    """
    if task is not None and task not in TASKS:
        raise ValueError(f"unknown task {task!r}: choose from {', '.join(TASKS)}")
    source = _find_source(name, root, task)
    if task is not None and source.task != task:
        raise ValueError(f"{name} has {NOUNS[source.task]}, and --task {task} needs {EXPECTED[task]}")
    return source


def _find_source(name: str | Path, root: Path | None, task: str | None) -> DatasetSource:
    """Find a dataset by its name, folder or file; it may be of another task."""
    path = Path(name).expanduser()
    if str(name) in DATASETS and not path.is_dir():
        build = DATASETS[str(name)]
        known = getattr(build, "splits", ("train", "test"))
        return DatasetSource(str(name), {split: partial(build, root or data_root(), split) for split in known})
    if not str(name).startswith(PREFIX):
        masks = {} if task == "classify" else find_mask_folders(path)
        if task == "segment" and masks:
            return mask_source(path, masks)
        if tables := find_tables(path, labels=task not in ("multilabel", "regress")):
            return table_source(name, tables, task)
        if files := find_parquet(name):
            return parquet_source(name, files)
        if masks:
            return mask_source(path, masks)
        if path.is_dir():
            tables = {} if task or _has_classes(path) else find_tables(path, labels=False)
            guess = guess_task([open_table(table) for table in tables.values()]) if tables else "classify"
            return folder_source(path) if guess == "classify" else table_source(name, tables, guess)
    if is_hub_name(name):
        return hub_source(str(name), root)
    if path.is_file():
        raise ValueError(
            f"{name} is a single file: expected a folder with a sub-folder for each class, or .csv, .jsonl or .parquet"
        )
    if path.suffix in (*TABLE_SUFFIXES, ".parquet"):
        raise FileNotFoundError(f"there is no {path.suffix.removeprefix('.')} file {name}: check the path")
    close = difflib.get_close_matches(str(name), DATASETS, n=1)
    known = f"did you mean {close[0]}?" if close else "give a folder with a sub-folder for each class, or one of those"
    hint = nearest_path(path) or known
    raise FileNotFoundError(f"{name} is neither a folder nor a known dataset ({', '.join(DATASETS)}): {hint}")


def _has_classes(folder: Path) -> bool:
    """Return whether a dataset's folder, or one of a split in it, has two sub-folders or more: classes."""
    parts = [path for part in SPELLINGS if (path := folder / part).is_dir()] or [folder]
    return any(sum(path.is_dir() and path.name[0] != "." for path in part.iterdir()) > 1 for part in parts)


def from_folder(folder: Path) -> ImageDataset:
    """Open `<folder>/<class>/<image>` as a dataset."""
    classes = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not classes:
        expected = f"expected one for each class, {folder}/<class>/<image>"
        raise ValueError(f"{folder} has no sub-folders: {expected}{_table_hint(folder)}")
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


def _table_hint(folder: Path) -> str:
    """Name a table in a folder that has no classes: the labels may stand there."""
    found = sorted(path for path in folder.iterdir() if path.suffix in TABLE_SUFFIXES)
    return f", or name the table of labels: --data {found[0]}" if found else ""


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


def _name_of(paths: Sequence[Path], i: int) -> str:
    """Name an image of a dataset's folder by its path."""
    return str(paths[i])


def data_root() -> Path:
    """Return the folder of downloaded datasets: `VITREOUS_DATA`, else the user's cache."""
    return Path(os.environ.get("VITREOUS_DATA") or Path.home() / ".cache/vitreous/data")


# --- named datasets -------------------------------------------------------------------------------------------------


def digits(root: Path, split: str) -> ImageDataset:
    """scikit-learn's 1,797 handwritten digits of 8×8 px, inside its wheel; every fifth is held out for testing."""
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
    """Make an image from the array of pixels that a torchvision dataset holds."""
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
    """Return the file of an image, if a torchvision dataset has files: we open it with `read_image`."""
    for attribute in ("samples", "_image_files", "_images"):  # ImageNet, Flowers102, OxfordIIITPet
        if files := getattr(found, attribute, None):
            return Path(files[i][0] if attribute == "samples" else files[i])
    return None


def _from_torchvision(found: Any, i: int) -> Image | Path:
    """Return an image of torchvision's dataset, as its file if it has one."""
    return _file_torchvision(found, i) or found[i][0]


def _name_torchvision(found: Any, title: str, i: int) -> str:
    """Name an image of torchvision's dataset, by its file or its number."""
    path = _file_torchvision(found, i)
    return f"{title} #{i}" if path is None else str(path)


def _splits(**names: str) -> dict[str, dict[str, Any]]:
    """Spell out torchvision's arguments for each split."""
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


# --- train and test images ------------------------------------------------------------------------------------------


def divide(
    data: ImageDataset, keys: Sequence[str], held_out: float = 0.2, seed: int = 0
) -> tuple[ImageDataset, ImageDataset]:
    """Hold some images of a dataset out by a hash of each one's key, by class: a new image does not move the others.

    Each class with two images or more has at least one on each side; a single image is a train image. (Only an image
    that was moved for that may move back when its class grows.) The same holds for the images of each label, as far as
    no other label loses its last train image by that.

    >>> zoo = ImageDataset("zoo", ("cat", "dog"), (0, 0, 1, 1), Path)
    >>> [part.labels for part in divide(zoo, ["a", "b", "c", "d"])]
    [(0, 1), (0, 1)]
    """
    draws = [_draw(key, seed) for key in keys]
    members: dict[int, list[int]] = {}
    for i, label in enumerate(data.labels):
        members.setdefault(label, []).append(i)
    held: set[int] = set()
    for group in members.values():
        ranked = sorted(group, key=lambda i: (draws[i], keys[i]))
        count = sum(draws[i] < held_out for i in group)
        held.update(ranked[: min(max(count, 1), len(group) - 1)])
    if data.task == "multilabel":
        held = _share_labels(data, held, sorted(range(len(data)), key=lambda i: (draws[i], keys[i])))
    if not held:
        few = "one image a class" if data.task == "classify" else f"{len(data)} image"
        more = "to each class" if data.task == "classify" else "more"
        raise ValueError(f"{data.name} has {few}: none is left to test on; add some {more}")
    kept = [i for i in range(len(data)) if i not in held]
    return data.take(kept), data.take(sorted(held))


def _share_labels(data: ImageDataset, held: set[int], ranked: Sequence[int]) -> set[int]:
    """Move images of a divided dataset so that each label has one to learn from and, if possible, one to test on.

    `ranked` are the images in the order in which they are held out.
    """
    assert data.targets is not None
    order, held = np.array(ranked), set(held)
    images = [order[column[order] > 0].tolist() for column in data.targets.T]  # of each label
    for group in images:
        if group and held.issuperset(group):
            held.discard(group[-1])
    trained = data.targets[[i for i in range(len(data)) if i not in held]].sum(0)  # images of each label to learn from
    for group in images:
        if held.isdisjoint(group):
            spare = next((i for i in group if (trained[data.targets[i] > 0] > 1).all()), None)
            if spare is not None:
                held.add(spare)
                trained -= data.targets[spare]
    return held


def _draw(key: str, seed: int) -> float:
    """Hash an image's key and the seed to a number in [0, 1), the same on every machine, to hold it out or not."""
    text = unicodedata.normalize("NFC", key)  # macOS may spell é as two characters
    data = hashlib.blake2b(f"{seed}\0{text}".encode("utf-8", "surrogateescape"), digest_size=8).digest()
    return (int.from_bytes(data, "big") >> 11) * 2.0**-53


def _keys(data: ImageDataset, folder: Path | None) -> list[str]:
    """Return each image's key for holding some out, whatever the folder's path: path below it, row, or number."""
    names = [data.describe(i) for i in range(len(data))]
    return names if folder is None else [Path(name).relative_to(folder).as_posix() for name in names]


def _same_classes(datasets: list[ImageDataset]) -> list[ImageDataset]:
    """Give all folders of a dataset's splits the union of their classes, in alphabetical order."""
    if all(data.class_names == datasets[0].class_names for data in datasets):
        return datasets
    names = sorted({name for data in datasets for name in data.class_names})
    return [data.with_classes(names) for data in datasets]


def _check_learnable(data: ImageDataset, source: DatasetSource) -> None:
    """Raise while a dataset is opened for training if it has fewer than two classes, or a folder has an empty one."""
    seen = set(data.labels)
    if len(seen) < 2 and (source.folder is None or len(data.class_names) < 2):
        only = data.class_names[next(iter(seen))]
        more = "" if source.folder is None else _table_hint(source.folder)
        raise ValueError(f"training needs at least two classes: {source.name} has only {only!r}; add another{more}")
    if source.folder is not None and len(seen) < len(data.class_names):
        empty = [name for i, name in enumerate(data.class_names) if i not in seen]
        count = f"{len(empty)} of {len(data.class_names)} classes of {source.name} have no images to learn from"
        raise ValueError(f"{count}: {list_some(empty)}; add some, or remove the folders")


def check_targets(train: ImageDataset) -> None:
    """Raise for training images with a label that none or all of them have, or with a number of `check_numbers`."""
    if train.targets is None:
        return
    if train.task == "regress":
        check_numbers(train.class_names, train.targets)
    lowest, highest = train.targets.min(0), train.targets.max(0)
    for name, low, high in zip(train.class_names, lowest, highest, strict=True):
        if train.task == "multilabel" and high == 0:
            raise ValueError(f"no image to learn from has the label {name!r}: add some, or remove the label")
        if train.task == "multilabel" and low == 1 and len(train.class_names) == 1:
            raise ValueError(f"all images have the label {name!r} and no other: add images without it, or other labels")


def check_numbers(names: Sequence[str], numbers: NDArray[np.float32]) -> None:
    """Raise for numbers to learn, `[n k]`, that never change, or differ by little more than float32 can hold."""
    for name, column in zip(names, numbers.T.astype(np.float64), strict=True):
        if column.min() == column.max():
            same = f"the number {name!r} is {column[0]:g} for all {len(column):,} images to learn from"
            raise ValueError(f"{same}: remove it, or add images with others")
        mean, spread = column.mean(), column.std()
        if (step := np.spacing(np.float32(abs(mean)))) > COARSE * spread:
            kept = f"the number {name!r} is about {mean:.6g} and kept as float32, in steps of {step:.3g}"
            raise ValueError(f"{kept}; its standard deviation is {spread:.3g}: subtract {mean:.6g} in all rows")


def _matched(train_set: ImageDataset, test_set: ImageDataset, source: DatasetSource, test: str) -> ImageDataset:
    """Return the opened test split with the classes of the training split, in their order."""
    seen = {train_set.class_names[label] for label in set(train_set.labels)}
    asked = [test_set.class_names[label] for label in sorted(set(test_set.labels))]
    if train_set.task != "classify":
        return test_set.with_classes(train_set.class_names)
    if unknown := [name for name in asked if name not in seen]:
        raise ValueError(
            f"the {source.part.format(test)} of {source.name} has classes without an image to learn from: "
            f"{list_some(unknown)}; add some to train, or remove them"
        )
    return test_set.with_classes(train_set.class_names)
