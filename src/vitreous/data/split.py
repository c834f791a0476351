"""`open_split`: train and test images, by a dataset's own splits or by a stable division."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Sequence
from pathlib import Path

from vitreous.data.datasets import find_source
from vitreous.data.image_dataset import DatasetSource, ImageDataset, join_datasets, list_some, split_parts


def open_split(
    name: str | Path, root: Path | None = None, held_out: float = 0.2, seed: int = 0, train: str = "train"
) -> tuple[ImageDataset, ImageDataset]:
    """Open a dataset for training: train and test images, of the same classes.

    `train` may be `train+validation`. A dataset without another split to test on is divided: about `held_out` of it are
    test images.

    >>> train, test = open_split("digits")
    >>> len(train), len(test)
    (1437, 360)
    """
    if not 0 < held_out < 1:
        raise ValueError(f"held_out is a share between 0 and 1, got {held_out}")
    source = find_source(name, root)
    parts = split_parts(train)
    if parts == ["train"] and source.whole is not None and source.spelled("train") is None:
        train_set, test = source.whole(), None
    else:
        used = source.names(parts)
        train_set = join_datasets(_same_classes([source.splits[part]() for part in used]))
        test = source.spelled("test", without=used)  # train images are not tested on
    _check_learnable(train_set, source)
    if test is None:
        return divide(train_set, _keys(train_set, source.folder), held_out, seed)
    return train_set, _matched(train_set, source.splits[test](), source, test)


def divide(
    data: ImageDataset, keys: Sequence[str], held_out: float = 0.2, seed: int = 0
) -> tuple[ImageDataset, ImageDataset]:
    """Divide by a hash of each image's key, class by class: a new image does not move the others.

    Each class with two images or more has at least one on each side; a single image is a train image. (Only an image
    that was moved for that may move back when its class grows.)

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
    if not held:
        raise ValueError(f"{data.name} has one image a class: none is left to test on; add some to each class")
    kept = [i for i in range(len(data)) if i not in held]
    return data.take(kept), data.take(sorted(held))


def _draw(key: str, seed: int) -> float:
    """Hash the key and the seed to a number in [0, 1), the same on every machine."""
    text = unicodedata.normalize("NFC", key)  # macOS may spell é as two characters
    data = hashlib.blake2b(f"{seed}\0{text}".encode("utf-8", "surrogateescape"), digest_size=8).digest()
    return (int.from_bytes(data, "big") >> 11) * 2.0**-53


def _keys(data: ImageDataset, folder: Path | None) -> list[str]:
    """Return a key for each image, whatever the folder's path: the path below it, file and row, or number."""
    names = [data.describe(i) for i in range(len(data))]
    return names if folder is None else [Path(name).relative_to(folder).as_posix() for name in names]


def _same_classes(datasets: list[ImageDataset]) -> list[ImageDataset]:
    """Give all datasets the union of their classes, in alphabetical order: folders may differ in theirs."""
    if all(data.class_names == datasets[0].class_names for data in datasets):
        return datasets
    names = sorted({name for data in datasets for name in data.class_names})
    return [data.with_classes(names) for data in datasets]


def _check_learnable(data: ImageDataset, source: DatasetSource) -> None:
    """Require images of at least two classes, and in a folder of every class."""
    seen = set(data.labels)
    if len(seen) < 2 and (source.folder is None or len(data.class_names) < 2):
        only = data.class_names[next(iter(seen))]
        raise ValueError(f"training needs at least two classes: {source.name} has only {only!r}; add another")
    if source.folder is not None and len(seen) < len(data.class_names):
        empty = [name for i, name in enumerate(data.class_names) if i not in seen]
        count = f"{len(empty)} of {len(data.class_names)} classes of {source.name} have no images to learn from"
        raise ValueError(f"{count}: {list_some(empty)}; add some, or remove the folders")


def _matched(train_set: ImageDataset, test_set: ImageDataset, source: DatasetSource, test: str) -> ImageDataset:
    """Return the test images with the classes of the train images, in their order."""
    seen = {train_set.class_names[label] for label in set(train_set.labels)}
    asked = [test_set.class_names[label] for label in sorted(set(test_set.labels))]
    if unknown := [name for name in asked if name not in seen]:
        raise ValueError(
            f"the {source.part.format(test)} of {source.name} has classes without an image to learn from: "
            f"{list_some(unknown)}; add some to train, or remove them"
        )
    return test_set.with_classes(train_set.class_names)
