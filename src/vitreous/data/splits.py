"""`open_split`: the train and test images of a dataset, divided if it has no test split; check what is learned."""

import hashlib
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitreous.data.dataset_source import DatasetSource, split_parts
from vitreous.data.datasets import find_source
from vitreous.data.image_dataset import ImageDataset, join_datasets, list_some
from vitreous.data.sources.class_folder import has_classes, table_hint

COARSE = 0.01  # the largest step between float32 numbers, as a share of their standard deviation


def open_split(
    name: str | Path,
    root: Path | None = None,
    held_out: float = 0.2,
    seed: int = 0,
    train: str = "train",
    task: str | None = None,
) -> tuple[ImageDataset, ImageDataset]:
    """Open the train split and the test split of a dataset, with the same classes.

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
    """Return each image's key for splitting a dataset in two, whatever the folder's path.

    It is the path below that folder, the row, or the number.
    """
    names = [data.describe(i) for i in range(len(data))]
    return names if folder is None else [Path(name).relative_to(folder).as_posix() for name in names]


def _same_classes(datasets: list[ImageDataset]) -> list[ImageDataset]:
    """Give several splits that are joined for training the union of their classes, in alphabetical order."""
    if all(data.class_names == datasets[0].class_names for data in datasets):
        return datasets
    names = sorted({name for data in datasets for name in data.class_names})
    return [data.with_classes(names) for data in datasets]


def _check_learnable(data: ImageDataset, source: DatasetSource) -> None:
    """Raise while splits are opened for training if there are fewer than two classes, or a folder has an empty one."""
    seen = set(data.labels)
    if len(seen) < 2 and (source.folder is None or len(data.class_names) < 2):
        only = data.class_names[next(iter(seen))]
        more = "add another" if source.folder is None else f"add another{table_hint(source.folder)}"
        if source.folder is not None and (inner := source.folder / only).is_dir() and has_classes(inner):
            more = f"did you mean --data {inner}?"
        raise ValueError(f"training needs at least two classes: {source.name} has only {only!r}; {more}")
    if source.folder is not None and len(seen) < len(data.class_names):
        empty = [name for i, name in enumerate(data.class_names) if i not in seen]
        count = f"{len(empty)} of {len(data.class_names)} classes of {source.name} have no images to learn from"
        raise ValueError(f"{count}: {list_some(empty)}; add some, or remove the folders")


def check_targets(train: ImageDataset) -> None:
    """Raise if the train split has a label that no image has, or only one, which all have; and as `check_numbers`."""
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
    """Raise if a number of the train split, `[n k]`, is the same for all images, or too coarse in float32 to learn.

    It is too coarse if its values differ by little more than float32 can hold.
    """
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
    if train_set.task == "classify":
        seen = {train_set.class_names[label] for label in set(train_set.labels)}
        asked = [test_set.class_names[label] for label in sorted(set(test_set.labels))]
        if unknown := [name for name in asked if name not in seen]:
            raise ValueError(
                f"the {source.part.format(test)} of {source.name} has classes without an image to learn from: "
                f"{list_some(unknown)}; add some to train, or remove them"
            )
    return test_set.with_classes(train_set.class_names)
