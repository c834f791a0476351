"""Images to learn from and images to test on: a set's own two splits, or one set divided in two for good."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Sequence
from pathlib import Path

from vitreous.data.datasets import find_source
from vitreous.data.image_dataset import ImageDataset, joined, some
from vitreous.data.sources.source import Source, split_parts


def open_split(
    name: str | Path, root: Path | None = None, held_out: float = 0.2, seed: int = 0, train: str = "train"
) -> tuple[ImageDataset, ImageDataset]:
    """Open a set for training: what to learn from, and what to test on; both have the same classes.

    `train` may be `train+validation`. A set without a test split beside that is divided: about `held_out` of it is
    there to test on.

    >>> learned, tested = open_split("digits")
    >>> len(learned), len(tested)
    (1437, 360)
    """
    if not 0 < held_out < 1:
        raise ValueError(f"held_out is a share between 0 and 1, got {held_out}")
    source = find_source(name, root)
    parts = split_parts(train)
    if parts == ["train"] and source.whole is not None and source.spelled("train") is None:
        learned, test = source.whole(), None
    else:
        used = source.names(parts)
        learned = joined(_same_classes([source.splits[part]() for part in used]))
        test = source.spelled("test", without=used)  # what is learned from is not tested on
    _check_learnable(learned, source)
    if test is None:
        return divide(learned, _keys(learned, source.folder), held_out, seed)
    return learned, _matched(learned, source.splits[test](), source, test)


def divide(
    data: ImageDataset, keys: Sequence[str], held_out: float = 0.2, seed: int = 0
) -> tuple[ImageDataset, ImageDataset]:
    """Divide by a hash of each image's key, class by class: a new image does not move the others.

    Of each class with two images or more at least one is on each side; a single image is there to learn from.
    (Only the image that was put across for that may go back when its class grows.)

    >>> zoo = ImageDataset("zoo", ("cat", "dog"), (0, 0, 1, 1), Path)
    >>> [part.labels for part in divide(zoo, ["a", "b", "c", "d"])]
    [(0, 1), (0, 1)]
    """
    draws = [_draw(key, seed) for key in keys]
    members: dict[int, list[int]] = {}
    for i, label in enumerate(data.labels):
        members.setdefault(label, []).append(i)
    tested: set[int] = set()
    for group in members.values():
        ranked = sorted(group, key=lambda i: (draws[i], keys[i]))
        count = sum(draws[i] < held_out for i in group)
        tested.update(ranked[: min(max(count, 1), len(group) - 1)])
    if not tested:
        raise ValueError(f"{data.name} has one image a class: none is left to test on; add some to each class")
    learned = [i for i in range(len(data)) if i not in tested]
    return data.take(learned), data.take(sorted(tested))


def _draw(key: str, seed: int) -> float:
    """A number in [0, 1) that hangs on the key and the seed alone, on every machine."""
    text = unicodedata.normalize("NFC", key)  # macOS may spell é as two characters
    data = hashlib.blake2b(f"{seed}\0{text}".encode("utf-8", "surrogateescape"), digest_size=8).digest()
    return (int.from_bytes(data, "big") >> 11) * 2.0**-53


def _keys(data: ImageDataset, folder: Path | None) -> list[str]:
    """What tells an image from the others wherever the folder lies: the path below it, or file and row, or number."""
    names = [data.describe(i) for i in range(len(data))]
    return names if folder is None else [Path(name).relative_to(folder).as_posix() for name in names]


def _same_classes(sets: list[ImageDataset]) -> list[ImageDataset]:
    """Folders may differ in their classes: all of them, in alphabetical order."""
    if all(data.class_names == sets[0].class_names for data in sets):
        return sets
    names = sorted({name for data in sets for name in data.class_names})
    return [data.with_classes(names) for data in sets]


def _check_learnable(data: ImageDataset, source: Source) -> None:
    """Training needs images of two classes at the least, and in a folder of every class that is there."""
    seen = set(data.labels)
    if len(seen) < 2 and (source.folder is None or len(data.class_names) < 2):
        only = data.class_names[next(iter(seen))]
        raise ValueError(f"training needs at least two classes: {source.name} has only {only!r}; add another")
    if source.folder is not None and len(seen) < len(data.class_names):
        empty = [name for i, name in enumerate(data.class_names) if i not in seen]
        count = f"{len(empty)} of {len(data.class_names)} classes of {source.name} have no images to learn from"
        raise ValueError(f"{count}: {some(empty)}; add some, or remove the folders")


def _matched(learned: ImageDataset, tested: ImageDataset, source: Source, test: str) -> ImageDataset:
    """The test images with the classes of those to learn from, in their order."""
    seen = {learned.class_names[label] for label in set(learned.labels)}
    asked = [tested.class_names[label] for label in sorted(set(tested.labels))]
    if strangers := [name for name in asked if name not in seen]:
        raise ValueError(
            f"the {source.part.format(test)} of {source.name} has classes without an image to learn from: "
            f"{some(strangers)}; add some to train, or remove them"
        )
    return tested.with_classes(learned.class_names)
