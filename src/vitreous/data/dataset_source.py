"""`DatasetSource`: a dataset before it is opened: the names of its splits (`SPLITS`), and how to open each or all."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from vitreous.data.image_dataset import ImageDataset, join_datasets

SPLITS = {
    "train": ("train", "training"),
    "test": ("test", "val", "valid", "validation"),  # a dataset without a test split is tested on its validation split
    "validation": ("validation", "valid", "val"),
}
"""Split → the names it may have, the preferred first."""
SPELLINGS = tuple(dict.fromkeys(spelling for spellings in SPLITS.values() for spelling in spellings))


@dataclass(frozen=True)
class DatasetSource:
    """A dataset before it is opened: its splits, or the whole if it has none."""

    name: str
    splits: Mapping[str, Callable[[], ImageDataset]]
    """The split's name in this source → a function that opens it."""
    whole: Callable[[], ImageDataset] | None = None
    """Opens all images, if the source has no splits."""
    part: str = "{} split"
    """What a split is called in messages."""
    layout: str = ""
    """Where a missing split is expected, for messages."""
    folder: Path | None = None
    """The folder above all images, if each is a file."""
    task: str = "classify"
    """One of `TASKS`."""

    def spelled(self, split: str, without: Collection[str] = ()) -> str | None:
        """Return how this dataset source itself calls train, test or validation images, None if it has none.

        Names in `without` are in use already.
        """
        return next((name for name in SPLITS[split] if name in self.splits and name not in without), None)

    def open(self, split: str) -> ImageDataset:
        """Open the part of a dataset source that `split` names, or several joined by `+`.

        A source without splits is a test split.
        """
        parts = split_parts(split)
        if parts == ["test"] and self.whole is not None:
            return self.whole()
        return join_datasets([self.splits[name]() for name in self.names(parts)])

    def names(self, parts: list[str]) -> list[str]:
        """Return a `DatasetSource`'s own names for splits; raise `FileNotFoundError` if one is missing."""
        found = []
        for part in parts:
            name = self.spelled(part)
            if name is None:
                known = f" (it has {', '.join(self.splits)})" if self.splits else ""
                expected = f": expected {self.layout.format(part)}" if self.layout else ""
                raise FileNotFoundError(f"{self.name} has no {self.part.format(part)}{known}{expected}")
            found.append(name)
        return found


def split_parts(split: str) -> list[str]:
    """Parse what a caller asks a `DatasetSource` to open, such as `train+validation`, into a list."""
    parts = split.split("+")
    for part in parts:
        if part not in SPLITS:
            raise ValueError(f"split must be one of {', '.join(SPLITS)}, or several joined by +, got {split!r}")
    if len(set(parts)) < len(parts):
        raise ValueError(f"split names a part twice: {split!r}")
    return parts
