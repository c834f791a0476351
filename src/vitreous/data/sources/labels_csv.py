"""Open a table of labels as a dataset: `labels.csv`, or the Hub's `metadata.csv` and `metadata.jsonl`.

A row names an image (a path relative to the table) and its label, and perhaps a split:

    image,label,split
    photos/1.jpg,cat,train
    photos/2.jpg,dog,test

A row may have several labels (`cat;outdoor` in a column labels, or a column of 0 and 1 for each), or numbers instead:
`table_targets` reads these.
"""

import csv
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from vitreous.data.archives import split_member
from vitreous.data.dataset_source import SPELLINGS, DatasetSource
from vitreous.data.image_dataset import ImageDataset, digest, file_state
from vitreous.data.images import is_web_address
from vitreous.data.sources.table_targets import Table, Target, cell_text, guess_task, read_target, spell_target
from vitreous.runtime.wording import count

SUFFIXES = (".csv", ".tsv", ".jsonl")
NOUNS = {"classify": "labels", "multilabel": "sets of labels", "regress": "rows of numbers"}
TABLES = ("labels.csv", "metadata.jsonl", "metadata.csv")
"""Tables that make a folder a dataset, if they have labels; the last one counts."""

Row = tuple[str, Target, str | None]
"""An image's path, its label (or labels, or numbers) and its split."""


def find_tables(path: Path, *, labels: bool = True) -> dict[str | None, Path]:
    """Find the tables of labels that a file or a folder stands for, by split; a folder's own is that of None.

    A folder has one at its top, or one in each of `train/`, `test/` and so on, as the Hub has it. A folder's table has
    a column of labels; without `labels`, other columns will do.
    """
    if path.is_file():
        return {None: path} if path.suffix.lower() in SUFFIXES else {}
    for parts in ((None,), SPELLINGS):
        inner = [(part, path / (part or "") / name) for part in parts for name in TABLES]
        found = {part: table for part, table in inner if _has_columns(table, labels)}
        if found:
            return found
    return {}


def table_source(name: str | Path, tables: Mapping[str | None, Path], task: str | None = None) -> DatasetSource:
    """Group the rows of tables of labels to splits, by the column split or by the table's folder."""
    read = {part: open_table(table) for part, table in tables.items()}
    task = task or guess_task(list(read.values()))
    if task == "segment":
        raise ValueError(f"{name} is a table, and masks are not read from it: name a folder with images/ and masks/")
    rows = {part: read_rows(table, task) for part, table in read.items()}
    class_names = _class_names(list(read.values()), rows.values(), task)
    groups: dict[str | None, list[tuple[Path, Row]]] = {}
    for part, table in tables.items():
        for row in rows[part]:
            groups.setdefault(part or row[2], []).append((table.parent, row))
    title = Path(name).name
    opened = {split: partial(_from_rows, title, class_names, group, name, task) for split, group in groups.items()}
    return DatasetSource(
        name=str(name),
        splits={split: opener for split, opener in opened.items() if split is not None},
        whole=opened.get(None),
        layout="a row with that word in its column split",
        task=task,
    )


def _class_names(tables: Sequence[Table], rows: Iterable[list[Row]], task: str) -> tuple[str, ...]:
    """Name the classes, labels or numbers of the dataset that a CSV holds: words in order, or columns.

    Words that are all numbers are in the order of their values.
    """
    if task == "classify" or (task == "multilabel" and tables[0].label):
        targets = (target for part in rows for _, target, _ in part)
        words = {str(word) for target in targets for word in ((target,) if isinstance(target, str) else target)}
        if not words:
            raise ValueError(f"{tables[0].path} has no label in any row: expected some, such as cat;outdoor")
        return tuple(sorted(words, key=int if all(word.isdecimal() for word in words) else str))
    for table in tables[1:]:
        if table.others != tables[0].others:
            raise ValueError(f"{tables[0].path} and {table.path} have different columns: give both the same")
    return tuple(column.strip() for column in tables[0].others)


def _from_rows(
    title: str, class_names: tuple[str, ...], group: Sequence[tuple[Path, Row]], name: str | Path, task: str
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
    whole = partial(ImageDataset, title, class_names, image=paths.__getitem__, name_of=names.__getitem__)
    found = [target for _, (_, target, _) in group]
    if task == "classify":
        return whole(labels=tuple(index[str(target)] for target in found), version=partial(_version, paths))
    if missing := [i for i, path in enumerate(paths) if not _state(path)]:
        count = f"{len(missing):,} of {len(paths):,} images of {name} {'do' if len(missing) > 1 else 'does'} not exist"
        raise FileNotFoundError(f"{count}, such as {names[missing[0]]}: correct the path, or remove the row")
    targets = np.zeros((len(group), len(class_names)), np.float32)
    for row, target in zip(targets, found, strict=True):
        if task == "multilabel":
            row[[index[str(word)] for word in target]] = 1
        else:
            row[:] = target
    return whole(labels=(0,) * len(group), version=partial(_version, paths), task=task, targets=targets)


def _state(path: str) -> str:
    """Return size and time of an image file that a CSV of labels names, or of its archive; empty if neither exists."""
    try:
        return file_state(Path(path))
    except OSError:
        found = split_member(path)
        return "" if found is None else file_state(found[0])


def _version(paths: Sequence[str]) -> str:
    """Hash the files that a table of labels names, for the dataset's fingerprint."""
    return digest(chain.from_iterable((os.path.abspath(path), _state(path)) for path in paths))


# --- rows -------------------------------------------------------------------------------------------------------------


def open_table(path: Path) -> Table:
    """Read a table of labels, whose columns have any of their usual names; a `ValueError` if it has no images."""
    header, values = _read(path)
    table = Table(path, tuple(header), values)
    if not table.image:
        columns = ", ".join(header) or "none"
        raise ValueError(f"{path} has no column image (or file_name): its columns are {columns}")
    return table


def read_rows(table: Table, task: str) -> list[Row]:
    """Return the rows of a table of labels; a `ValueError` says what is missing."""
    title, read = table.path.name, read_target(table, task)
    rows: list[Row] = []
    targets: dict[str, Target] = {}
    splits: dict[str, str | None] = {}
    for number, value in enumerate(table.values):
        name = cell_text(value.get(table.image))
        part = cell_text(value.get(table.split)).lower() if table.split else None
        if not name:
            raise ValueError(f"row {number} of {title} has no image: fill it in, or remove the row")
        target = read(number, value)
        if table.split and part not in SPELLINGS:
            raise ValueError(f"row {number} of {title} has split {part!r}: expected {', '.join(SPELLINGS)}")
        if is_web_address(name):
            raise ValueError(f"row {number} of {title} is a URL: download the images, and name their files")
        if (other := targets.setdefault(name, target)) != target:
            both = f"{spell_target(other)} and {spell_target(target)}"
            raise ValueError(f"{title} gives {name} two {NOUNS[task]}, {both}: keep one of them")
        if (before := splits.setdefault(name, part)) != part:
            raise ValueError(f"{title} has {name} in the splits {before} and {part}: keep one of the rows")
        rows.append((name, target, part))
    if not rows:
        raise ValueError(f"{table.path} has no rows: expected one for each image")
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
    separator = max(",;\t", key=first.count)
    reader = csv.DictReader(text.splitlines(), delimiter=separator, skipinitialspace=True)
    try:
        header, values = list(reader.fieldnames or ()), list(reader)
    except csv.Error as error:
        raise ValueError(f"{table} cannot be read as a table ({error}): save it again as .csv") from error
    for number, row in enumerate(values):
        missing, surplus = sum(cell is None for cell in row.values()), row.get(None) or []
        if missing or any(surplus):
            cells = count(len(header) - missing + len(surplus), "cell")
            advice = "fill in the others" if missing else f"put a cell with {separator!r} in quotes"
            raise ValueError(f"row {number} of {table.name} has {cells} for {len(header)} columns: {advice}")
    return header, [*values]


def _has_columns(table: Path, labels: bool) -> bool:
    """Return whether a .csv or .jsonl table has columns of images and labels (or others), by its first line."""
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
    found = Table(table, tuple(header), [])
    return bool(found.image) and bool(found.label or (not labels and found.others))
