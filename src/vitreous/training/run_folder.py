"""`RunFolder`: a run's folder, its paths, config, result and metrics, and the lock that one writer holds.

`config.json` · `model.json` · `metrics.jsonl` · `checkpoints/` · `snapshots/` · `held_out.npz` · `model/` ·
`result.json` · `run.html`
"""

import errno
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from vitreous.data.images import ImageError
from vitreous.runtime.files import remove, write_json, write_text
from vitreous.training.config import TrainConfig
from vitreous.weights.runs import MODEL_FILE

LOCK = "run.lock"
LOCK_SECONDS = 0.1  # how long to try for the lock: a process that never began removes its lock file as it leaves
FORMAT = 2
"""Version of `config.json`, written there as `format`. 0.1 wrote none."""
NO_SPACE = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}
TEMPORARY = re.compile(r"\..+\.[a-z0-9_]{8}")  # the name that `write_atomic` gives to the folder of an incomplete file


class LockedError(ValueError):
    """The error that another process is writing to a run's folder."""


class RunFolder:
    """The paths of a run, and reading and writing its files."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser()
        self.checkpoints = self.path / "checkpoints"
        self.snapshots = self.path / "snapshots"
        self.held_out = self.path / "held_out.npz"
        self.model = self.path / "model"
        self.metrics = self.path / "metrics.jsonl"
        self.config = self.path / "config.json"
        self.result = self.path / "result.json"
        self.model_json = self.path / MODEL_FILE

    def read_config(self) -> TrainConfig | None:
        """Return the config in a run's folder, with which it was started; None if there is no run."""
        if not self.config.is_file():
            return None
        try:
            values = dict(json.loads(self.config.read_text(encoding="utf-8")))
            written = values.pop("format", None)
            if written == FORMAT or (written is None and "epoch_pictures" not in values):
                return TrainConfig.from_dict(values)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{self.config} does not describe a run ({error}): choose another --output") from error
        version = "0.1" if written is None else "another version"
        hint = f"start it again with another --output, or finish it with {version}"
        if self.result.is_file():
            hint = f"its model is in {self.model}; choose another --output"
        raise ValueError(
            f"{self.path} was begun by {version} of vitreous, whose runs this version does not resume: {hint}"
        )

    def read_result(self) -> dict[str, Any] | None:
        """Return the result in a finished run's folder; None if it is not finished."""
        return json.loads(self.result.read_text(encoding="utf-8")) if self.result.is_file() else None

    def read_classes(self) -> int | None:
        """Return the number of classes of the model in a run's folder; None if the run has not begun."""
        described = json.loads(self.model_json.read_text(encoding="utf-8")) if self.model_json.is_file() else {}
        return described.get("num_classes")

    def check(self, config: TrainConfig) -> TrainConfig:
        """Return the config to run in a folder; raise if it holds another run. A batch size that was found is kept."""
        if (before := self.read_config()) is not None:
            if changed := config.differences(before):
                changes = ", ".join(f"{name} {getattr(before, name)} → {getattr(config, name)}" for name in changed)
                raise ValueError(
                    f"{self.path} holds another run ({changes}): choose another --output, such as {self.path}-2"
                )
            if config.batch_size == "auto":
                config = replace(config, batch_size=before.batch_size)
        elif not self.is_free():
            raise ValueError(f"{self.path} is not empty and holds no run: choose another --output")
        return config

    def is_free(self) -> bool:
        """Return whether a new run may begin in a folder; files of a run killed before it began do not count."""
        kept = self.path.iterdir() if self.path.exists() else ()
        return all(path.name == LOCK or TEMPORARY.fullmatch(path.name) for path in kept)

    def begin(self, asked: TrainConfig, settled: TrainConfig | None = None) -> None:
        """Begin a run's folder: write `config.json`, and remove incomplete files of a killed process.

        A batch size that was searched for is written; one that was reduced to a small dataset is reduced again.
        """
        for folder in (self.path, self.model, self.snapshots):
            for path in folder.glob(".*"):
                if TEMPORARY.fullmatch(path.name):
                    remove(path)
        kept = asked
        if settled is not None and asked.batch_size == "auto":
            kept = replace(settled, compile=asked.compile)  # which is off in `settled` if there is no compiler
        write_json(self.config, {"format": FORMAT, **kept.to_dict()})

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock of a run's folder; raise `LockedError` if another process holds it.

        The system releases the lock when the process ends, however it ends.
        """
        created = [path for path in (self.path, *self.path.parents) if not path.exists()]  # the innermost first
        with self._acquire():
            try:
                yield
            finally:
                if not self.config.is_file():  # nothing began here: remove what the lock created
                    with suppress(OSError):  # there may be files of others
                        (self.path / LOCK).unlink()
                        for path in created or [self.path]:
                            path.rmdir()

    def _acquire(self) -> FileLock:
        """Take the lock of a run's folder; raise if another process has it."""
        while True:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
            except FileExistsError as error:
                raise ValueError(f"{self.path} is a file: choose another --output") from error
            lock = FileLock(self.path / LOCK, timeout=LOCK_SECONDS)
            try:
                lock.acquire(poll_interval=LOCK_SECONDS / 4)
            except FileNotFoundError:  # another process has just removed the folder
                continue
            except Timeout as error:
                message = f"another run is writing to {self.path}: wait for it, or choose another --output"
                raise LockedError(message) from error
            return lock

    @contextmanager
    def explain_errors(self) -> Iterator[None]:
        """Turn an error while a run's folder is written (full disk, unreadable image) into one line of advice."""
        try:
            yield
        except ImageError as error:
            raise ValueError(
                f"{error}. Repair the image and run the same command again: it resumes from the last checkpoint"
            ) from error
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            raise OSError(
                f"{error.filename or self.path} could not be written to ({error.strerror}): free some space and run "
                "the same command again; it resumes from the last checkpoint"
            ) from error

    def add_metrics(self, row: dict[str, Any]) -> None:
        """Append a line to the metrics in a run's folder; it is on the disk when this returns."""
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def read_metrics(self) -> list[dict[str, Any]]:
        """Return all complete lines of the metrics in a run's folder; a last line that was cut short does not count."""
        rows = []
        if self.metrics.is_file():
            for line in self.metrics.read_text(encoding="utf-8").splitlines():
                try:
                    rows.append(json.loads(line))
                except ValueError:
                    break
        return rows

    def drop_metrics_after(self, epoch: int) -> None:
        """Remove from a run's folder the metrics of epochs that are not in the restored checkpoint."""
        rows = [row for row in self.read_metrics() if row["epoch"] <= epoch]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        write_text(self.metrics, text)


def free_folder(name: str, config: TrainConfig) -> RunFolder:
    """Return a new run's folder, `runs/NAME` or, if that holds another run or a finished one, `runs/NAME-2`."""
    number = 1
    while True:
        folder = RunFolder(Path("runs") / (name if number == 1 else f"{name}-{number}"))
        if folder.is_free():
            return folder
        try:
            before = folder.read_config()
        except ValueError:  # of another version
            before = None
        if before is not None and folder.read_result() is None and not config.differences(before):
            return folder
        number += 1


def run_name(data: str | Path) -> str:
    """Name a run's folder after its data.

    >>> run_name("photos/flowers/"), run_name("org/zoo"), run_name("shots.parquet")
    ('flowers', 'zoo', 'shots')
    """
    path = Path(data).expanduser()
    return (path.stem if path.suffix else path.resolve().name) or "run"
