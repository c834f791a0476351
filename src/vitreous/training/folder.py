"""A run's folder: what is run (`config.json`, `model.json`), what became of it, and its page.

`metrics.jsonl` · `checkpoints/` · `snapshots/` · `model/` · `result.json` · `run.html`

One process at a time may write to it: a lock that the system lets go when the process ends, however it ends.
"""

import errno
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from vitreous.data.images import ImageError
from vitreous.runtime.files import write_atomic, write_json
from vitreous.training.config import TrainConfig
from vitreous.weights.runs import MODEL_FILE

LOCK = "run.lock"
NO_ROOM = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}
TEMPORARY = re.compile(r"\..+\.[a-z0-9_]{8}")  # what `write_atomic` calls a file that is not whole yet


class HeldError(ValueError):
    """Another process writes to the folder at this moment."""


class RunFolder:
    """The paths of a run and what is written to them."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser()
        self.checkpoints = self.path / "checkpoints"
        self.snapshots = self.path / "snapshots"
        self.model = self.path / "model"
        self.metrics = self.path / "metrics.jsonl"
        self.config = self.path / "config.json"
        self.result = self.path / "result.json"
        self.described = self.path / MODEL_FILE

    def read_config(self) -> TrainConfig | None:
        """The config that a run here was started with; None where there is none."""
        if not self.config.is_file():
            return None
        try:
            return TrainConfig.from_dict(json.loads(self.config.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{self.config} does not describe a run ({error}): choose another --output") from error

    def read_result(self) -> dict[str, Any] | None:
        """What a finished run achieved; None where it is not finished."""
        return json.loads(self.result.read_text(encoding="utf-8")) if self.result.is_file() else None

    def read_classes(self) -> int | None:
        """How many classes the run's model tells apart; None where nothing says so yet."""
        message = json.loads(self.described.read_text(encoding="utf-8")) if self.described.is_file() else {}
        return message.get("num_classes")

    def check(self, config: TrainConfig) -> TrainConfig:
        """The config to run here: refused where another lives here; a batch size that was found stays."""
        if (before := self.read_config()) is not None:
            if changed := config.differs(before):
                message = ", ".join(f"{name} {getattr(before, name)} → {getattr(config, name)}" for name in changed)
                raise ValueError(f"{self.path} holds another run ({message}): choose another --output")
            if config.batch_size == "auto":
                config = replace(config, batch_size=before.batch_size)
        elif not self.vacant():
            raise ValueError(f"{self.path} is not empty and holds no run: choose another --output")
        return config

    def vacant(self) -> bool:
        """Whether a new run may begin here; one that was killed before it began is none."""
        kept = self.path.iterdir() if self.path.exists() else ()
        return all(path.name == LOCK or TEMPORARY.fullmatch(path.name) for path in kept)

    def begin(self, asked: TrainConfig, settled: TrainConfig | None = None) -> None:
        """Write down what is run here, and remove what a killed process left half written.

        A batch size that was searched for is kept; one that was cut to a small set is cut again the next time.
        """
        for place in (self.path, self.model, self.snapshots):
            for path in place.glob(".*"):
                if TEMPORARY.fullmatch(path.name):
                    path.unlink(missing_ok=True)
        kept = asked
        if settled is not None and asked.batch_size == "auto":
            kept = replace(settled, compile=asked.compile)  # a machine without a compiler has settled for less
        write_json(self.config, kept.to_dict())

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Hold the folder's lock; a `HeldError` says that another process does."""
        fresh = [path for path in (self.path, *self.path.parents) if not path.exists()]  # the inmost first
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except FileExistsError as error:
            raise ValueError(f"{self.path} is a file: choose another --output") from error
        with self._locked():
            try:
                yield
            finally:
                if not self.config.is_file():  # nothing began here: leave no trace
                    with suppress(OSError):  # there may be files of others
                        (self.path / LOCK).unlink()
                        for path in fresh or [self.path]:
                            path.rmdir()

    def _locked(self) -> IO[str]:
        """The lock file, held; not one that another process has just removed."""
        while True:
            self.path.mkdir(parents=True, exist_ok=True)
            file = (self.path / LOCK).open("a+")
            try:
                _lock(file)
                if os.path.samestat(os.fstat(file.fileno()), os.stat(self.path / LOCK)):
                    return file
            except FileNotFoundError:
                pass
            except OSError as error:
                file.close()
                message = f"another run is writing to {self.path}: wait for it, or choose another --output"
                raise HeldError(message) from error
            file.close()

    @contextmanager
    def trouble_explained(self) -> Iterator[None]:
        """Turn a full disk, or an image gone bad, into one line that says what to do; what was written is whole."""
        try:
            yield
        except ImageError as error:
            raise ValueError(
                f"{error}. Put the image right and run the same command again: it goes on from the last checkpoint"
            ) from error
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            raise OSError(
                f"{error.filename or self.path} could not be written to ({error.strerror}): free some space and run "
                "the same command again; it goes on from the last checkpoint"
            ) from error

    def add_metrics(self, row: dict[str, Any]) -> None:
        """One more line; it is on the disk when this returns."""
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def read_metrics(self) -> list[dict[str, Any]]:
        """All whole lines; a last one that was cut short does not count."""
        rows = []
        if self.metrics.is_file():
            for line in self.metrics.read_text(encoding="utf-8").splitlines():
                try:
                    rows.append(json.loads(line))
                except ValueError:
                    break
        return rows

    def forget_after(self, epoch: int) -> None:
        """Drop lines of epochs that the restored checkpoint has yet to run."""
        rows = [row for row in self.read_metrics() if row["epoch"] <= epoch]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        write_atomic(self.metrics, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def _lock(file: IO[str]) -> None:
    try:
        import fcntl
    except ImportError:  # Windows
        import msvcrt

        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    else:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
