"""Read the targets of a table's rows: a class, several labels, or numbers; guess which of these a table holds.

    image,labels              image,cat,outdoor         image,age,height
    1.jpg,cat;outdoor         1.jpg,1,1                 1.jpg,31,1.75
    2.jpg,                    2.jpg,0,0                 2.jpg,42,1.80

Labels are separated by ; or | (in .jsonl they may be lists), and an empty cell means that an image has none of them.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from vitreous.data.sources.parquet import LABEL_COLUMNS

IMAGE_COLUMNS = ("image", "file_name", "filename", "file", "path", "image_path", "img")
LABELS = (*LABEL_COLUMNS, "class_name", "category")
SPLIT_COLUMNS = ("split", "subset")
ID_COLUMNS = ("", "id", "index", "unnamed: 0", "image_id", "row")
"""Columns that number the rows: neither labels nor numbers to learn."""
SEPARATORS = re.compile(r"[;|]")
FLAGS = {"0": 0.0, "1": 1.0, "0.0": 0.0, "1.0": 1.0, "false": 0.0, "true": 1.0}

Target = str | tuple[str, ...] | tuple[float, ...]
"""A class, several labels or numbers."""


@dataclass(frozen=True)
class Table:
    """The columns and rows of a table of labels."""

    path: Path
    header: tuple[str, ...]
    values: Sequence[Mapping[str, Any]]

    @cached_property
    def image(self) -> str:
        """The column that names image files beside a table's targets; empty if there is none, as the next two."""
        return find_column(self.header, IMAGE_COLUMNS)

    @cached_property
    def label(self) -> str:
        return find_column(self.header, LABELS)

    @cached_property
    def split(self) -> str:
        return find_column(self.header, SPLIT_COLUMNS)

    @cached_property
    def others(self) -> tuple[str, ...]:
        """Columns of a table that may be targets: neither images nor splits nor numbers of rows."""
        known = (self.image, self.split)
        return tuple(name for name in self.header if name not in known and name.strip().lower() not in ID_COLUMNS)

    def cells(self, column: str) -> list[str]:
        """Return the texts of a table's column of targets that are not empty."""
        return [text for value in self.values if (text := cell_text(value.get(column)))]


def find_column(header: Sequence[str], usual: Sequence[str]) -> str:
    """Find the column of a table's targets, images or splits by its usual names; empty if there is none."""
    found = {str(name).strip().lower(): name for name in reversed(header)}
    return next((found[name] for name in usual if name in found), "")


def cell_text(value: Any) -> str:
    """Return a cell of a table, for its row's target, as text; an empty cell, a missing one and a list are nothing."""
    return "" if value is None or isinstance(value, list | dict) else str(value).strip()


def spell_target(target: Target) -> str:
    """Write the target of a table's row (class, labels or numbers) for a message.

    >>> spell_target("cat"), spell_target(("cat", "outdoor")), spell_target((31.0, 1.75))
    ("'cat'", "'cat;outdoor'", "'31;1.75'")
    """
    words = (target,) if isinstance(target, str) else target
    return repr(";".join(word if isinstance(word, str) else f"{word:g}" for word in words))


# --- which of them --------------------------------------------------------------------------------------------


def guess_task(tables: Sequence[Table]) -> str:
    """Guess from its columns whether a table holds a class for each image, several labels, or numbers."""
    tasks = [_guess(table) for table in tables]
    if "multilabel" in tasks and set(tasks) <= {"classify", "multilabel"}:
        return "multilabel"  # perhaps no image of another split has two labels
    for table, task in zip(tables, tasks, strict=True):
        if task != tasks[0]:
            raise ValueError(
                f"{tables[0].path} looks like --task {tasks[0]}, {table.path} like --task {task}: name the task"
            )
    return tasks[0]


def _guess(table: Table) -> str:
    """Guess which targets one table holds: a class for each image, several labels, or numbers.

    A table without labels or numbers is left to the error of classify.
    """
    if table.label:
        named = table.label.strip().lower() == "labels"
        cells = [value.get(table.label) for value in table.values]
        several = any(isinstance(cell, list) or (named and SEPARATORS.search(cell_text(cell))) for cell in cells)
        return "multilabel" if several else "classify"
    columns = {column: table.cells(column) for column in table.others}
    if not any(to_number(cell) is not None for cells in columns.values() for cell in cells):
        return "classify"
    shares = {  # of cells that are 0 or 1
        column: sum(to_flag(cell) is not None for cell in cells) / max(1, len(cells))
        for column, cells in columns.items()
    }
    numbers = [column for column, share in shares.items() if share <= 0.5]
    flags = [column for column, share in shares.items() if share == 1]
    if not numbers:  # another value in a few rows is a mistake to report, not a number to learn
        return "multilabel"
    if 2 * len(flags) >= len(columns):
        raise ValueError(
            f"{table.path} has columns of 0 and 1, such as {flags[0]!r}, and others, such as {numbers[0]!r}: remove "
            "these to learn labels, or pass --task regress to learn numbers"
        )
    return "regress"


# --- rows -----------------------------------------------------------------------------------------------------


def read_target(table: Table, task: str) -> Callable[[int, Mapping[str, Any]], Target]:
    """Return the function that reads a row's target, by its number and cells; a `ValueError` if columns are missing."""
    if task == "classify" or (task == "multilabel" and table.label):
        if not table.label:
            raise ValueError(f"{table.path} has no column label: its columns are {', '.join(table.header)}")
        return partial(_read_class if task == "classify" else _read_labels, table, table.label)
    if not table.others:
        wanted = "labels, or a column of 0 and 1 for each label" if task == "multilabel" else "of numbers"
        raise ValueError(f"{table.path} has no column {wanted}: its columns are {', '.join(table.header)}")
    names = [name.strip() for name in table.others]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"{table.path} has two columns {repeated[0]!r}: rename one")
    read_cell = to_flag if task == "multilabel" else to_number
    for column in table.others:
        cells = table.cells(column)
        if all(read_cell(cell) is None for cell in cells):
            holds = f"holds values such as {cells[0]!r}" if cells else "is empty"
            kind = "0 and 1" if task == "multilabel" else "numbers"
            raise ValueError(f"column {column!r} of {table.path.name} {holds}: expected {kind}; remove the column")
    return partial(_read_flags if task == "multilabel" else _read_numbers, table)


def _read_class(table: Table, column: str, number: int, cells: Mapping[str, Any]) -> str:
    """Read the target of a table's row that is a class."""
    if not (word := cell_text(cells.get(column))):
        several = ", or pass --task multilabel if it means that there is none" * (column.strip().lower() == "labels")
        raise ValueError(f"row {number} of {table.path.name} has no label: fill it in, or remove the row{several}")
    return word


def _read_labels(table: Table, column: str, number: int, cells: Mapping[str, Any]) -> tuple[str, ...]:
    """Read the target of a table's row that is labels, sorted: none, or any number."""
    cell = cells.get(column)
    if isinstance(cell, dict):
        raise ValueError(f"row {number} of {table.path.name} has an object for labels: expected a list of words")
    words = [cell_text(word) for word in cell] if isinstance(cell, list) else SEPARATORS.split(cell_text(cell))
    return tuple(sorted({word.strip() for word in words} - {""}))


def _read_flags(table: Table, number: int, cells: Mapping[str, Any]) -> tuple[str, ...]:
    """Read the target of a table's row that is labels, from a column of 0 and 1 for each."""
    flags = {column: read_cell(table, column, number, cells, to_flag, "0 or 1") for column in table.others}
    return tuple(column.strip() for column, flag in flags.items() if flag)


def _read_numbers(table: Table, number: int, cells: Mapping[str, Any]) -> tuple[float, ...]:
    """Read the target of a table's row that is numbers."""
    return tuple(read_cell(table, column, number, cells, to_number, "a number") for column in table.others)


def read_cell(
    table: Table,
    column: str,
    number: int,
    cells: Mapping[str, Any],
    read: Callable[[str], float | None],
    expected: str,
) -> float:
    """Read a cell of a table's row as a target that is a number; an error names row and column."""
    text = cell_text(cells.get(column))
    if not text:
        raise ValueError(
            f"row {number} of {table.path.name} is empty in column {column!r}: fill in {expected}, or remove the row"
        )
    if (found := read(text)) is None:
        advice = "; for numbers pass --task regress" if read is to_flag and to_number(text) is not None else ""
        raise ValueError(
            f"row {number} of {table.path.name} has {text!r} in column {column!r}: expected {expected}{advice}"
        )
    return found


def to_flag(text: str) -> float | None:
    """Return a cell of a table's targets that is 0 or 1 as a number; None if it is neither.

    >>> to_flag("1"), to_flag("True"), to_flag("2")
    (1.0, 1.0, None)
    """
    return FLAGS.get(text.lower())


def to_number(text: str) -> float | None:
    """Return the number in a cell of a table's targets; None if there is none, or it is not finite.

    >>> to_number("-3.5e2"), to_number("nan"), to_number("3,5")
    (-350.0, None, None)
    """
    try:
        found = float(text)
    except ValueError:
        return None
    return found if math.isfinite(found) and abs(found) < 3e38 and "_" not in text else None
