"""A labelled set of images: names, labels and a way to each image, and nothing opened before it is asked for."""

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
    from PIL.Image import Image


def _unknown() -> Callable[[], str]:
    """Of images that come from nowhere in particular nothing can be said to be the same as before."""
    return partial(str, uuid4().hex)


@dataclass(frozen=True)
class ImageDataset:
    """Images with a class each. It can be pickled where `image`, `where` and `source` can."""

    name: str
    class_names: tuple[str, ...]
    labels: tuple[int, ...]
    """One index into `class_names` an image."""
    image: Callable[[int], Image | Path]
    """The image of an index, or the file that holds it."""
    where: Callable[[int], str] | None = None
    """What to call the image of an index; None: the set's name and the index."""
    source: Callable[[], str] = field(default_factory=_unknown)
    """A text that changes whenever an image may have; asked for only where somebody wants a fingerprint."""

    def __len__(self) -> int:
        return len(self.labels)

    def describe(self, i: int) -> str:
        """Which image that is, for messages: its file, or its number in the set.

        >>> ImageDataset("zoo", ("cat",), (0, 0), Path).describe(1)
        'zoo #1'
        """
        return self.where(i) if self.where else f"{self.name} #{i}"

    @cached_property
    def fingerprint(self) -> str:
        """64 hexadecimal digits that change whenever images, labels or classes may have; nothing is decoded."""
        return digest([self.source(), *self.class_names, " ".join(map(str, self.labels))])

    def take(self, indices: Sequence[int]) -> ImageDataset:
        """The same set with these images alone.

        >>> zoo = ImageDataset("zoo", ("cat", "dog"), (0, 1, 0), Path)
        >>> zoo.take([2, 1]).labels, zoo.take([2, 1]).describe(0)
        ((0, 1), 'zoo #2')
        """
        chosen = tuple(indices)
        return replace(
            self,
            labels=tuple(self.labels[i] for i in chosen),
            image=_Picked(self.image, chosen),
            where=_Picked(self.where or _Numbered(self.name), chosen),
            source=partial(_source_of_taken, self.source, chosen),
        )

    def spread(self, limit: int) -> ImageDataset:
        """At most `limit` images, taken evenly over the whole set."""
        if limit < 1:
            raise ValueError(f"limit must be at least 1, got {limit}")
        if limit >= len(self):
            return self
        return self.take([i * len(self) // limit for i in range(limit)])

    def with_classes(self, class_names: Sequence[str]) -> ImageDataset:
        """The same images with their labels counted in another list of classes, which has all that occur.

        >>> ImageDataset("zoo", ("dog",), (0, 0), Path).with_classes(("cat", "dog")).labels
        (1, 1)
        """
        if self.class_names == tuple(class_names):
            return self
        place = {name: i for i, name in enumerate(class_names)}
        if strangers := [self.class_names[i] for i in sorted(set(self.labels)) if self.class_names[i] not in place]:
            raise ValueError(f"{self.name} has classes that are not among the {len(place)} expected: {some(strangers)}")
        labels = tuple(place[self.class_names[label]] for label in self.labels)
        return replace(self, class_names=tuple(class_names), labels=labels)


def joined(sets: Iterable[ImageDataset]) -> ImageDataset:
    """One set after the other; all have the same classes.

    >>> both = joined([ImageDataset("zoo", ("cat",), (0,), Path), ImageDataset("farm", ("cat",), (0, 0), Path)])
    >>> both.name, len(both), both.describe(2)
    ('zoo+farm', 3, 'farm #1')
    """
    first, *others = parts = tuple(sets)
    for other in others:
        if other.class_names != first.class_names:
            raise ValueError(f"{first.name} and {other.name} have different classes: sets to join have the same")
    if not others:
        return first
    ends = tuple(accumulate(len(part) for part in parts))
    return ImageDataset(
        name="+".join(dict.fromkeys(part.name for part in parts)),
        class_names=first.class_names,
        labels=tuple(label for part in parts for label in part.labels),
        image=_Joined(tuple(part.image for part in parts), ends),
        where=_Joined(tuple(part.where or _Numbered(part.name) for part in parts), ends),
        source=partial(_source_of_joined, tuple((part.source, len(part)) for part in parts)),
    )


def digest(words: Iterable[str]) -> str:
    """A hash of words that keeps them apart: ["ab", "c"] is not ["a", "bc"].

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
    """A text that changes whenever a file does, in the eyes of the file system: its size and time of change."""
    status = path.stat()
    return f"{status.st_size} {status.st_mtime_ns}"


def some(names: Sequence[str], most: int = 3) -> str:
    """A few names for a message.

    >>> some(["a", "b", "c", "d"], most=2)
    "'a', 'b' and 2 more"
    """
    text = ", ".join(repr(name) for name in names[:most])
    return text if len(names) <= most else f"{text} and {len(names) - most} more"


# --- callables that can be pickled, where a lambda cannot: sets travel to worker processes ----------------------------


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
    """How many images there are up to the end of each part."""

    def __call__(self, i: int) -> Any:
        if not -self.ends[-1] <= i < self.ends[-1]:
            raise IndexError(f"image {i} of {self.ends[-1]}")
        i %= self.ends[-1]
        part = bisect_right(self.ends, i)
        return self.functions[part](i - (self.ends[part - 1] if part else 0))


def _source_of_taken(source: Callable[[], str], indices: tuple[int, ...]) -> str:
    return digest([source(), " ".join(map(str, indices))])


def _source_of_joined(parts: tuple[tuple[Callable[[], str], int], ...]) -> str:
    return digest(text for source, count in parts for text in (source(), str(count)))
