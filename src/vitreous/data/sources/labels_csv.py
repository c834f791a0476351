"""Open a table of labels as a dataset: `labels.csv`, or the Hub's `metadata.csv` and `metadata.jsonl`.

A row names an image (a path relative to the table) and its label, and perhaps a split:

    image,label,split
    photos/1.jpg,cat,train
    photos/2.jpg,dog,test
"""

import csv
import json
import os
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from vitreous.data.archives import split_member
from vitreous.data.image_dataset import SPELLINGS, DatasetSource, ImageDataset, digest, file_state
from vitreous.data.images import is_web_address
from vitreous.data.sources.parquet import LABEL_COLUMNS

IMAGE_COLUMNS = ("image", "file_name", "filename", "file", "path", "image_path", "img")
LABELS = (*LABEL_COLUMNS, "class_name", "category")
SPLIT_COLUMNS = ("split", "subset")
SUFFIXES = (".csv", ".tsv", ".jsonl")
TABLES = ("labels.csv", "metadata.jsonl", "metadata.csv")
"""Tables that make a folder a dataset, if they have labels; the last one counts."""

Row = tuple[str, str, str | None]
"""An image's path, its label and its split."""


def find_tables(path: Path) -> dict[str | None, Path]:
    """Find the tables of labels that a file or a folder stands for, by split; a folder's own is that of None.

    A folder has one at its top, or one in each of `train/`, `test/` and so on, as the Hub has it.
    """
    if path.is_file():
        return {None: path} if path.suffix.lower() in SUFFIXES else {}
    for parts in ((None,), SPELLINGS):
        inner = {part: path / (part or "") for part in parts}
        found = {part: folder / name for part, folder in inner.items() for name in TABLES if _has_labels(folder / name)}
        if found:
            return found
    return {}


def table_source(name: str | Path, tables: Mapping[str | None, Path]) -> DatasetSource:
    """Group the rows of tables of labels to splits, by the column split or by the table's folder."""
    rows = {part: read_table(table) for part, table in tables.items()}
    class_names = _sorted_names({label for part in rows.values() for _, label, _ in part})
    groups: dict[str | None, list[tuple[Path, Row]]] = {}
    for part, table in tables.items():
        for row in rows[part]:
            groups.setdefault(part or row[2], []).append((table.parent, row))
    title = Path(name).name
    opened = {split: partial(_from_rows, title, class_names, group, name) for split, group in groups.items()}
    return DatasetSource(
        name=str(name),
        splits={split: opener for split, opener in opened.items() if split is not None},
        whole=opened.get(None),
        layout="a row with that word in its column split",
    )


def _from_rows(
    title: str, class_names: tuple[str, ...], group: Sequence[tuple[Path, Row]], name: str | Path
) -> ImageDataset:
    """Make a dataset from the rows of a table of labels."""
    names = tuple(image for _, (image, _, _) in group)
    paths = tuple(os.path.join(folder, image) for folder, (image, _, _) in group)
    if not any(map(_state, paths)):
        raise FileNotFoundError(
            f"none of the {len(paths):,} images of {name} exists, such as {names[0]}: its paths are relative to "
            f"{group[0][0]}"
        )
    index = {label: i for i, label in enumerate(class_names)}
    labels = tuple(index[label] for _, (_, label, _) in group)
    return ImageDataset(title, class_names, labels, paths.__getitem__, names.__getitem__, partial(_version, paths))


def _state(path: str) -> str:
    """Return size and time of a labelled image's file, or of the archive that it is in; empty if there is neither."""
    try:
        return file_state(Path(path))
    except OSError:
        found = split_member(path)
        return "" if found is None else file_state(found[0])


def _version(paths: Sequence[str]) -> str:
    """Hash the files that a table of labels names, for the dataset's fingerprint."""
    return digest(chain.from_iterable((os.path.abspath(path), _state(path)) for path in paths))


def _sorted_names(names: set[str]) -> tuple[str, ...]:
    """Sort the class names in a table of labels; numbers by their value."""
    return tuple(sorted(names, key=int if all(name.isdecimal() for name in names) else str))


# --- rows -------------------------------------------------------------------------------------------------------------


def read_table(table: Path) -> list[Row]:
    """Return the rows of a table of labels; a `ValueError` says what is missing."""
    header, values = _read(table)
    image, label = _column(header, IMAGE_COLUMNS), _column(header, LABELS)
    if image is None or label is None:
        missing = "image (or file_name)" if image is None else "label"
        raise ValueError(f"{table} has no column {missing}: its columns are {', '.join(header) or 'none'}")
    split = _column(header, SPLIT_COLUMNS)
    rows: list[Row] = []
    labels: dict[str, str] = {}
    for number, value in enumerate(values):
        name, word = (_text(value.get(column)) for column in (image, label))
        part = _text(value.get(split)).lower() if split else None
        if not name or not word:
            what = "image" if not name else "label"
            raise ValueError(f"row {number} of {table.name} has no {what}: fill it in, or remove the row")
        if split and part not in SPELLINGS:
            raise ValueError(f"row {number} of {table.name} has split {part!r}: expected {', '.join(SPELLINGS)}")
        if is_web_address(name):
            raise ValueError(f"row {number} of {table.name} is a URL: download the images, and name their files")
        if labels.setdefault(name, word) != word:
            raise ValueError(f"{table.name} gives {name} two labels, {labels[name]!r} and {word!r}: keep one of them")
        rows.append((name, word, part))
    if not rows:
        raise ValueError(f"{table} has no rows: expected one for each image")
    return rows


def _read(table: Path) -> tuple[list[str], list[Mapping[str, Any]]]:
    """Read the columns and the rows of a .csv, .tsv or .jsonl file of labels."""
    try:
        text = table.read_text(encoding="utf-8-sig")
        if table.suffix.lower() == ".jsonl":
            found = [json.loads(line) for line in text.splitlines() if line.strip()]
            if not all(isinstance(row, dict) for row in found):
                raise ValueError("a line is not an object")
            return list(dict.fromkeys(chain.from_iterable(found))), found
    except ValueError as error:
        kind = "lines of JSON" if table.suffix.lower() == ".jsonl" else "text in UTF-8"
        raise ValueError(f"{table} cannot be read as {kind} ({error}): save it again") from error
    first = text.partition("\n")[0]
    reader = csv.DictReader(text.splitlines(), delimiter=max(",;\t", key=first.count), skipinitialspace=True)
    try:
        return list(reader.fieldnames or ()), list(reader)
    except csv.Error as error:
        raise ValueError(f"{table} cannot be read as a table ({error}): save it again as .csv") from error


def _has_labels(table: Path) -> bool:
    """Return whether a .csv or .jsonl table has columns of images and labels, by its first line."""
    if not table.is_file():
        return False
    with table.open(encoding="utf-8-sig", errors="replace") as file:
        first = file.readline(1 << 16)
    if table.suffix == ".jsonl":
        try:
            header = list(json.loads(first))
        except (ValueError, TypeError):
            return False
    else:
        header = [word.strip(' "\r\n') for word in first.split(max(",;\t", key=first.count))]
    return _column(header, IMAGE_COLUMNS) is not None and _column(header, LABELS) is not None


def _column(header: Sequence[str], usual: Sequence[str]) -> str | None:
    """Find a column of a table of labels by its usual names."""
    found = {str(name).strip().lower(): name for name in reversed(header)}
    return next((found[name] for name in usual if name in found), None)


def _text(value: Any) -> str:
    """Return a cell of a table of labels as text; an empty cell, a missing one and a list are nothing."""
    return "" if value is None or isinstance(value, list | dict) else str(value).strip()
