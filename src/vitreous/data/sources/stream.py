"""`ImageStream`: datasets that are too large to keep, streamed from the Hub or parquet files, split by rank and worker.

`stream_dataset("org/name", "train")` is an iterable of (image, label) with class names; it needs the extra `[hub]`.
Several labels are a column of lists of named classes, or a column of true and false for each; numbers are columns of
floats (`choose_targets`).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import IterableDataset

from vitreous.data.dataset_source import SPLITS, split_parts
from vitreous.data.image_dataset import ImageDataset
from vitreous.data.sources.hub import PREFIX, decode_cell, hub_builder, library
from vitreous.data.sources.parquet import LABEL_COLUMNS, choose_columns, choose_image, find_parquet, split_of
from vitreous.data.sources.table_targets import ID_COLUMNS, Table, read_cell, to_flag, to_number

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True)
class ImageStream(IterableDataset[Any]):
    """A stream of images with a class each, or with labels or numbers, read in sequence.

    A torch `DataLoader` takes it as it is: its workers share the files among themselves. An image that cannot be read
    raises an `ImageError`, and the next `next()` continues after it.
    """

    name: str
    class_names: tuple[str, ...]
    rows: Any
    """The library's own iterable, with the columns `image` (not decoded) and `label`, or those of flags or numbers."""
    rank: int = 0
    world_size: int = 1
    seed: int | None = None
    """Seed of the shuffle; None: in the order of the files."""
    epoch: int = 0
    buffer: int = 1000
    """How many rows the shuffle chooses from; the order of the files is shuffled too."""
    images: int | None = None
    """The number of images over all ranks, if the dataset states it."""
    task: str = "classify"
    """classify, multilabel or regress."""
    lists: bool = False
    """multilabel: `label` is a list of classes; else each of `class_names` is a column of true and false."""

    def shard(self, rank: int, world_size: int) -> ImageStream:
        """Return one rank's part of a stream; the parts of all ranks are disjoint and make up the whole."""
        if not 0 <= rank < world_size:
            raise ValueError(f"rank has to be from 0 to {world_size - 1}, got {rank}")
        return replace(self, rank=rank, world_size=world_size)

    def shuffled(self, seed: int, epoch: int = 0, buffer: int = 1000) -> ImageStream:
        """Shuffle a stream by seed and epoch, reproducibly; all ranks pass the same seed."""
        return replace(self, seed=seed, epoch=epoch, buffer=buffer)

    def __iter__(self) -> Iterator[tuple[Image, Any]]:
        return map(self.read, self.undecoded())  # not a generator, which an error would end

    def undecoded(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield a stream's numbered rows, not decoded, for `read`."""
        from datasets.distributed import split_dataset_by_node

        rows = self.rows
        if self.seed is not None:
            rows = rows.shuffle(seed=self.seed, buffer_size=self.buffer)
        if self.world_size > 1:
            rows = split_dataset_by_node(rows, self.rank, self.world_size)
        if self.seed is not None:
            rows.set_epoch(self.epoch)  # last: each step above makes a new iterable, which is at epoch 0
        return enumerate(rows)

    def read(self, numbered: tuple[int, dict[str, Any]]) -> tuple[Image, Any]:
        """Decode a row of a stream to an image and its class, or its targets `[k]`."""
        target = self.label(numbered) if self.task == "classify" else self.targets(numbered)
        return decode_cell(numbered[1]["image"], self._name(*numbered)), target

    def targets(self, numbered: tuple[int, dict[str, Any]]) -> NDArray[np.float32]:
        """Return the labels of a row of a stream, 1 for each that the image has, or its numbers: float32 `[k]`."""
        number, row = numbered
        if self.lists:
            known = [self.label((number, row | {"label": each})) for each in row["label"] or ()]
            return np.isin(np.arange(len(self.class_names)), known).astype(np.float32)
        table = Table(Path(self.name), self.class_names, ())
        kind = (to_number, "a number") if self.task == "regress" else (to_flag, "0 or 1")
        return np.array([read_cell(table, name, number, row, *kind) for name in self.class_names], np.float32)

    def label(self, numbered: tuple[int, dict[str, Any]]) -> int:
        """Return the class of a row of a stream; the image is not decoded."""
        label, name = numbered[1]["label"], self._name(*numbered)
        if isinstance(label, str) and label in self.class_names:
            label = self.class_names.index(label)
        if not isinstance(label, int) or not 0 <= label < len(self.class_names):
            raise ValueError(f"{name} has class {label!r}: expected 0 to {len(self.class_names) - 1}")
        return label

    def _name(self, number: int, row: dict[str, Any]) -> str:
        """Name a row of a stream for messages."""
        path = row["image"].get("path") if isinstance(row["image"], dict) else None
        return f"{self.name} {path or f'#{number} of this reader'}"


def choose_targets(features: Mapping[str, Any], title: str, task: str | None) -> tuple[str, tuple[str, ...]]:
    """Choose what a stream is learned for by the types of its columns: the task, and the columns of its targets.

    A column of lists holds several labels; of other columns, those of true and false are labels, those of floats are
    numbers. If `task` says so and there are none of these, whole numbers will do. A class comes first.

    >>> number, flag = {"_type": "Value", "dtype": "float32"}, {"_type": "Value", "dtype": "bool"}
    >>> choose_targets({"image": {"_type": "Image"}, "age": number}, "zoo", None)
    ('regress', ('age',))
    >>> choose_targets({"image": {"_type": "Image"}, "cat": flag, "outdoor": flag}, "zoo", None)
    ('multilabel', ('cat', 'outdoor'))
    """
    if task == "segment":
        raise ValueError(f"masks are not read from a stream: download {title}, as a folder with images/ and masks/")
    lists = [name for name in LABEL_COLUMNS if "feature" in features.get(name, ())]
    values = {name: str(value["dtype"]) for name, value in features.items() if value.get("_type") == "Value"}
    columns = {name: kind.strip("u0123456789") for name, kind in values.items() if name.lower() not in ID_COLUMNS}
    kinds = {kind: [name for name, own in columns.items() if own == kind] for kind in ("bool", "float", "int")}
    classes = [name for name, value in features.items() if value.get("_type") == "ClassLabel"]
    classes += [name for name in LABEL_COLUMNS if name in values and name not in kinds["float"] + kinds["bool"]]
    if task is None:
        task = "multilabel" if lists and not classes else "classify"
        if not lists and not classes and (kinds["float"] or kinds["bool"]):
            task = "regress" if kinds["float"] else "multilabel"
    if task == "classify":
        return task, ()
    found = lists[:1] if task == "multilabel" else []
    found = found or kinds["bool" if task == "multilabel" else "float"] or kinds["int"]
    if not found:
        wanted = "lists of labels, or of true and false" if task == "multilabel" else "numbers"
        raise ValueError(f"{title} has no columns of {wanted}: it has {', '.join(features)}")
    return task, tuple(found)


def stream_dataset(
    name: str | Path,
    split: str = "train",
    root: Path | None = None,
    class_names: Sequence[str] | None = None,
    task: str | None = None,
) -> ImageStream:
    """Stream a dataset from the Hub, or parquet files; pass `class_names` if it does not name its classes.

    `task` is classify, multilabel or regress; None: by the types of the columns.
    """
    if len(split_parts(split)) > 1:
        raise ValueError(f"a stream reads one split, got {split!r}")
    datasets = library(str(name))
    if files := find_parquet(name):
        import pyarrow.parquet as pq

        groups: dict[str, list[str]] = {}
        for file in files:
            groups.setdefault(split_of(file) or split, []).append(str(file))
        chosen = groups[_spelled(split, list(groups), name)]
        rows = datasets.load_dataset("parquet", data_files={split: chosen}, split=split, streaming=True)
        count: int | None = sum(pq.read_metadata(file).num_rows for file in chosen)
    else:
        builder = hub_builder(str(name), root)
        known = builder.info.splits or {}
        spelled = _spelled(split, list(known or SPLITS[split]), name)
        rows = builder.as_streaming_dataset(split=spelled)
        count = (known[spelled].num_examples or None) if known else None
    title = str(name).removeprefix(PREFIX)
    if rows.features is None:
        raise ValueError(f"{title} does not say which columns it has: download it, and give the folder")
    features = rows.features.to_dict()
    task, targets = choose_targets(features, title, task)
    if task == "classify":
        columns = choose_columns(features, title)
        image, targets, names = columns.image, (columns.label,), tuple(class_names or columns.class_names or ())
    else:
        image, inner = choose_image(features, title), features[targets[0]].get("feature")
        names = targets if inner is None else tuple(class_names or inner.get("names") or ())
    if not names:
        raise ValueError(f"{title} does not name its classes, and a stream cannot look ahead: give class_names")
    rows = rows.cast_column(image, datasets.Image(decode=False))
    rows = rows.select_columns([image, *targets])
    renamed = {image: "image"} | ({} if names is targets else {targets[0]: "label"})
    rows = rows.rename_columns({old: new for old, new in renamed.items() if old != new})
    return ImageStream(title, names, rows, images=count, task=task, lists=task == "multilabel" and names is not targets)


def take_first(stream: ImageStream, count: int) -> ImageDataset:
    """Keep the first `count` rows of a stream in memory, encoded as they are, as a dataset to test on."""
    rows = [row for _, row in islice(stream.undecoded(), count + 1)]
    if len(rows) > count:
        warnings.warn(f"{stream.name}: only the first {count:,} test images are kept and reported on", stacklevel=2)
        rows.pop()
    make = partial(ImageDataset, stream.name, stream.class_names, image=lambda i: stream.read((i, rows[i]))[0])
    if stream.task == "classify":
        return make(labels=tuple(stream.label(numbered) for numbered in enumerate(rows)))
    targets = np.stack([stream.targets(numbered) for numbered in enumerate(rows)])
    return make(labels=(0,) * len(rows), task=stream.task, targets=targets)


def _spelled(split: str, have: list[str], name: str | Path) -> str:
    """Return a split's name as a streamed dataset spells it."""
    for spelling in SPLITS[split]:
        if spelling in have:
            return spelling
    raise FileNotFoundError(f"{name} has no {split} split (it has {', '.join(have)})")
