"""Open parquet files as the Hugging Face Hub writes them: a column of encoded images and one of classes.

The labels are read at once, the images a row group at a time when they are needed, by any number of threads and
processes.
"""

from __future__ import annotations

import json
import os
import re
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitreous.data.dataset_source import SPELLINGS, DatasetSource
from vitreous.data.finding import split_pattern
from vitreous.data.image_dataset import ImageDataset, digest, file_state, list_some
from vitreous.data.images import ImageError, read_image

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGE_COLUMNS = ("image", "img", "picture", "jpg", "png", "webp")
LABEL_COLUMNS = ("label", "labels", "fine_label", "class", "target", "cls")
CACHE_BYTES = 256 * 2**20  # all of CIFAR-10, twice; 20 row groups of ImageNet


def find_parquet(name: str | Path) -> tuple[Path, ...]:
    """List the parquet files that a file, a pattern or a folder names, in order; none if it names something else."""
    path = Path(name).expanduser()
    if path.is_dir():
        return _in_folder(path)
    if path.is_file():
        return (path,) if path.suffix == ".parquet" else ()
    if (parts := split_pattern(path)) is None:
        return ()
    folder, pattern = parts
    return tuple(sorted(found for found in folder.glob(str(pattern)) if found.suffix == ".parquet"))


def _in_folder(folder: Path) -> tuple[Path, ...]:
    """List parquet files at the top, in data/, or in train/, test/ and so on: the three layouts of the Hub."""
    top = tuple(sorted(folder.glob("*.parquet")))
    folders = [path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")]
    if any(split_of(path) for path in top) or (top and all(path.name == "data" for path in folders)):
        return top  # but features.parquet beside folders of images is not the dataset
    if found := tuple(sorted((folder / "data").glob("*.parquet"))):
        return found
    return tuple(path for part in SPELLINGS for path in sorted((folder / part).glob("*.parquet")))


def split_of(path: Path) -> str | None:
    """Return the split of a parquet file, by its name or by its folder's.

    >>> split_of(Path("data/validation-00000-of-00001.parquet")), split_of(Path("test/0000.parquet"))
    ('validation', 'test')
    """
    words = re.match(r"[a-z]*", path.stem)
    found = words.group() if words else ""
    return found if found in SPELLINGS else path.parent.name if path.parent.name in SPELLINGS else None


def parquet_source(name: str | Path, files: Sequence[Path]) -> DatasetSource:
    """Group parquet files to splits by their names; files without such names are one dataset."""
    groups: dict[str | None, list[Path]] = {}
    for file in files:
        groups.setdefault(split_of(file), []).append(file)
    is_folder = Path(name).expanduser().is_dir()
    title = Path(name).name if is_folder else files[0].name if len(files) == 1 else str(name)
    splits = {split: group for split, group in groups.items() if split is not None}
    if None in groups and splits:
        stray = groups[None][0].name
        raise ValueError(f"{name} has files of a split and others, such as {stray}: name all by split, or none")
    # files that were named one by one are a test split; a folder of train files alone is not
    whole = len(groups) == 1 and not (is_folder and splits)
    return DatasetSource(
        name=str(name),
        splits={split: partial(from_parquet, group, title, files) for split, group in splits.items()},
        whole=partial(from_parquet, files, title) if whole else None,
        layout=f"{name}/{{}}-*.parquet" if is_folder else "",
    )


def from_parquet(files: Sequence[Path], name: str = "", family: Sequence[Path] = ()) -> ImageDataset:
    """Open parquet files as a dataset. `family` are the files of all splits: unnamed classes are counted over them."""
    name = name or files[0].name
    columns = _columns(files)
    values = [_labels(file, columns.label) for file in files]
    names = columns.class_names
    if names is None and family:  # else test images of fewer classes would be numbered differently
        everything = [value for file in family for value in _labels(file, columns.label) if value not in (None, -1)]
        names, _ = number_labels(everything, None, name)
    names, labels = number_labels([value for part in values for value in part], names, name)
    if not labels:
        raise ValueError(f"{name} holds no images: its parquet files have no rows")
    ends = tuple(accumulate(len(part) for part in values))
    images = _ParquetImages(RowGroups(tuple(files), columns.image), ends)
    return ImageDataset(name, names, labels, images, images.name_of, partial(_version, tuple(files)))


class _ParquetImages:
    """Read image `i` of several parquet files."""

    def __init__(self, groups: RowGroups, ends: tuple[int, ...]) -> None:
        self.groups, self.ends = groups, ends

    def __call__(self, i: int) -> Image:
        file, row = self.locate(i)
        try:
            data = self.groups.read(file, row)
            if not data:
                raise ImageError("", "the row holds no bytes of an image: save the images themselves, not paths")
            return read_image(data)
        except (ValueError, OSError) as error:
            reason = error.reason if isinstance(error, ImageError) else f"the parquet file is damaged ({error})"
            raise ImageError(f"{self.groups.files[file]} row {row}", reason) from error

    def name_of(self, i: int) -> str:
        file, row = self.locate(i)
        return f"{self.groups.files[file].name} row {row}"

    def locate(self, i: int) -> tuple[int, int]:
        """Return the number of the parquet file that holds an image, and the row in it."""
        if not 0 <= i < self.ends[-1]:
            raise IndexError(f"image {i} of {self.ends[-1]}")
        file = bisect_right(self.ends, i)
        return file, i - (self.ends[file - 1] if file else 0)


def _version(files: tuple[Path, ...]) -> str:
    """Hash the state of parquet files."""
    return digest(text for file in files for text in (os.path.abspath(file), file_state(file)))


# --- columns ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TableColumns:
    """The image and label columns of a parquet file or a Hub table."""

    image: str
    label: str
    class_names: tuple[str, ...] | None
    """None if the table does not name its classes."""


def choose_columns(features: Mapping[str, Any], title: str) -> TableColumns:
    """Choose the image and label columns of a parquet file (or Hub table) by their types, then by the usual names.

    >>> choose_columns({"img": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": ["cat", "dog"]}}, "zoo")
    TableColumns(image='img', label='label', class_names=('cat', 'dog'))
    """
    image = choose_image(features, title)
    kinds = {name: _kind(value) for name, value in features.items()}
    classes = [name for name, kind in kinds.items() if kind == "ClassLabel"]
    others = [name for name, kind in kinds.items() if kind == "Value" and name in LABEL_COLUMNS]
    label = _best(classes, LABEL_COLUMNS) or _best(others, LABEL_COLUMNS)
    if label is None:
        wanted = f"expected one such as {' or '.join(LABEL_COLUMNS[:3])}"
        raise ValueError(f"{title} has no single column of classes: {wanted}; it has {', '.join(features) or 'none'}")
    names = features[label].get("names")
    return TableColumns(image, label, tuple(str(name) for name in names) if names else None)


def choose_image(features: Mapping[str, Any], title: str) -> str:
    """Choose the image column of a parquet file (or Hub table) by its type, then by the usual names."""
    image = _best([name for name, value in features.items() if _kind(value) == "Image"], IMAGE_COLUMNS)
    if image is None:
        wanted = f"expected one with the bytes of encoded images, such as {' or '.join(IMAGE_COLUMNS[:2])}"
        listed = ", ".join(features) or "none"
        raise ValueError(f"{title} has no single column of images: {wanted}; it has {listed}")
    return image


def number_labels(
    values: Sequence[Any], class_names: tuple[str, ...] | None, title: str
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Number the classes of parquet files: their names, and for each value of the column an index into them.

    If the table does not name its classes, integers are their own names and words are sorted.

    >>> number_labels(["dog", "cat", "dog"], None, "zoo")
    (('cat', 'dog'), (1, 0, 1))
    >>> number_labels([2, 0], None, "zoo")
    (('0', '1', '2'), (2, 0))
    """
    if any(value is None for value in values) or (values and -1 in values):  # -1: the Hub's "no label"
        missing = sum(value is None or value == -1 for value in values)
        raise ValueError(f"{missing} of {len(values)} images of {title} have no class: choose a split that has them")
    if values and all(isinstance(value, str) for value in values):
        names = class_names or tuple(sorted(set(values)))
        index = {name: i for i, name in enumerate(names)}
        if unknown := sorted(set(values) - set(index)):
            raise ValueError(f"{title} has classes that its description does not name: {list_some(unknown)}")
        return names, tuple(index[value] for value in values)
    if not all(isinstance(value, int) for value in values):
        kind = next(type(value).__name__ for value in values if not isinstance(value, int))
        raise ValueError(f"classes of {title} have to be whole numbers or words, got {kind}")
    numbers = tuple(int(value) for value in values)
    names = class_names or tuple(str(i) for i in range(max(numbers, default=-1) + 1))
    if numbers and not (min(numbers) >= 0 and max(numbers) < len(names)):
        raise ValueError(
            f"{title} has class {max(numbers)}, but its description names {len(names)} classes: correct one of them"
        )
    return names, numbers


def _kind(feature: Any) -> str | None:
    """Return the type of a parquet column; a column of bytes counts as images."""
    if not isinstance(feature, Mapping):
        return None
    value = feature if "_type" in feature else feature.get("bytes", feature)
    is_value = isinstance(value, Mapping) and value.get("_type") == "Value"
    if is_value and str(value.get("dtype")).endswith("binary"):
        return "Image"
    return feature.get("_type")


def _best(found: list[str], usual: Sequence[str]) -> str | None:
    """Choose the one column of a parquet file that fits, or the one with a usual name."""
    if len(found) == 1:
        return found[0]
    return next((name for name in usual if name in found), None)


def _columns(files: Sequence[Path]) -> TableColumns:
    """Choose the image and label columns of the first parquet file; the others must have the same."""
    found = [choose_columns(_features(file), file.name) for file in files]
    for file, columns in zip(files, found, strict=True):
        if columns != found[0]:
            raise ValueError(f"{file.name} and {files[0].name} differ in their columns or classes: name one of them")
    return found[0]


def _features(file: Path) -> Mapping[str, Any]:
    """Return a parquet file's columns with their types as the Hub writes them, or as the columns' own types suggest."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        schema = pq.read_schema(file, memory_map=True)
    except (pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{file} cannot be read as parquet: download it again ({reason})") from error
    features = {column.name: {"_type": "Image" if _is_binary(column.type) else "Value"} for column in schema}
    try:
        features_of_hub = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
    except (ValueError, KeyError, TypeError):
        features_of_hub = {}
    return features | {name: value for name, value in features_of_hub.items() if name in features}


def _is_binary(kind: Any) -> bool:
    """Return whether a parquet column, or the field `bytes` of a struct, holds bytes."""
    import pyarrow as pa

    kinds = [field.type for field in kind if field.name == "bytes"] if pa.types.is_struct(kind) else [kind]
    return any(pa.types.is_binary(each) or pa.types.is_large_binary(each) for each in kinds)


def _labels(file: Path, column: str) -> list[Any]:
    """Read a column of labels from a parquet file."""
    import pyarrow.parquet as pq

    table = pq.ParquetFile(file, memory_map=True).read([column], use_threads=False)
    return list(table.column(0).to_pylist())


# --- rows by number, for many readers at once -------------------------------------------------------------------------


class RowGroups:
    """One column of encoded images in several files; the row groups used last are cached.

    Open files and the cache belong to one process: a copy in another, forked or pickled, opens the files again.
    """

    def __init__(self, files: tuple[Path, ...], column: str, cache_bytes: int = CACHE_BYTES) -> None:
        self.files, self.column, self.cache_bytes = files, column, cache_bytes
        self._opened = _Opened()

    def read(self, file: int, row: int) -> bytes | None:
        """Return the bytes in a row of a parquet file, None if it holds none."""
        opened = self._opened
        if opened.process != os.getpid():  # forked: the lock may be held by a thread of the parent
            self._opened = opened = _Opened()
        with opened.lock:
            if file not in opened.files:
                opened.files[file] = _File(self.files[file], self.column)
            group = bisect_right(opened.files[file].ends, row)
            first = opened.files[file].ends[group - 1] if group else 0
            if (file, group) in opened.cache:
                opened.cache.move_to_end((file, group))
            else:
                opened.add((file, group), opened.files[file].read(group), self.cache_bytes)
            column = opened.cache[file, group]
        value: bytes | None = column[row - first].as_py()
        return value

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_opened": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _opened=_Opened())


class _Opened:
    """The open parquet files and cached row groups of one process."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.lock = threading.Lock()  # one reader at a time; decoding, the larger part, is outside
        self.files: dict[int, _File] = {}
        self.cache: OrderedDict[tuple[int, int], Any] = OrderedDict()  # the least recently used first
        self.cache_bytes = 0

    def add(self, key: tuple[int, int], column: Any, limit: int) -> None:
        """Cache a row group of a parquet file, and drop those used longest ago beyond the limit of bytes."""
        self.cache[key] = column
        self.cache_bytes += column.nbytes
        while len(self.cache) > 1 and self.cache_bytes > limit:
            _, dropped = self.cache.popitem(last=False)
            self.cache_bytes -= dropped.nbytes


class _File:
    """One open parquet file and the ends of its row groups."""

    def __init__(self, path: Path, column: str) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.file = pq.ParquetFile(path)  # not mapped: truncating a mapped file kills the process by SIGBUS
        self.is_struct = pa.types.is_struct(self.file.schema_arrow.field(column).type)
        self.column = f"{column}.bytes" if self.is_struct else column
        metadata = self.file.metadata
        self.ends = list(accumulate(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)))

    def read(self, group: int) -> Any:
        table = self.file.read_row_group(group, columns=[self.column], use_threads=False)
        return (table.flatten() if self.is_struct else table).column(0)
