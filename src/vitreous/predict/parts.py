"""Write the answers or features of many images to a folder of Parquet parts, by any number of processes, resumably.

    features/_parts.json            the manifest: which model, which images, how many a part
    features/part-000000.parquet    images 0 to 1023 of the list
    features/part-000001.parquet    images 1024 to 2047

Each part holds a fixed span of the list, whichever process writes it, and is written atomically. A run that was killed
is resumed with the missing parts, with any number of processes, and each image is there exactly once. Readers of a
folder of Parquet files skip names that begin with `_` or `.`, hence `_parts.json`.
"""

import hashlib
import json
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Generic, TypeVar

import pyarrow
import pyarrow.parquet
import torch
from torch import Tensor

from vitreous.data.image_dataset import digest
from vitreous.data.images import ImageError
from vitreous.models.last_block import Compute
from vitreous.predict.classify import Answer, classify_each
from vitreous.predict.embed import embed_each
from vitreous.predict.pipeline import patch_shape
from vitreous.predict.tables import (
    answer_columns,
    answer_fields,
    printable,
    reason,
    shape_metadata,
    stored_dtype,
    table_schema,
)
from vitreous.runtime.distributed import Rank, this_rank
from vitreous.runtime.files import remove, write_atomic, write_json
from vitreous.weights.load import Model

Row = TypeVar("Row")

MANIFEST = "_parts.json"
PART_SIZE = 1024
"""Images in a part, unless it is chosen."""
TOKEN_BYTES = 1 << 28
"""Features of patches in a part, which is in memory as a whole: with large ones it holds fewer images."""
PATIENCE = 3600.0
"""Seconds that the first process waits for another part. If a process fails, torchrun ends all of them."""
DIFFERENCES = {  # field of the manifest → what another value of it means
    "command": "another command",
    "model": "another model",
    "fingerprint": "other weights or another preprocessing",
    "precision": "another precision",
    "top": "another --top",
    "merge": "another --merge",
    "methods": "other methods",
    "steps": "another number of steps",
    "greedy": "another number of greedy orders",
    "columns": "other columns",
    "part_size": "another part size",
    "images": "another number of images",
    "names": "images of other names",
    "sizes": "image files of other sizes",
}


@dataclass(frozen=True)
class PartsFolder:
    """A folder with the Parquet parts of one list of images."""

    folder: Path
    names: Sequence[str]
    """All images, in the same order in every process."""
    size: int
    """Images in a part; the last part may have fewer."""
    schema: pyarrow.Schema
    about: dict[str, Any]
    """What determines the rows: command, model, fingerprint, precision."""

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"a part holds at least one image, got part size {self.size}")
        if not self.names:
            raise ValueError("there are no images: name files, folders or globs")

    def __len__(self) -> int:
        return -(-len(self.names) // self.size)

    def path(self, number: int) -> Path:
        return self.folder / f"part-{number:06d}.parquet"

    def span(self, number: int) -> Sequence[str]:
        """Return the images that one part of a folder of parts holds."""
        return self.names[number * self.size : (number + 1) * self.size]

    def of(self, rank: Rank) -> range:
        """Return the parts of a folder that a rank writes: every `world_size`-th one."""
        return range(rank.rank, len(self), rank.world_size)

    def is_complete(self, number: int) -> bool:
        """Return whether a Parquet part can be read and has all its rows, by the footer of the file."""
        try:
            found = pyarrow.parquet.read_metadata(self.path(number))
        except (OSError, pyarrow.ArrowInvalid):
            return False
        return int(found.num_rows) == len(self.span(number))

    def manifest(self) -> dict[str, Any]:
        """Describe what determines a folder of parts, for its manifest."""
        return {
            **self.about,
            "columns": {field.name: str(field.type) for field in self.schema},
            "part_size": self.size,
            "images": len(self.names),
            "names": digest(self.names),
        }

    def begin(self, rank: Rank, *, patience: float = 600.0) -> list[int]:
        """Check the manifest, remove partial files of a killed run, and return the rank's missing parts.

        The first process writes the manifest; the others wait for it, so that all agree on the list of images.
        """
        expected, path = self.manifest(), self.folder / MANIFEST
        if rank.first:  # one process looks at the files: on a shared disk that takes time
            expected["sizes"] = digest(map(_file_size, self.names))
        if rank.first and not path.exists():
            if self.folder.is_dir() and any(self.folder.glob("*.parquet")):
                raise ValueError(f"{self.folder} holds Parquet files and no {MANIFEST}: give another folder with -o")
            write_json(path, expected)
        end = time.monotonic() + patience
        while not path.exists():
            if time.monotonic() > end:
                raise TimeoutError(
                    f"the first process has not written {path} within {patience:.0f} s: see its messages, and run "
                    "all of them again"
                )
            time.sleep(0.05)
        found = _read_json(path)
        self._compare(found, expected if rank.first else expected | {"sizes": found.get("sizes")})
        self._remove_partial(rank)
        return [number for number in self.of(rank) if not self.is_complete(number)]

    def _compare(self, found: dict[str, Any], expected: dict[str, Any]) -> None:
        """Raise if a folder of parts was begun with other images, model or settings."""
        for field, difference in DIFFERENCES.items():
            then, now = found.get(field), expected.get(field)
            if then != now:
                readable = isinstance(now, int) or field in ("command", "model")
                shown = f" ({then!r} then, {now!r} now)" if readable else ""
                raise ValueError(
                    f"{self.folder} was begun with {difference}{shown}: "
                    "give another folder with -o, or everything as it was to resume this one"
                )

    def _remove_partial(self, rank: Rank) -> None:
        """Remove what a killed process left of unfinished parts in the folder; each process those of its own parts."""
        for path in self.folder.glob(".*"):
            number = re.match(r"\.part-(\d+)\.parquet\.", path.name)
            if int(number[1]) % rank.world_size == rank.rank if number else rank.first and MANIFEST in path.name:
                remove(path)

    def fill(
        self,
        numbers: Sequence[int],
        rows_of: Callable[[Iterable[str]], Iterator[Row]],
        columns: Callable[[list[Row]], dict[str, Any]],
    ) -> Iterator[int]:
        """Compute and write Parquet parts; yield the number of finished images after each.

        `rows_of` yields a row for each image, in order. It is called once for all parts, so that images are decoded
        ahead across their borders. If the batch size divides the part size no batch crosses a border: then a part has
        the same bits whichever process computes it.
        """
        rows = rows_of(name for number in numbers for name in self.span(number))
        # features seldom repeat: a dictionary of them is slow and makes a part a fifth larger
        write = partial(
            pyarrow.parquet.write_table, use_dictionary=["image"] if "features" in self.schema.names else True
        )
        done = 0
        for number in numbers:
            names = self.span(number)
            part: list[Row] = []
            for row in islice(rows, len(names)):
                part.append(row)
                done += 1
                yield done
            images = [printable(name) for name in names]
            table = pyarrow.table({"image": images, **columns(part)}, schema=self.schema)
            write_atomic(self.path(number), partial(write, table))

    def wait(self, numbers: Iterable[int], patience: float) -> list[int]:
        """Wait for other processes' parts as long as new ones appear, and return those still missing."""
        left = [number for number in numbers if not self.is_complete(number)]
        end = time.monotonic() + patience
        while left and time.monotonic() < end:
            time.sleep(0.1)
            before = len(left)
            left = [number for number in left if not (self.path(number).exists() and self.is_complete(number))]
            if len(left) < before:
                end = time.monotonic() + patience
        return left

    def unreadable(self, limit: int = 10) -> tuple[int, list[str]]:
        """Count the unreadable images of all parts, and return the errors of the first ones."""
        count = 0
        errors: list[str] = []
        for number in range(len(self)):
            with pyarrow.parquet.ParquetFile(self.path(number)) as file:
                column = self.schema.get_field_index("error")  # a list is one column, as all the others are
                groups = (file.metadata.row_group(i) for i in range(file.metadata.num_row_groups))
                bad = sum(group.num_rows - group.column(column).statistics.null_count for group in groups)
                if bad and len(errors) < limit:
                    rows = file.read(columns=["image", "error"]).to_pylist()
                    errors += [f"{row['image']}: {row['error']}" for row in rows if row["error"] is not None]
            count += bad
        return count, errors[:limit]


def _file_size(name: str) -> str:
    """Return the size of an image's file, to see that a folder of parts is of the same images; "" for other images."""
    try:
        return str(os.stat(name).st_size)
    except (OSError, ValueError):  # in an archive, or at a URL
        return ""


# --- jobs -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PartsJob(Generic[Row]):
    """How to compute the rows of a folder of parts, and the columns of rows."""

    about: dict[str, str]
    """What determines the rows: command, model, fingerprint, precision."""
    schema: pyarrow.Schema
    rows_of: Callable[[Iterable[str]], Iterator[Row]]
    columns: Callable[[list[Row]], dict[str, Any]]


def embed_job(
    model: Model,
    *,
    batch_size: int,
    device: str,
    precision: str,
    compute: Compute | None = None,
    merge: int = 0,
    tokens: bool = False,
) -> PartsJob[tuple[str, Tensor | ImageError]]:
    """Make the `PartsJob` whose Parquet parts hold features: columns image, features (a list) and error.

    With `tokens`, features are those of all patches, flattened, after columns rows and columns.
    """
    about = _about("embed --tokens" if tokens else "embed", model, precision, merge)
    sizes: dict[str, Any] = {"batch_size": batch_size, "device": device, "precision": precision}
    dtype = stored_dtype(precision if tokens else "fp32")
    grid = ("rows", "columns") if tokens else ()
    # not a list of fixed size: pyarrow before 26 cannot read one that is missing
    fields = dict.fromkeys(grid, pyarrow.int32()) | {"features": pyarrow.list_(pyarrow.from_numpy_dtype(dtype))}

    def columns(rows: list[tuple[str, Tensor | ImageError]]) -> dict[str, Any]:
        found = [row.numpy() if isinstance(row, Tensor) else None for _, row in rows]
        features = [None if row is None else row.ravel().astype(dtype) for row in found]
        sides = {name: [None if row is None else row.shape[i] for row in found] for i, name in enumerate(grid)}
        errors = [reason(row) for _, row in rows]
        return {**sides, "features": pyarrow.array(features, fields["features"]), "error": errors}

    rows_of = partial(embed_each, model=model, tokens=tokens, compute=compute, **sizes)
    metadata = shape_metadata(patch_shape(model)) if tokens else None
    return PartsJob(about, table_schema(fields, model.card.name, metadata), rows_of, columns)


def token_part_size(model: Model, precision: str) -> int:
    """Return how many images each Parquet part of patch features holds: a power of two, up to 1,024."""
    each = math.prod(patch_shape(model)) * stored_dtype(precision).itemsize
    return min(PART_SIZE, 1 << max(0, (TOKEN_BYTES // each).bit_length() - 1))


def classify_job(
    model: Model,
    *,
    top: int,
    batch_size: int,
    device: str,
    precision: str,
    compute: Compute | None = None,
    merge: int = 0,
) -> PartsJob[Answer | ImageError]:
    """Make the `PartsJob` whose Parquet parts hold answers: columns image, class_name, index, probability and error.

    If `top` is more than 1, lists of the names and probabilities of so many classes are added. Several labels and
    numbers have the columns of `answer_fields`; masks are files of their own (`segmentation.py`).
    """
    sizes: dict[str, Any] = {"batch_size": batch_size, "device": device, "precision": precision}
    rows_of = partial(classify_each, model=model, top=top, compute=compute, **sizes)
    about = _about("classify", model, precision, merge) | {"top": str(top)}
    schema = table_schema(answer_fields(top, model.card), model.card.name)
    return PartsJob(about, schema, rows_of, partial(answer_columns, top=top, card=model.card))


def fingerprint(model: Model) -> str:
    """Hash all that determines predictions in parts: weights, config, preprocessing, class names, thresholds.

    >>> from vitreous.models.variants import variant
    >>> from vitreous.models.vit import ViT
    >>> from vitreous.weights.card import Card
    >>> from vitreous.data.preprocess import default_preprocess
    >>> model = ViT(variant("vit_femto_patch4_32"))
    >>> model.card = Card("femto", default_preprocess(model.config))
    >>> before = fingerprint(model)
    >>> _ = model.cls_token.data.add_(1)
    >>> len(before), fingerprint(model) == before
    (64, False)
    """
    card = model.card
    known: tuple[Any, ...] = (model.config, card.preprocess, card.class_names)
    known += () if card.task == "classify" else (card.task, card.thresholds)
    state = hashlib.sha256(repr(known).encode())
    for key, tensor in sorted(model.state_dict().items()):
        state.update(f"{key} {tensor.dtype} {tuple(tensor.shape)}".encode())
        state.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return state.hexdigest()


def _about(command: str, model: Model, precision: str, merge: int) -> dict[str, str]:
    """Describe a job that writes parts: command, model, precision."""
    about = {"command": command, "model": model.card.name, "fingerprint": fingerprint(model), "precision": precision}
    return about | ({"merge": str(merge)} if merge else {})


@dataclass(frozen=True)
class PartsReport:
    """The state of a folder of Parquet parts after a run."""

    folder: Path
    images: int
    parts: int
    left: int
    """Parts that other processes, or another run, still have to write."""
    unreadable: int = 0
    """Unreadable images in all parts; known when no part is left."""
    errors: tuple[str, ...] = ()
    """The errors of the first of them."""


def write_parts(
    folder: Path,
    names: Sequence[str],
    job: PartsJob[Any],
    part_size: int = PART_SIZE,
    *,
    progress: Callable[[int, int, int], object] = lambda done, total, existing: None,
) -> PartsReport | None:
    """Write this rank's missing parts; the first rank then waits for the others' and returns a report.

    `progress` is called with the number of finished images, of all images to do, and of parts that were there before.
    """
    rank = this_rank()
    parts = PartsFolder(folder.expanduser(), names, part_size, job.schema, job.about)
    missing = parts.begin(rank)
    total, existing = sum(len(parts.span(number)) for number in missing), len(parts.of(rank)) - len(missing)
    progress(0, total, existing)
    for done in parts.fill(missing, job.rows_of, job.columns):
        progress(done, total, existing)
    if not rank.first:
        return None
    left = parts.wait(range(len(parts)), PATIENCE)
    unreadable, errors = (0, []) if left else parts.unreadable()
    return PartsReport(parts.folder, len(names), len(parts), len(left), unreadable, tuple(errors))


def _read_json(path: Path) -> dict[str, Any]:
    """Read a manifest of parts; raise if it is damaged."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ValueError(f"{path} is damaged: give another folder with -o")
    return found
