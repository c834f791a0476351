"""Which splits there are, before any of them is opened: the common face of folders, parquet files and Hub sets."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from vitreous.data.image_dataset import ImageDataset, joined

SPLITS = {
    "train": ("train", "training"),
    "test": ("test", "val", "valid", "validation"),  # held out is held out: a set without a test split has this
    "validation": ("validation", "valid", "val"),
}
"""A split → what it may be called where the images lie, the best first."""

SPELLINGS = tuple(dict.fromkeys(spelling for spellings in SPLITS.values() for spelling in spellings))


@dataclass(frozen=True)
class Source:
    """A place with images: its splits, or the whole where it has none."""

    name: str
    splits: Mapping[str, Callable[[], ImageDataset]]
    """What a split is called here → opens it."""
    whole: Callable[[], ImageDataset] | None = None
    """Opens all of it, where it is not divided."""
    part: str = "{} split"
    """What a split is here, for messages."""
    layout: str = ""
    """Where a split would lie, for messages."""
    folder: Path | None = None
    """The folder that all images lie in, where they are files of their own."""

    def spelled(self, split: str, without: Collection[str] = ()) -> str | None:
        """What a split is called here; None where it is missing. `without` are names already in use."""
        return next((name for name in SPLITS[split] if name in self.splits and name not in without), None)

    def open(self, split: str) -> ImageDataset:
        """A split, or several joined by `+`; all of an undivided place is there to test on."""
        parts = split_parts(split)
        if parts == ["test"] and self.whole is not None:
            return self.whole()
        return joined([self.splits[name]() for name in self.names(parts)])

    def names(self, parts: list[str]) -> list[str]:
        """What the splits are called here; `FileNotFoundError` where one is missing."""
        found = [self.spelled(part) for part in parts]
        for part, name in zip(parts, found, strict=True):
            if name is None:
                raise FileNotFoundError(self._lacks(part))
        return [name for name in found if name is not None]

    def _lacks(self, split: str) -> str:
        text = f"{self.name} has no {self.part.format(split)}"
        if self.splits:
            text += f" (it has {', '.join(self.splits)})"
        return f"{text}: expected {self.layout.format(split)}" if self.layout else text


def split_parts(split: str) -> list[str]:
    """The parts of a split such as `train+validation`.

    >>> split_parts("train+validation")
    ['train', 'validation']
    """
    parts = split.split("+")
    for part in parts:
        if part not in SPLITS:
            raise ValueError(f"split must be one of {', '.join(SPLITS)}, or several joined by +, got {split!r}")
    if len(set(parts)) < len(parts):
        raise ValueError(f"split names a part twice: {split!r}")
    return parts
