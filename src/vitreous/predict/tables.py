"""Write answers and features as tables: their columns, and files of them (.csv, .json, .parquet, .npy, .npz)."""

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow
import pyarrow.parquet
import torch
from torch import Tensor

from vitreous.data.image_dataset import NOUNS
from vitreous.data.images import ImageError
from vitreous.data.prefetch import batched
from vitreous.predict.classify import Answer
from vitreous.runtime.files import write_arrays, write_atomic, write_json
from vitreous.weights.card import Card

ANSWER_FILES = (".csv", ".json", ".parquet")
FEATURE_FILES = (".parquet", ".npz")
TOKEN_FILES = (".parquet", ".npy", ".npz")
GROUP_VALUES = 1 << 24
"""Numbers that are held in memory before they go to a Parquet file of patch features, as one of its row groups."""


def check_file(path: Path, suffixes: Sequence[str], what: str) -> None:
    """Raise if a table of answers or features cannot be written to a file of this name, before it is computed."""
    if path.suffix not in suffixes:
        *first, last = suffixes
        raise ValueError(f"{what} go to {', '.join(first)} or {last}, or to a folder (no suffix), got {path.name}")


def table_schema(
    fields: dict[str, pyarrow.DataType], model_name: str, metadata: dict[str, str] | None = None
) -> pyarrow.Schema:
    """Return the columns of a table: image, what was computed, and error."""
    columns = {"image": pyarrow.string(), **fields, "error": pyarrow.string()}
    return pyarrow.schema(columns.items(), metadata={"vitreous.model": model_name, **(metadata or {})})


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


def answer_fields(top: int, card: Card) -> dict[str, pyarrow.DataType]:
    """Return the columns of a table of answers: class_name, index, probability; and lists of the `top`.

    Of a model of another task, `card` adds `labels`, those that are present; or there is a column for each number, or
    for each class of a mask: its share of the image.
    """
    if card.task in ("regress", "segment"):
        return dict.fromkeys(_own_columns(card).values(), pyarrow.float32())
    fields = {"class_name": pyarrow.string(), "index": pyarrow.int32(), "probability": pyarrow.float32()}
    if top > 1:
        fields |= {"class_names": pyarrow.list_(pyarrow.string()), "probabilities": pyarrow.list_(pyarrow.float32())}
    labels = {"labels": pyarrow.list_(pyarrow.string())} if card.task == "multilabel" else {}
    return labels | fields


def _own_columns(card: Card) -> dict[str, str]:
    """Name the columns of a table of numbers or shares: name → column, which is never image or error."""
    if (names := card.class_names) is None:
        raise ValueError(f"the {NOUNS[card.task]} of {card.name} have no names for columns: set model.card.class_names")
    return {name: f"{name} ({NOUNS[card.task]})" if name in ("image", "error") else name for name in names}


def answer_columns(rows: Sequence[Answer | ImageError], top: int, card: Card) -> dict[str, Any]:
    """Return the values of the columns of answers in a table, and of error, for each answer."""
    answers = [None if isinstance(row, ImageError) else row for row in rows]
    errors = {"error": [reason(row) for row in rows]}
    if card.task in ("regress", "segment"):
        values = [None if answer is None else _own_values(answer) for answer in answers]
        columns = _own_columns(card).items()
        return {column: [v if v is None else v.get(name, 0.0) for v in values] for name, column in columns} | errors
    best = [answer and answer.best for answer in answers]
    ranked = [answer and answer.predictions for answer in answers]
    found = {
        "labels": [answer and answer.labels for answer in answers],
        "class_name": [p and p.class_name for p in best],
        "index": [p and p.index for p in best],
        "probability": [p and p.probability for p in best],
        "class_names": [r and [p.class_name for p in r] for r in ranked],
        "probabilities": [r and [p.probability for p in r] for r in ranked],
    }
    return {name: found[name] for name in answer_fields(top, card)} | errors


def _own_values(answer: Answer) -> dict[str, float]:
    """Return an answer's numbers, or the shares of its mask's classes, by name, for a table."""
    return answer.numbers or {each.class_name: each.share for each in answer.shares or ()}


def write_answers(path: str | Path, rows: Sequence[Answer | ImageError], card: Card, top: int) -> Path:
    """Write answers as a table, a row an image, to `.csv`, `.json` or `.parquet`; unreadable images have an error.

    In a .csv the second class is in columns class_name_2 and probability_2, and so on; labels are joined by `;`.
    """
    path = Path(path)
    check_file(path, ANSWER_FILES, "answers")
    names = [printable(row.name if isinstance(row, ImageError) else row.image) for row in rows]

    def write_parquet(temporary: Path) -> None:
        schema = table_schema(answer_fields(top, card), card.name)
        table = pyarrow.table({"image": names, **answer_columns(rows, top, card)}, schema=schema)
        pyarrow.parquet.write_table(table, temporary)

    def write_json(temporary: Path) -> None:
        found = [
            {"image": name, "error": reason(row)} if isinstance(row, ImageError) else row.to_dict() | {"image": name}
            for name, row in zip(names, rows, strict=True)
        ]
        temporary.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    def write_csv(temporary: Path) -> None:
        columns = list(answer_fields(1, card))
        if "class_name" in columns:
            columns += [f"{name}_{rank}" for rank in range(2, top + 1) for name in ("class_name", "probability")]
        with temporary.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, ["image", *columns, "error"], restval="")
            writer.writeheader()
            for name, row in zip(names, rows, strict=True):
                cells = {} if isinstance(row, ImageError) else _csv_cells(row, card)
                writer.writerow({"image": name, "error": reason(row) or "", **cells})

    writers = {".csv": write_csv, ".json": write_json, ".parquet": write_parquet}
    return write_atomic(path, writers[path.suffix])


def _csv_cells(answer: Answer, card: Card) -> dict[str, Any]:
    """Return the cells of an answer in a .csv, by column."""
    if card.task in ("regress", "segment"):
        values = _own_values(answer)
        return {column: f"{values.get(name, 0.0):.9g}" for name, column in _own_columns(card).items()}
    cells: dict[str, Any] = {} if answer.labels is None else {"labels": ";".join(answer.labels)}
    for rank, p in enumerate(answer.predictions, start=1):
        end = f"_{rank}" if rank > 1 else ""
        cells |= {f"class_name{end}": p.class_name, f"probability{end}": f"{p.probability:.6f}"}
        cells |= {} if end else {"index": p.index}
    return cells


# --- features ---------------------------------------------------------------------------------------------------------


def write_features(
    path: str | Path, names: list[str], features: Tensor, model_name: str, texts: Sequence[str] = ()
) -> Path:
    """Write features as a table: `image` and `features` columns to `.parquet`, or arrays of those names to `.npz`.

    Rows of `texts` follow those of images; then there is a column `text` too, and each row has one of the two.
    """
    path = Path(path)
    check_file(path, FEATURE_FILES, "features")
    names = [printable(name) for name in names]
    columns: dict[str, list[str | None]] = {"image": [*names, *(None for _ in texts)]}
    if texts:
        columns["text"] = [*(None for _ in names), *texts]

    if path.suffix == ".npz":
        named = {name: np.array([value or "" for value in values]) for name, values in columns.items()}
        arrays = {"features": features.numpy(), "model": np.array(model_name), **named}
        return write_arrays(path, arrays, compressed=False)

    def write_parquet(temporary: Path) -> None:
        width = features.shape[1]
        values = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(features.numpy().ravel()), width)
        strings = {name: pyarrow.array(values, pyarrow.string()) for name, values in columns.items()}
        table = pyarrow.table({**strings, "features": values})
        pyarrow.parquet.write_table(table.replace_schema_metadata({"vitreous.model": model_name}), temporary)

    return write_atomic(path, write_parquet)


def stored_dtype(precision: str) -> np.dtype[Any]:
    """Return the number format of a table's column of patch features: half floats hold those computed in fp16 exactly.

    >>> stored_dtype("fp16"), stored_dtype("bf16")
    (dtype('float16'), dtype('float32'))
    """
    return np.dtype(np.float16 if precision == "fp16" else np.float32)


def shape_metadata(shape: Sequence[int]) -> dict[str, str]:
    """Return the metadata of a Parquet table that say how to reshape an image's patch features: rows, columns, d.

    >>> shape_metadata((14, 14, 192))
    {'vitreous.shape': '[14, 14, 192]'}
    """
    return {"vitreous.shape": json.dumps(list(shape))}


def write_tokens(
    path: str | Path, rows: Iterable[tuple[str, Tensor]], model_name: str, precision: str = "fp32"
) -> tuple[int, ...]:
    """Write a table file of patch features row by row, as they come; return its shape: images, rows, columns, d.

    `.parquet` has columns image, rows, columns and features, flattened. `.npy` is one array `[images rows columns d]`,
    with the images' names in a JSON file beside it. Neither is ever in memory as a whole. `.npz` is: it holds the
    arrays image and features. Without images nothing is written, and the shape is empty.
    """
    path = Path(path)
    check_file(path, TOKEN_FILES, "features of patches")
    remaining = iter(rows)
    if (first := next(remaining, None)) is None:
        return ()
    shape, dtype, names = tuple(first[1].shape), stored_dtype(precision), list[str]()
    named = chain([first], remaining)

    def arrays() -> Iterator[npt.NDArray[Any]]:
        for name, row in named:
            names.append(printable(name))
            yield row.numpy().astype(dtype)

    if path.suffix == ".npz":
        features = torch.from_numpy(np.stack(list(arrays())))
        write_features(path, names, features, model_name)
    elif path.suffix == ".parquet":
        write_atomic(path, lambda temporary: _write_token_table(temporary, arrays(), names, shape, dtype, model_name))
    else:
        sidecar = path.with_name(f"{path.name}.json")

        def write_npy(temporary: Path) -> None:
            with temporary.open("wb") as file:
                _write_npy_header(file, (0, *shape), dtype)
                for array in arrays():
                    file.write(array.tobytes())
                file.seek(0)
                _write_npy_header(file, (len(names), *shape), dtype)  # as long as the first: NumPy leaves room
            sidecar.unlink(missing_ok=True)  # of an older array

        write_atomic(path, write_npy)
        write_json(sidecar, {"model": model_name, "shape": [len(names), *shape], "images": names})
    return (len(names), *shape)


def _write_npy_header(file: IO[bytes], shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Begin a .npy table, to which rows of patch features are appended, with its header."""
    about = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, about)


def _write_token_table(
    path: Path,
    arrays: Iterator[npt.NDArray[Any]],
    names: list[str],
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    model_name: str,
) -> None:
    """Write a table of patches as a Parquet file, in groups of rows; `names` grows with `arrays`.

    Each row has the features of one image's patches.
    """
    length = int(np.prod(shape))
    kinds = {"rows": pyarrow.int32(), "columns": pyarrow.int32()}
    kinds["features"] = pyarrow.list_(pyarrow.from_numpy_dtype(dtype), length)
    about = {"vitreous.model": model_name, **shape_metadata(shape)}
    schema = pyarrow.schema([("image", pyarrow.string()), *kinds.items()], metadata=about)
    size = max(1, GROUP_VALUES // length)
    with pyarrow.parquet.ParquetWriter(path, schema, use_dictionary=["image"]) as writer:
        written = 0
        for group in batched(arrays, size):
            features = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(np.concatenate(group, axis=None)), length)
            columns = {"rows": [shape[0]] * len(group), "columns": [shape[1]] * len(group), "features": features}
            writer.write_table(pyarrow.table({"image": names[written:], **columns}, schema=schema))
            written = len(names)
