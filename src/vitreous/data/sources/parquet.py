"""Images in parquet files, as the Hugging Face Hub keeps them: a column of encoded images and one of classes.

In goes a file, a pattern or a folder; out comes a `Source`. The labels are read at once, the images a row group at a
time when they are asked for, by any number of threads and processes.
"""

from __future__ import annotations

import json
import os
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitreous.data.finding import split_pattern
from vitreous.data.image_dataset import ImageDataset, digest, file_state
from vitreous.data.images import ImageError, read_image
from vitreous.data.sources.columns import Columns, choose_columns, number_labels
from vitreous.data.sources.row_groups import RowGroups
from vitreous.data.sources.source import SPELLINGS, Source

if TYPE_CHECKING:
    from PIL.Image import Image


def find_parquet(name: str | Path) -> tuple[Path, ...]:
    """The parquet files that a file, a pattern or a folder names, in order; none where it names something else."""
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
    """Files at the top, in data/, or in train/, test/ and so on: the three layouts of the Hub."""
    top = tuple(sorted(folder.glob("*.parquet")))
    folders = [path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")]
    if any(split_of(path) for path in top) or (top and all(path.name == "data" for path in folders)):
        return top  # but features.parquet beside folders of images is not the set
    if found := tuple(sorted((folder / "data").glob("*.parquet"))):
        return found
    return tuple(path for part in SPELLINGS for path in sorted((folder / part).glob("*.parquet")))


def split_of(path: Path) -> str | None:
    """The split that a file belongs to by its name, or by its folder's.

    >>> split_of(Path("data/validation-00000-of-00001.parquet")), split_of(Path("test/0000.parquet"))
    ('validation', 'test')
    """
    words = re.match(r"[a-z]*", path.stem)
    found = words.group() if words else ""
    return found if found in SPELLINGS else path.parent.name if path.parent.name in SPELLINGS else None


def parquet_source(name: str | Path, files: Sequence[Path]) -> Source:
    """The splits that parquet files make up by their names; files without such names are one set."""
    groups: dict[str | None, list[Path]] = {}
    for file in files:
        groups.setdefault(split_of(file), []).append(file)
    is_folder = Path(name).expanduser().is_dir()
    title = Path(name).name if is_folder else files[0].name if len(files) == 1 else str(name)
    splits = {split: group for split, group in groups.items() if split is not None}
    if None in groups and splits:
        stray = groups[None][0].name
        raise ValueError(f"{name} has files of a split and others, such as {stray}: name all by split, or none")
    # files that were named one by one are all there to test on; a folder of train files alone is not
    whole = len(groups) == 1 and not (is_folder and splits)
    return Source(
        name=str(name),
        splits={split: partial(from_parquet, group, title, files) for split, group in splits.items()},
        whole=partial(from_parquet, files, title) if whole else None,
        layout=f"{name}/{{}}-*.parquet" if is_folder else "",
    )


def from_parquet(files: Sequence[Path], name: str = "", family: Sequence[Path] = ()) -> ImageDataset:
    """A set from parquet files. `family` are the files of all splits: classes without names are counted over them."""
    name = name or files[0].name
    columns = _columns(files)
    values = [_labels(file, columns.label) for file in files]
    names = columns.class_names
    if names is None and family:  # without this, test images of fewer classes would be numbered otherwise
        everything = [value for file in family for value in _labels(file, columns.label) if value not in (None, -1)]
        names, _ = number_labels(everything, None, name)
    names, labels = number_labels([value for part in values for value in part], names, name)
    if not labels:
        raise ValueError(f"{name} holds no images: its parquet files have no rows")
    ends = tuple(sum(len(part) for part in values[: place + 1]) for place in range(len(files)))
    images = _Images(RowGroups(tuple(files), columns.image), ends)
    return ImageDataset(name, names, labels, images, images.where, partial(_source, tuple(files)))


class _Images:
    """Image `i` of several files."""

    def __init__(self, groups: RowGroups, ends: tuple[int, ...]) -> None:
        self.groups, self.ends = groups, ends

    def __call__(self, i: int) -> Image:
        file, row = self.place(i)
        try:
            data = self.groups.read(file, row)
            if not data:
                raise ImageError("", "the row holds no bytes of an image: save the images themselves, not paths")
            return read_image(data)
        except (ValueError, OSError) as error:
            reason = error.reason if isinstance(error, ImageError) else f"the parquet file is damaged ({error})"
            raise ImageError(f"{self.groups.files[file]} row {row}", reason) from error

    def where(self, i: int) -> str:
        file, row = self.place(i)
        return f"{self.groups.files[file].name} row {row}"

    def place(self, i: int) -> tuple[int, int]:
        """The file and the row in it."""
        if not 0 <= i < self.ends[-1]:
            raise IndexError(f"image {i} of {self.ends[-1]}")
        file = bisect_right(self.ends, i)
        return file, i - (self.ends[file - 1] if file else 0)


def _source(files: tuple[Path, ...]) -> str:
    return digest(text for file in files for text in (os.path.abspath(file), file_state(file)))


# --- reading what files say about themselves --------------------------------------------------------------------------


def _columns(files: Sequence[Path]) -> Columns:
    """The columns of the first file, which the others have to have as well."""
    found = [choose_columns(_features(file), file.name) for file in files]
    for file, columns in zip(files, found, strict=True):
        if columns != found[0]:
            raise ValueError(f"{file.name} and {files[0].name} differ in their columns or classes: name one of them")
    return found[0]


def _features(file: Path) -> Mapping[str, Any]:
    """Columns and their types as the Hub writes them, or what the columns' own types suggest."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        schema = pq.read_schema(file, memory_map=True)
    except (pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{file} cannot be read as parquet: download it again ({reason})") from error
    features: dict[str, Any] = {}
    for column in schema:
        binary = [
            field for field in _fields(column.type) if pa.types.is_binary(field) or pa.types.is_large_binary(field)
        ]
        features[column.name] = {"_type": "Image" if binary else "Value"}
    try:
        message = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
    except (ValueError, KeyError, TypeError):
        message = {}
    return features | {name: value for name, value in message.items() if name in features}


def _fields(kind: Any) -> list[Any]:
    """A struct's `bytes`, or the type itself."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return [field.type for field in kind if field.name == "bytes"]
    return [kind]


def _labels(file: Path, column: str) -> list[Any]:
    import pyarrow.parquet as pq

    return pq.ParquetFile(file, memory_map=True).read([column], use_threads=False).column(0).to_pylist()
