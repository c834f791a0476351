"""`ImageDataset`: images with classes, labels, numbers or masks (`TASKS`); some taken, several joined, hashed."""

from __future__ import annotations

import hashlib
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL.Image import Image

    from vitreous.data.images import ImageLike

TASKS = ("classify", "multilabel", "regress", "segment")
NOUNS = {"classify": "classes", "multilabel": "labels", "regress": "numbers", "segment": "pixel classes"}
"""Task → what the names in `ImageDataset.class_names` stand for."""


@dataclass(frozen=True)
class ImageDataset:
    """Images with a class each, or with labels, numbers or a mask. It can be pickled if its functions can.

    >>> zoo = ImageDataset("zoo", ("cat", "dog"), (0, 1, 0), Path)
    >>> zoo
    ImageDataset('zoo': 3 images, 2 classes)
    """

    name: str
    class_names: tuple[str, ...]
    """Names of the classes, labels, numbers or pixel classes."""
    labels: tuple[int, ...]
    """For each image an index into `class_names`; zeros for other tasks than classify."""
    image: Callable[[int], ImageLike]
    """Index → the image, as anything that `read_image` takes."""
    name_of: Callable[[int], str] | None = None
    """Index → the image's name; None: the dataset's name and the index."""
    version: Callable[[], str] = field(default_factory=lambda: partial(str, uuid4().hex))
    """Returns a text that changes whenever an image may have, for a fingerprint; by default it equals no other."""
    task: str = "classify"
    """One of `TASKS`."""
    targets: NDArray[np.float32] | None = field(default=None, compare=False)
    """multilabel: 1 for each label that an image has, else 0; regress: the numbers in their own units: `[n k]`."""
    mask: Callable[[int], Image] | None = None
    """segment: index → mask, an L image of the image's size: indices into `class_names`, 255 where none counts."""
    built_in: bool = field(default=False, compare=False)
    """Whether it is one of `DATASETS`: its class names are never another model's class indices, not even "0" to "9"."""

    def __repr__(self) -> str:
        return f"ImageDataset({self.name!r}: {len(self):,} images, {count_names(self)})"

    def __len__(self) -> int:
        return len(self.labels)

    def describe(self, i: int) -> str:
        """Name an image of an `ImageDataset` for messages: its file, or its number in the dataset.

        >>> ImageDataset("zoo", ("cat",), (0, 0), Path).describe(1)
        'zoo #1'
        """
        return self.name_of(i) if self.name_of else f"{self.name} #{i}"

    @cached_property
    def fingerprint(self) -> str:
        """64 hexadecimal digits that change whenever an `ImageDataset`'s images, labels or classes may have."""
        return digest([self.version(), *self.class_names, *spell_labels(self)])

    def take(self, indices: Sequence[int]) -> ImageDataset:
        """Return an `ImageDataset` with some images alone, by their indices.

        >>> zoo = ImageDataset("zoo", ("cat", "dog"), (0, 1, 0), Path)
        >>> zoo.take([2, 1]).labels, zoo.take([2, 1]).describe(0)
        ((0, 1), 'zoo #2')
        """
        chosen = tuple(indices)
        return replace(
            self,
            labels=tuple(self.labels[i] for i in chosen),
            image=partial(_picked, self.image, chosen),
            name_of=partial(_picked, self.name_of or partial(_numbered, self.name), chosen),
            version=partial(_version_of_taken, self.version, chosen),
            targets=None if self.targets is None else self.targets[list(chosen)],
            mask=None if self.mask is None else partial(_picked, self.mask, chosen),
        )

    def spread(self, limit: int) -> ImageDataset:
        """Return a smaller `ImageDataset` of at most `limit` images, taken evenly over all of this one."""
        if limit < 1:
            raise ValueError(f"limit must be at least 1, got {limit}")
        if limit >= len(self):
            return self
        return self.take([i * len(self) // limit for i in range(limit)])

    def with_classes(self, class_names: Sequence[str]) -> ImageDataset:
        """Return an `ImageDataset` with labels that index another list of classes, which has all that occur.

        >>> ImageDataset("zoo", ("dog",), (0, 0), Path).with_classes(("cat", "dog")).labels
        (1, 1)
        """
        if self.class_names == tuple(class_names):
            return self
        index = {name: i for i, name in enumerate(class_names)}
        if unknown := [name for name in _occurring(self) if name not in index]:
            what = f"{self.name} has {NOUNS[self.task]} that are not among the {len(index)} expected"
            raise ValueError(f"{what}: {list_some(unknown)}")
        if self.task == "regress" and (missing := [name for name in index if name not in self.class_names]):
            raise ValueError(f"{self.name} lacks numbers that are expected: {list_some(missing)}")
        order = tuple(index.get(name) for name in self.class_names)
        changed = replace(self, class_names=tuple(class_names))
        if self.mask is not None:
            return replace(changed, mask=partial(_renumbered, self.mask, order))
        if self.targets is None:
            return replace(changed, labels=tuple(index[self.class_names[label]] for label in self.labels))
        targets = np.zeros((len(self), len(index)), np.float32)
        for column, new in enumerate(order):
            if new is not None:  # a label that no image has
                targets[:, new] = self.targets[:, column]
        return replace(changed, targets=targets)


def count_names(data: ImageDataset) -> str:
    """Count an `ImageDataset`'s classes, labels, numbers or pixel classes.

    >>> count_names(ImageDataset("zoo", ("cat", "dog"), (0,), Path))
    '2 classes'
    """
    return count_nouns(data.task, len(data.class_names))


def count_nouns(task: str, number: int) -> str:
    """Write a number of an `ImageDataset`'s classes, labels, numbers or pixel classes.

    >>> count_nouns("regress", 1), count_nouns("segment", 1), count_nouns("multilabel", 1200)
    ('1 number', '1 pixel class', '1,200 labels')
    """
    nouns = NOUNS[task]
    return f"{number:,} {nouns.removesuffix('es' if nouns.endswith('sses') else 's') if number == 1 else nouns}"


def spell_labels(data: ImageDataset) -> list[str]:
    """Return the texts that an `ImageDataset`'s fingerprint hashes of labels, numbers or masks; no image is read."""
    labels = " ".join(map(str, data.labels))
    if data.task == "classify":
        return [labels]
    targets = b"" if data.targets is None else np.ascontiguousarray(data.targets, "<f4").tobytes()
    return [labels, data.task, hashlib.sha256(targets).hexdigest()]


def _occurring(data: ImageDataset) -> list[str]:
    """List the names in an `ImageDataset` that occur: those of its labels; all numbers and pixel classes."""
    if data.task == "classify":
        return [data.class_names[label] for label in sorted(set(data.labels))]
    if data.task == "multilabel" and data.targets is not None:
        return [name for name, images in zip(data.class_names, data.targets.sum(0), strict=True) if images]
    return list(data.class_names)


def join_datasets(datasets: Iterable[ImageDataset]) -> ImageDataset:
    """Join several `ImageDataset`s of the same task and classes.

    >>> both = join_datasets([ImageDataset("zoo", ("cat",), (0,), Path), ImageDataset("farm", ("cat",), (0, 0), Path)])
    >>> both.name, len(both), both.describe(2)
    ('zoo+farm', 3, 'farm #1')
    """
    first, *others = parts = tuple(datasets)
    for other in others:
        if other.task != first.task:
            raise ValueError(f"{first.name} is to {first.task}, {other.name} to {other.task}: these cannot be joined")
        if other.class_names != first.class_names:
            raise ValueError(f"{first.name} and {other.name} have different classes: datasets to join have the same")
    if not others:
        return first
    ends = tuple(accumulate(len(part) for part in parts))
    return ImageDataset(
        name="+".join(dict.fromkeys(part.name for part in parts)),
        class_names=first.class_names,
        labels=tuple(label for part in parts for label in part.labels),
        image=partial(_joined, tuple(part.image for part in parts), ends),
        name_of=partial(_joined, tuple(part.name_of or partial(_numbered, part.name) for part in parts), ends),
        version=partial(_version_of_joined, tuple((part.version, len(part)) for part in parts)),
        task=first.task,
        targets=None if first.targets is None else np.concatenate([part.targets for part in parts]),
        mask=None if first.mask is None else partial(_joined, tuple(part.mask for part in parts), ends),  # type: ignore[misc]
        built_in=first.built_in,
    )


def digest(words: Iterable[str]) -> str:
    """Hash words and their boundaries to an `ImageDataset`'s fingerprint: ["ab", "c"] is not ["a", "bc"]."""
    state = hashlib.sha256()
    for word in words:
        data = word.encode("utf-8", "surrogateescape")  # file names may hold any bytes
        state.update(b"%d:" % len(data))
        state.update(data)
    return state.hexdigest()


def file_state(path: Path) -> str:
    """Return an image file's size and time of change, as a text for an `ImageDataset`'s fingerprint."""
    status = path.stat()
    return f"{status.st_size} {status.st_mtime_ns}"


def fingerprint_files(folder: Path, paths: Sequence[Path]) -> str:
    """Hash an `ImageDataset`'s files: it changes if one is added, removed, renamed or written; none is opened.

    The folder's path counts too: two folders unpacked from archives may agree in all names, sizes and times.
    """
    root = os.path.abspath(folder)
    return digest([root, *(text for path in paths for text in (os.path.relpath(path, folder), file_state(path)))])


def list_some(names: Sequence[str], limit: int = 3) -> str:
    """List a few names of an `ImageDataset`'s classes or splits for a message."""
    text = ", ".join(repr(name) for name in names[:limit])
    return text if len(names) <= limit else f"{text} and {len(names) - limit} more"


# --- functions for `partial`, which can be pickled, unlike lambdas: datasets are sent to worker processes -------------


def _numbered(name: str, i: int) -> str:
    """Name an image of an `ImageDataset` by its number."""
    return f"{name} #{i}"


def _picked(function: Callable[[int], Any], indices: tuple[int, ...], i: int) -> Any:
    """Call an `ImageDataset`'s function for an image that was taken from it."""
    return function(indices[i])


def _joined(functions: tuple[Callable[[int], Any], ...], ends: tuple[int, ...], i: int) -> Any:
    """Call the function of the part of a joined `ImageDataset` that holds image `i`; `ends` are where parts end."""
    if not -ends[-1] <= i < ends[-1]:
        raise IndexError(f"image {i} of {ends[-1]}")
    i %= ends[-1]
    part = bisect_right(ends, i)
    return functions[part](i - (ends[part - 1] if part else 0))


def _renumbered(mask: Callable[[int], Image], order: tuple[int | None, ...], i: int) -> Image:
    """Renumber the pixels of an `ImageDataset`'s image for another order of classes; 255 for those it leaves out."""
    table = [255 if new is None else new for new in order]
    return mask(i).point([*table, *[255] * (256 - len(table))])


def _version_of_taken(version: Callable[[], str], indices: tuple[int, ...]) -> str:
    """Hash the version of an `ImageDataset` of which some images were taken."""
    return digest([version(), " ".join(map(str, indices))])


def _version_of_joined(parts: tuple[tuple[Callable[[], str], int], ...]) -> str:
    """Hash the versions of `ImageDataset`s that were joined."""
    return digest(text for version, count in parts for text in (version(), str(count)))
