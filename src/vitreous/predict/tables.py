"""Write answers and features as tables: their columns, and files of them (.csv, .json, .parquet, .npz)."""

import csv
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
from torch import Tensor

from vitreous.data.images import ImageError
from vitreous.predict.classify import Answer
from vitreous.runtime.files import write_atomic

ANSWER_FILES = (".csv", ".json", ".parquet")
FEATURE_FILES = (".parquet", ".npz")


def check_file(path: Path, suffixes: Sequence[str], what: str) -> None:
    """Raise if a table of answers or features cannot be written to a file of this name, before it is computed."""
    if path.suffix not in suffixes:
        *first, last = suffixes
        raise ValueError(f"{what} go to {', '.join(first)} or {last}, or to a folder (no suffix), got {path.name}")


def table_schema(fields: dict[str, pyarrow.DataType], model_name: str) -> pyarrow.Schema:
    """Return the columns of a table: image, what was computed, and error."""
    columns = {"image": pyarrow.string(), **fields, "error": pyarrow.string()}
    return pyarrow.schema(columns.items(), metadata={"vitreous.model": model_name})


def reason(row: object) -> str | None:
    """Return the error column of a table: why an image has no answer; None if it has one."""
    return printable(row.reason) if isinstance(row, ImageError) else None


def printable(text: str) -> str:
    """Return an image's file name as text for a table, with undecodable bytes escaped.

    >>> printable("caf\\udce9.jpg")
    'caf\\\\udce9.jpg'
    """
    return text.encode("utf-8", "backslashreplace").decode()


# --- answers ----------------------------------------------------------------------------------------------------------


def answer_fields(top: int) -> dict[str, pyarrow.DataType]:
    """Return the columns of answers: class_name, index, probability; and lists of the `top`."""
    fields = {"class_name": pyarrow.string(), "index": pyarrow.int32(), "probability": pyarrow.float32()}
    if top > 1:
        fields |= {"class_names": pyarrow.list_(pyarrow.string()), "probabilities": pyarrow.list_(pyarrow.float32())}
    return fields


def answer_columns(rows: Sequence[Answer | ImageError], top: int) -> dict[str, Any]:
    """Return the values of `answer_fields` and of error for each answer."""
    best = [None if isinstance(row, ImageError) else row.best for row in rows]
    ranked = [None if isinstance(row, ImageError) else row.predictions for row in rows]
    found = {
        "class_name": [p and p.class_name for p in best],
        "index": [p and p.index for p in best],
        "probability": [p and p.probability for p in best],
        "class_names": [r and [p.class_name for p in r] for r in ranked],
        "probabilities": [r and [p.probability for p in r] for r in ranked],
        "error": [reason(row) for row in rows],
    }
    return {name: found[name] for name in (*answer_fields(top), "error")}


def write_answers(path: str | Path, rows: Sequence[Answer | ImageError], model_name: str, top: int) -> Path:
    """Write a row for each image to `.csv`, `.json` or `.parquet`; unreadable images have an error instead.

    In a .csv the second class is in columns class_name_2 and probability_2, and so on.
    """
    path = Path(path)
    check_file(path, ANSWER_FILES, "answers")
    names = [printable(row.name if isinstance(row, ImageError) else row.image) for row in rows]

    def write_parquet(temporary: Path) -> None:
        schema = table_schema(answer_fields(top), model_name)
        table = pyarrow.table({"image": names, **answer_columns(rows, top)}, schema=schema)
        pyarrow.parquet.write_table(table, temporary)

    def write_json(temporary: Path) -> None:
        found = [
            {"image": name, "error": reason(row)}
            if isinstance(row, ImageError)
            else {"image": name, "predictions": [asdict(prediction) for prediction in row.predictions]}
            for name, row in zip(names, rows, strict=True)
        ]
        temporary.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    def write_csv(temporary: Path) -> None:
        columns = ["class_name", "index", "probability"]
        columns += [f"{name}_{rank}" for rank in range(2, top + 1) for name in ("class_name", "probability")]
        with temporary.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, ["image", *columns, "error"], restval="")
            writer.writeheader()
            for name, row in zip(names, rows, strict=True):
                values: dict[str, Any] = {"image": name, "error": reason(row) or ""}
                for rank, p in enumerate(() if isinstance(row, ImageError) else row.predictions, start=1):
                    end = f"_{rank}" if rank > 1 else ""
                    values |= {f"class_name{end}": p.class_name, f"probability{end}": f"{p.probability:.6f}"}
                    values |= {} if end else {"index": p.index}
                writer.writerow(values)

    writers = {".csv": write_csv, ".json": write_json, ".parquet": write_parquet}
    return write_atomic(path, writers[path.suffix])


# --- features ---------------------------------------------------------------------------------------------------------


def write_features(
    path: str | Path, names: list[str], features: Tensor, model_name: str, texts: Sequence[str] = ()
) -> Path:
    """Write `image` and `features` columns to `.parquet`, or arrays of those names to `.npz`.

    Rows of `texts` follow those of images; then there is a column `text` too, and each row has one of the two.
    """
    path = Path(path)
    check_file(path, FEATURE_FILES, "features")
    names = [printable(name) for name in names]
    columns: dict[str, list[str | None]] = {"image": [*names, *(None for _ in texts)]}
    if texts:
        columns["text"] = [*(None for _ in names), *texts]

    def write_npz(temporary: Path) -> None:
        with temporary.open("wb") as file:
            named = {name: np.array([value or "" for value in values]) for name, values in columns.items()}
            np.savez(file, features=features.numpy(), model=np.array(model_name), **named)  # type: ignore[arg-type]

    def write_parquet(temporary: Path) -> None:
        width = features.shape[1]
        values = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(features.numpy().ravel()), width)
        strings = {name: pyarrow.array(values, pyarrow.string()) for name, values in columns.items()}
        table = pyarrow.table({**strings, "features": values})
        pyarrow.parquet.write_table(table.replace_schema_metadata({"vitreous.model": model_name}), temporary)

    return write_atomic(path, write_npz if path.suffix == ".npz" else write_parquet)
