"""Listeners of a run: `Listener` (the base), `ProgressDisplay` (bars, expected time on a terminal), `TensorBoard`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from vitreous.data.image_dataset import count_nouns, list_some
from vitreous.predict.scores import SCORES
from vitreous.runtime.files import short_name
from vitreous.runtime.progress import LogPace, time_left
from vitreous.runtime.wording import count, duration
from vitreous.training.evaluation import spell_errors

if TYPE_CHECKING:
    from rich.console import Console

    from vitreous.training.config import TrainConfig
    from vitreous.training.run_folder import RunFolder
    from vitreous.training.setup import TrainingParts

LOG_LINES = 20  # epochs to print if the output is not a terminal
SHARES = {"classify": "accuracy", "multilabel": "label accuracy", "segment": "pixel accuracy"}
"""Task → the share of correct answers on the training images, in the progress line; numbers have none."""
LONG = 180.0  # seconds of a run after which its first line names the flag that shortens it


class Listener:
    """Receive every event of a run and do nothing; override the events of interest."""

    def log(self, line: str) -> None:
        """Receive a message of a run, one line."""

    def decoding(self, dataset: str, total: int, done: int) -> None:
        """Receive how many images of a dataset have been decoded: `done` of `total`."""

    def begin(self, parts: TrainingParts, config: TrainConfig, folder: RunFolder) -> None:
        """Receive that everything is set up and the first step comes next or, in a resumed run, the next one."""

    def step(self, parts: TrainingParts, seconds: float) -> None:
        """Receive that steps of a run have been done; called about twice a second."""

    def epoch(self, row: dict[str, Any], parts: TrainingParts) -> None:
        """Receive that an epoch is done; `row` is its line of metrics.jsonl."""

    def end(self, result: dict[str, Any], folder: RunFolder) -> None:
        """Receive that the run is done; model and result are written."""


class Listeners(Listener):
    """Pass every event of a run on to several listeners."""

    def __init__(self, members: Sequence[Listener]) -> None:
        self.members = members
        for name in ("log", "decoding", "begin", "step", "epoch", "end"):
            setattr(self, name, self._to_all(name))

    def _to_all(self, name: str) -> Callable[..., None]:
        """Make a function that passes an event of a run to all listeners."""

        def call(*arguments: Any) -> None:
            for member in self.members:
                getattr(member, name)(*arguments)

        return call


class ProgressDisplay(Listener):
    """Show progress bars and a line for each evaluation on a terminal. A context manager, which removes the bars."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[status]}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            refresh_per_second=4,
        )
        self.tasks: dict[str, TaskID] = {}
        self.started = time.monotonic()
        self.first_step = 0
        self.pace = LogPace()

    def __enter__(self) -> Self:
        if self.console.is_interactive:  # in a log file, bars would be empty lines
            self.bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.console.is_interactive:
            self.bars.stop()

    def _task(self, name: str, total: int) -> TaskID:
        """Return the bar by which this listener shows a run's progress under a name; make it if needed."""
        if name not in self.tasks:
            self.tasks[name] = self.bars.add_task(name, total=total, status="")
        return self.tasks[name]

    def log(self, line: str) -> None:
        self.console.print(line, style="dim", markup=False)

    def decoding(self, dataset: str, total: int, done: int) -> None:
        task = self._task(f"decoding {dataset} ({total:,})", total)
        self.bars.update(task, completed=done, visible=done < total)
        if not self.console.is_terminal and done < total and self.pace.is_due():
            self.log(f"decoding {dataset}: {done:,} of {total:,} images")

    def begin(self, parts: TrainingParts, config: TrainConfig, folder: RunFolder) -> None:
        trainable = sum(p.numel() for p in parts.model.parameters() if p.requires_grad)
        total = sum(p.numel() for p in parts.model.parameters())
        of_all = "" if trainable == total else f" of {total:,}"
        task, names = parts.train_data.task, parts.train_data.class_names
        learned = count_nouns(task, len(names))
        if task == "classify":  # a line of its own says what is learned in other tasks
            learned += f": {list_some(names)}"
        held_out = f"{len(parts.test_data):,} held out{' for validation' if config.validation else ''}"
        self.log(
            f"{short_name(config.model)}: {trainable:,}{of_all} parameters learn from {len(parts.train_data):,} images "
            f"of {learned} ({held_out}), on {parts.state.device}; into {folder.path}"
        )
        self.started, self.pace = time.monotonic(), LogPace()
        self.first_step = parts.state.epoch * parts.steps_per_epoch + parts.state.step
        if (seconds := expected_seconds(parts)) is not None:
            steps = f"{count(parts.steps_per_epoch, 'step')} of {count(int(parts.config.batch_size), 'image')}"
            rest = " more" if self.first_step else "; --epochs shortens it" if seconds > LONG else ""
            self.log(f"{count(config.epochs, 'epoch')} of {steps}: about {duration(seconds)}{rest}")
        self._task("training", config.epochs * parts.steps_per_epoch)

    def step(self, parts: TrainingParts, seconds: float) -> None:
        done = parts.state.epoch * parts.steps_per_epoch + parts.state.step
        loss, correct, images, _ = parts.state.totals.tolist()
        speed = (done - self.first_step) * int(parts.config.batch_size) / (time.monotonic() - self.started)
        status = f"epoch {parts.state.epoch + 1}/{parts.config.epochs}"
        if images:
            title = SHARES.get(parts.train_data.task)
            share = f" · {title} {correct / images:.1%}" if title else ""
            status += f" · loss {loss / images:.3f}{share} · {speed:,.0f} images/s"
        self.bars.update(self.tasks["training"], completed=done, status=status)
        if not self.console.is_terminal and done > self.first_step and self.pace.is_due():
            total = parts.config.epochs * parts.steps_per_epoch - self.first_step
            left = time_left(time.monotonic() - self.started, done - self.first_step, total)
            self.log(f"step {parts.state.step:,} of {parts.steps_per_epoch:,} of {status} · {left}")

    def epoch(self, row: dict[str, Any], parts: TrainingParts) -> None:
        self.bars.update(self.tasks["training"], completed=row["epoch"] * parts.steps_per_epoch)
        epoch, epochs = row["epoch"], parts.config.epochs
        due = self.console.is_terminal or epoch * LOG_LINES // epochs != (epoch - 1) * LOG_LINES // epochs
        scores = SCORES[parts.train_data.task]
        if "test_loss" in row and (due or epoch == epochs):
            title = "" if scores.main == "top1" else f"{scores.title} "
            line = f"epoch {epoch:>4}/{epochs}  loss {row['loss']:.4f}  held out"
            if f"test_{scores.main}" in row:  # numbers that are the same for all images have no R²
                line += f" {title}{scores.format(row[f'test_{scores.main}'])}"
            figures = {name.removeprefix("test_"): value for name, value in row.items()}
            errors = spell_errors(figures, parts.train_data.class_names)
            line += f"  {errors}" if errors else ""
            line += f"  balanced {row['test_balanced']:.2%}" if "test_balanced" in row else ""
            self.console.print(f"{line}  {row['seconds']:,.0f} s", markup=False)
            self.pace.wait()


def expected_seconds(parts: TrainingParts) -> float | None:
    """Estimate the seconds left that a listener announces as training begins; None if no step was timed.

    An evaluation's forward pass takes about a third of a step, image by image.
    """
    if parts.step_seconds is None:
        return None
    config, done = parts.config, parts.state.epoch
    steps = (config.epochs - done) * parts.steps_per_epoch - parts.state.step
    evaluations = -(-config.epochs // parts.evaluate_every) - done // parts.evaluate_every
    share = len(parts.test_data) / int(config.batch_size) / parts.world.world_size / 3
    return parts.step_seconds * (steps + evaluations * share)


class TensorBoard(Listener):
    """Write a run's metrics as TensorBoard's event files, in its folder under `tensorboard/`."""

    def __init__(self) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ImportError("--log tensorboard needs TensorBoard: pip install 'vitreous[log]'") from error
        self.create = SummaryWriter
        self.writer: Any = None

    def begin(self, parts: TrainingParts, config: TrainConfig, folder: RunFolder) -> None:
        self.writer = self.create(str(folder.path / "tensorboard"), purge_step=parts.state.epoch + 1)

    def epoch(self, row: dict[str, Any], parts: TrainingParts) -> None:
        errors = {
            f"mae_{i}": f"mae_{name}" for i, name in enumerate(parts.train_data.class_names)
        }  # of several numbers
        for name, value in row.items():
            kind, name = ("test", name.removeprefix("test_")) if name.startswith("test_") else ("train", name)
            name = errors.get(name, name)
            if name not in ("epoch", "images", "batch_size"):
                self.writer.add_scalar(f"{name}/{kind}", value, row["epoch"])
        self.writer.flush()

    def end(self, result: dict[str, Any], folder: RunFolder) -> None:
        self.writer.close()
