"""A folder of Parquet parts: a long list of images worked through by any number of processes, begun again at will.

    features/_parts.json            what made it: which model, which images, how many a part
    features/part-000000.parquet    images 0 to 1023 of the list
    features/part-000001.parquet    images 1024 to 2047

Each part holds a fixed span of the list, whoever writes it, and appears whole or not at all. So a run that was killed
goes on with the parts that are missing, with as many processes as it likes, and each image is there exactly once.
Readers of a folder of Parquet files pass over names that begin with `_` or `.`, hence `_parts.json`.
"""

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import pyarrow
import pyarrow.parquet

from vitreous.data.image_dataset import digest
from vitreous.runtime.distributed import Rank
from vitreous.runtime.files import write_atomic, write_json

Row = TypeVar("Row")

MANIFEST = "_parts.json"
TOLD = {  # field of the manifest → what another value of it means
    "command": "another command",
    "model": "another model",
    "fingerprint": "other weights or another preprocessing",
    "precision": "another precision",
    "top": "another --top",
    "merge": "another --merge",
    "columns": "other columns",
    "part_size": "another part size",
    "images": "another number of images",
    "names": "images of other names",
}


@dataclass(frozen=True)
class Parts:
    """The parts of one list of images in one folder."""

    folder: Path
    names: Sequence[str]
    """All images, in an order that every process finds alike."""
    size: int
    """Images in a part; the last one may have fewer."""
    schema: pyarrow.Schema
    about: dict[str, Any]
    """What made the rows: command, model, fingerprint, precision."""

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"a part holds at least one image, got part size {self.size}")
        if not self.names:
            raise ValueError("there are no images to work through")

    def __len__(self) -> int:
        return -(-len(self.names) // self.size)

    def path(self, number: int) -> Path:
        return self.folder / f"part-{number:06d}.parquet"

    def span(self, number: int) -> Sequence[str]:
        """The images of a part."""
        return self.names[number * self.size : (number + 1) * self.size]

    def of(self, place: Rank) -> range:
        """The parts that this process writes: every `ranks`-th one."""
        return range(place.rank, len(self), place.world_size)

    def whole(self, number: int) -> bool:
        """Whether the part is there and can be read; the end of a Parquet file says what ought to be before it."""
        try:
            found = pyarrow.parquet.read_metadata(self.path(number))
        except (OSError, pyarrow.ArrowInvalid):
            return False
        return found.num_rows == len(self.span(number))

    # --- beginning ------------------------------------------------------------------------------------

    def manifest(self) -> dict[str, Any]:
        return {
            **self.about,
            "columns": {field.name: str(field.type) for field in self.schema},
            "part_size": self.size,
            "images": len(self.names),
            "names": digest(self.names),
        }

    def begin(self, place: Rank, *, patience: float = 600.0) -> list[int]:
        """Refuse a folder that holds something else, sweep up after a kill, and say which own parts are missing.

        The first process writes the manifest; the others wait for it, so that all agree on the list of images.
        """
        wanted, path = self.manifest(), self.folder / MANIFEST
        if place.first and not path.exists():
            if self.folder.is_dir() and any(self.folder.glob("*.parquet")):
                raise ValueError(f"{self.folder} holds Parquet files and no {MANIFEST}: give another folder with -o")
            write_json(path, wanted)
        end = time.monotonic() + patience
        while not path.exists():
            if time.monotonic() > end:
                raise TimeoutError(
                    f"the first process has not written {path} within {patience:.0f} s: see what it says, and run "
                    "all of them again"
                )
            time.sleep(0.05)
        self._compare(_read_json(path), wanted)
        self._sweep(place)
        return [number for number in self.of(place) if not self.whole(number)]

    def _compare(self, found: dict[str, Any], wanted: dict[str, Any]) -> None:
        for field, message in TOLD.items():
            then, now = found.get(field), wanted.get(field)
            if then != now:
                shown = (
                    f" ({then!r} then, {now!r} now)" if isinstance(now, int) or field in ("command", "model") else ""
                )
                raise ValueError(
                    f"{self.folder} was begun with {message}{shown}: "
                    "give another folder with -o, or everything as it was to go on with this one"
                )

    def _sweep(self, place: Rank) -> None:
        """Remove what a killed process left half-written: each process looks after its own parts."""
        for path in self.folder.glob(".*"):
            number = re.match(r"\.part-(\d+)\.parquet\.", path.name)
            if int(number[1]) % place.world_size == place.rank if number else place.first and MANIFEST in path.name:
                path.unlink(missing_ok=True)

    # --- working --------------------------------------------------------------------------------------

    def fill(
        self,
        numbers: Sequence[int],
        compute: Callable[[Iterable[str]], Iterator[Row]],
        columns: Callable[[list[Row]], dict[str, Any]],
    ) -> Iterator[int]:
        """Compute and write parts; yields after each image how many are done.

        `compute` gives a row for each image, in order. It is called once for all parts, so that images are decoded
        ahead across their borders. Where the batch size divides the part size no batch crosses a border: then a part
        has the same bits whoever computes it.
        """
        rows = compute(name for number in numbers for name in self.span(number))
        done = 0
        for number in numbers:
            names = self.span(number)
            part: list[Row] = []
            for row in islice(rows, len(names)):
                part.append(row)
                done += 1
                yield done
            self.write(number, columns(part))

    def write(self, number: int, columns: dict[str, Any]) -> Path:
        images = [written(name) for name in self.span(number)]
        table = pyarrow.table({"image": images, **columns}, schema=self.schema)
        return write_atomic(self.path(number), lambda temporary: pyarrow.parquet.write_table(table, temporary))

    # --- ending ---------------------------------------------------------------------------------------

    def wait(self, numbers: Iterable[int], patience: float) -> list[int]:
        """Wait for other processes' parts as long as new ones come, and say which are still missing."""
        left = [number for number in numbers if not self.whole(number)]
        end = time.monotonic() + patience
        while left and time.monotonic() < end:
            time.sleep(0.1)
            before = len(left)
            left = [number for number in left if not (self.path(number).exists() and self.whole(number))]
            if len(left) < before:
                end = time.monotonic() + patience
        return left

    def unreadable(self, most: int = 10) -> tuple[int, list[str]]:
        """How many images of all parts could not be read, and what was said of the first ones."""
        count = 0
        message: list[str] = []
        for number in range(len(self)):
            with pyarrow.parquet.ParquetFile(self.path(number)) as file:
                place = self.schema.get_field_index("error")  # a list is one column, as all the others are
                groups = (file.metadata.row_group(i) for i in range(file.metadata.num_row_groups))
                bad = sum(group.num_rows - group.column(place).statistics.null_count for group in groups)
                if bad and len(message) < most:
                    rows = file.read(columns=["image", "error"]).to_pylist()
                    message += [f"{row['image']}: {row['error']}" for row in rows if row["error"] is not None]
            count += bad
        return count, message[:most]


def written(text: str) -> str:
    """A file's name as text: bytes that are none are spelt out.

    >>> written("caf\\udce9.jpg")
    'caf\\\\udce9.jpg'
    """
    return text.encode("utf-8", "backslashreplace").decode()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ValueError(f"{path} is damaged: give another folder with -o")
    return found
