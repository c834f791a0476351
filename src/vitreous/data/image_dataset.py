"""`ImageDataset`: labelled images with class names; an image is opened only when it is read."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

if TYPE_CHECKING:
    from vitreous.data.images import ImageLike


def _unknown() -> Callable[[], str]:
    """Return a version that equals no other: nothing is known about where the images come from."""
    return partial(str, uuid4().hex)


@dataclass(frozen=True)
class ImageDataset:
    """Images with a class each. It can be pickled if `image`, `name_of` and `version` can.

    >>> zoo = ImageDataset("zoo", ("cat", "dog"), (0, 1, 0), Path)
    >>> zoo
    ImageDataset('zoo': 3 images, 2 classes)
    """

    name: str
    class_names: tuple[str, ...]
    labels: tuple[int, ...]
    """For each image an index into `class_names`."""
    image: Callable[[int], ImageLike]
    """Index → the image, as anything that `read_image` takes."""
    name_of: Callable[[int], str] | None = None
    """Index → the image's name; None: the dataset's name and the index."""
    version: Callable[[], str] = field(default_factory=_unknown)
    """Returns a text that changes whenever an image may have; called only for a fingerprint."""

    def __repr__(self) -> str:
        return f"ImageDataset({self.name!r}: {len(self):,} images, {len(self.class_names):,} classes)"

    def __len__(self) -> int:
        return len(self.labels)

    def describe(self, i: int) -> str:
        """Name an image for messages: its file, or its number in the dataset.

        >>> ImageDataset("zoo", ("cat",), (0, 0), Path).describe(1)
        'zoo #1'
        """
        return self.name_of(i) if self.name_of else f"{self.name} #{i}"

    @cached_property
    def fingerprint(self) -> str:
        """64 hexadecimal digits that change whenever images, labels or classes may have; nothing is decoded."""
        return digest([self.version(), *self.class_names, " ".join(map(str, self.labels))])

    def take(self, indices: Sequence[int]) -> ImageDataset:
        """Return the dataset with these images alone.

        >>> zoo = ImageDataset("zoo", ("cat", "dog"), (0, 1, 0), Path)
        >>> zoo.take([2, 1]).labels, zoo.take([2, 1]).describe(0)
        ((0, 1), 'zoo #2')
        """
        chosen = tuple(indices)
        return replace(
            self,
            labels=tuple(self.labels[i] for i in chosen),
            image=_Picked(self.image, chosen),
            name_of=_Picked(self.name_of or _Numbered(self.name), chosen),
            version=partial(_version_of_taken, self.version, chosen),
        )

    def spread(self, limit: int) -> ImageDataset:
        """Return at most `limit` images, taken evenly over the whole dataset."""
        if limit < 1:
            raise ValueError(f"limit must be at least 1, got {limit}")
        if limit >= len(self):
            return self
        return self.take([i * len(self) // limit for i in range(limit)])

    def with_classes(self, class_names: Sequence[str]) -> ImageDataset:
        """Return the same images with labels that index another list of classes, which has all that occur.

        >>> ImageDataset("zoo", ("dog",), (0, 0), Path).with_classes(("cat", "dog")).labels
        (1, 1)
        """
        if self.class_names == tuple(class_names):
            return self
        index = {name: i for i, name in enumerate(class_names)}
        if unknown := [self.class_names[i] for i in sorted(set(self.labels)) if self.class_names[i] not in index]:
            few = list_some(unknown)
            raise ValueError(f"{self.name} has classes that are not among the {len(index)} expected: {few}")
        labels = tuple(index[self.class_names[label]] for label in self.labels)
        return replace(self, class_names=tuple(class_names), labels=labels)


def join_datasets(datasets: Iterable[ImageDataset]) -> ImageDataset:
    """Concatenate datasets of the same classes.

    >>> both = join_datasets([ImageDataset("zoo", ("cat",), (0,), Path), ImageDataset("farm", ("cat",), (0, 0), Path)])
    >>> both.name, len(both), both.describe(2)
    ('zoo+farm', 3, 'farm #1')
    """
    first, *others = parts = tuple(datasets)
    for other in others:
        if other.class_names != first.class_names:
            raise ValueError(f"{first.name} and {other.name} have different classes: datasets to join have the same")
    if not others:
        return first
    ends = tuple(accumulate(len(part) for part in parts))
    return ImageDataset(
        name="+".join(dict.fromkeys(part.name for part in parts)),
        class_names=first.class_names,
        labels=tuple(label for part in parts for label in part.labels),
        image=_Joined(tuple(part.image for part in parts), ends),
        name_of=_Joined(tuple(part.name_of or _Numbered(part.name) for part in parts), ends),
        version=partial(_version_of_joined, tuple((part.version, len(part)) for part in parts)),
    )


def digest(words: Iterable[str]) -> str:
    """Hash words and their boundaries: ["ab", "c"] is not ["a", "bc"].

    >>> digest(["ab", "c"]) == digest(["a", "bc"])
    False
    """
    state = hashlib.sha256()
    for word in words:
        data = word.encode("utf-8", "surrogateescape")  # file names may hold any bytes
        state.update(b"%d:" % len(data))
        state.update(data)
    return state.hexdigest()


def file_state(path: Path) -> str:
    """Return a file's size and time of change, as a text."""
    status = path.stat()
    return f"{status.st_size} {status.st_mtime_ns}"


def list_some(names: Sequence[str], limit: int = 3) -> str:
    """List a few names for a message.

    >>> list_some(["a", "b", "c", "d"], limit=2)
    "'a', 'b' and 2 more"
    """
    text = ", ".join(repr(name) for name in names[:limit])
    return text if len(names) <= limit else f"{text} and {len(names) - limit} more"


# --- callables that can be pickled, unlike lambdas: datasets are sent to worker processes -----------------------------


@dataclass(frozen=True)
class _Numbered:
    name: str

    def __call__(self, i: int) -> str:
        return f"{self.name} #{i}"


@dataclass(frozen=True)
class _Picked:
    function: Callable[[int], Any]
    indices: tuple[int, ...]

    def __call__(self, i: int) -> Any:
        return self.function(self.indices[i])


@dataclass(frozen=True)
class _Joined:
    functions: tuple[Callable[[int], Any], ...]
    ends: tuple[int, ...]
    """The number of images up to the end of each part."""

    def __call__(self, i: int) -> Any:
        if not -self.ends[-1] <= i < self.ends[-1]:
            raise IndexError(f"image {i} of {self.ends[-1]}")
        i %= self.ends[-1]
        part = bisect_right(self.ends, i)
        return self.functions[part](i - (self.ends[part - 1] if part else 0))


def _version_of_taken(version: Callable[[], str], indices: tuple[int, ...]) -> str:
    return digest([version(), " ".join(map(str, indices))])


def _version_of_joined(parts: tuple[tuple[Callable[[], str], int], ...]) -> str:
    return digest(text for version, count in parts for text in (version(), str(count)))
