"""Rows of parquet files by number, for many readers at once: row groups are read when needed and the last ones kept."""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from collections import OrderedDict
from itertools import accumulate
from pathlib import Path
from typing import Any

KEPT_BYTES = 256 * 2**20  # all of CIFAR-10, twice; 20 row groups of ImageNet


class RowGroups:
    """One column of encoded images in several files.

    What is open and what is kept belongs to one process: a copy in another, forked or pickled, opens the files again.
    """

    def __init__(self, files: tuple[Path, ...], column: str, kept_bytes: int = KEPT_BYTES) -> None:
        self.files, self.column, self.kept_bytes = files, column, kept_bytes
        self._opened = _Opened()

    def read(self, file: int, row: int) -> bytes | None:
        """The bytes in a row of a file; None where there are none."""
        opened = self._opened
        if opened.process != os.getpid():  # forked: the lock may be held by a thread that is not here
            self._opened = opened = _Opened()
        with opened.lock:
            if file not in opened.files:
                opened.files[file] = _File(self.files[file], self.column)
            group = bisect_right(opened.files[file].ends, row)
            first = opened.files[file].ends[group - 1] if group else 0
            if (file, group) in opened.kept:
                opened.kept.move_to_end((file, group))
            else:
                opened.keep((file, group), opened.files[file].read(group), self.kept_bytes)
            column = opened.kept[file, group]
        return column[row - first].as_py()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_opened": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _opened=_Opened())


class _Opened:
    """What one process has open."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.lock = threading.Lock()  # one reader at a time; decoding, the larger part, is done outside
        self.files: dict[int, _File] = {}
        self.kept: OrderedDict[tuple[int, int], Any] = OrderedDict()  # the least recently used first
        self.kept_bytes = 0

    def keep(self, place: tuple[int, int], column: Any, limit: int) -> None:
        self.kept[place] = column
        self.kept_bytes += column.nbytes
        while len(self.kept) > 1 and self.kept_bytes > limit:
            _, dropped = self.kept.popitem(last=False)
            self.kept_bytes -= dropped.nbytes


class _File:
    """One open file and where its row groups end."""

    def __init__(self, path: Path, column: str) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.file = pq.ParquetFile(path)  # not mapped: a mapped file that is cut short ends the process by SIGBUS
        self.is_struct = pa.types.is_struct(self.file.schema_arrow.field(column).type)
        self.column = f"{column}.bytes" if self.is_struct else column
        metadata = self.file.metadata
        self.ends = list(accumulate(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)))

    def read(self, group: int) -> Any:
        table = self.file.read_row_group(group, columns=[self.column], use_threads=False)
        return (table.flatten() if self.is_struct else table).column(0)
