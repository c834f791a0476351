"""Sets too large to keep: images as they come, from the Hub or from parquet files, shared among ranks and workers.

`stream_set("org/name", "train")` is an iterable of (image, label) with class names; it needs the extra `[hub]`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.utils.data import IterableDataset

from vitreous.data.image_dataset import ImageDataset
from vitreous.data.sources.columns import choose_columns
from vitreous.data.sources.hub import PREFIX, decoded, hub_builder, library
from vitreous.data.sources.parquet import find_parquet, split_of
from vitreous.data.sources.source import SPLITS, split_parts

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True)
class ImageStream(IterableDataset):
    """Images with a class each, in an order that only runs forwards.

    A torch `DataLoader` takes it as it is: its workers share the files among themselves. An image that cannot be read
    raises a `ImageError`, and the next `next()` goes on behind it.
    """

    name: str
    class_names: tuple[str, ...]
    rows: Any
    """The library's own iterable, with the two columns `image` (not decoded) and `label`."""
    rank: int = 0
    ranks: int = 1
    seed: int | None = None
    """Of the shuffle; None: in the order of the files."""
    epoch: int = 0
    buffer: int = 1000
    """How many rows the shuffle chooses from; the order of the files is shuffled too."""
    images: int | None = None
    """How many there are over all ranks, where that is known beforehand."""

    def share(self, rank: int, ranks: int) -> ImageStream:
        """The part of one rank: the parts of all ranks are the whole, and no two have an image in common."""
        if not 0 <= rank < ranks:
            raise ValueError(f"rank has to be from 0 to {ranks - 1}, got {rank}")
        return replace(self, rank=rank, ranks=ranks)

    def shuffled(self, seed: int, epoch: int = 0, buffer: int = 1000) -> ImageStream:
        """In another order for each seed and epoch, the same one each time; all ranks give the same seed."""
        return replace(self, seed=seed, epoch=epoch, buffer=buffer)

    def __iter__(self) -> Iterator[tuple[Image, int]]:
        return map(self.read, self.undecoded())  # not a generator, which an error would end

    def undecoded(self, first: int = 0) -> Iterator[tuple[int, dict[str, Any]]]:
        """Numbered rows for `read`, from number `first` on; those before it are passed over without decoding."""
        from datasets.distributed import split_dataset_by_node

        rows = self.rows
        if self.seed is not None:
            rows = rows.shuffle(seed=self.seed, buffer_size=self.buffer)
        if self.ranks > 1:
            rows = split_dataset_by_node(rows, self.rank, self.ranks)
        if self.seed is not None:
            rows.set_epoch(self.epoch)  # last: each step above makes a new iterable, which is at epoch 0
        return islice(enumerate(rows), first, None)

    def read(self, numbered: tuple[int, dict[str, Any]]) -> tuple[Image, int]:
        """A row of `undecoded` as an image and its class."""
        return decoded(numbered[1]["image"], self._where(*numbered)), self.label(numbered)

    def label(self, numbered: tuple[int, dict[str, Any]]) -> int:
        """The class of a row of `undecoded`; the image is not looked at."""
        label, where = numbered[1]["label"], self._where(*numbered)
        if isinstance(label, str) and label in self.class_names:
            label = self.class_names.index(label)
        if not isinstance(label, int) or not 0 <= label < len(self.class_names):
            raise ValueError(f"{where} has class {label!r}: expected 0 to {len(self.class_names) - 1}")
        return label

    def _where(self, number: int, row: dict[str, Any]) -> str:
        path = row["image"].get("path") if isinstance(row["image"], dict) else None
        return f"{self.name} {path or f'#{number} of this reader'}"


def stream_set(
    name: str | Path, split: str = "train", root: Path | None = None, class_names: Sequence[str] | None = None
) -> ImageStream:
    """Stream a set from the Hub, or parquet files from a folder; `class_names` where it does not name its classes."""
    if len(split_parts(split)) > 1:
        raise ValueError(f"a stream reads one split, got {split!r}")
    datasets = library(str(name))
    if files := find_parquet(name):
        groups: dict[str, list[str]] = {}
        for file in files:
            groups.setdefault(split_of(file) or split, []).append(str(file))
        chosen = groups[_spelled(split, list(groups), name)]
        rows = datasets.load_dataset("parquet", data_files={split: chosen}, split=split, streaming=True)
        count: int | None = _count_rows(chosen)
    else:
        builder = hub_builder(str(name), root)
        known = builder.info.splits or {}
        spelled = _spelled(split, list(known or SPLITS[split]), name)
        rows = builder.as_streaming_dataset(split=spelled)
        count = (known[spelled].num_examples or None) if known else None
    title = str(name).removeprefix(PREFIX)
    if rows.features is None:
        raise ValueError(f"{title} does not say which columns it has: download it, and give the folder")
    columns = choose_columns(rows.features.to_dict(), title)
    names = tuple(class_names or columns.class_names or ())
    if not names:
        raise ValueError(f"{title} does not name its classes, and a stream cannot look ahead: give class_names")
    rows = rows.cast_column(columns.image, datasets.Image(decode=False))
    rows = rows.select_columns([columns.image, columns.label])
    renamed = {columns.image: "image", columns.label: "label"}
    rows = rows.rename_columns({old: new for old, new in renamed.items() if old != new})
    return ImageStream(title, names, rows, images=count)


def keep(stream: ImageStream, most: int) -> ImageDataset:
    """The first `most` images of a stream as a set, in memory as they are encoded: to test on again and again."""
    rows = [row for _, row in islice(stream.undecoded(), most + 1)]
    if len(rows) > most:
        warnings.warn(f"{stream.name}: only the first {most:,} test images are kept and reported on", stacklevel=2)
        rows.pop()
    labels = tuple(stream.label(numbered) for numbered in enumerate(rows))
    return ImageDataset(stream.name, stream.class_names, labels, lambda i: stream.read((i, rows[i]))[0])


def _count_rows(files: Sequence[str]) -> int:
    import pyarrow.parquet as pq

    return sum(pq.read_metadata(file).num_rows for file in files)


def _spelled(split: str, have: list[str], name: str | Path) -> str:
    """What a split is called there."""
    for spelling in SPLITS[split]:
        if spelling in have:
            return spelling
    raise FileNotFoundError(f"{name} has no {split} split (it has {', '.join(have)})")
