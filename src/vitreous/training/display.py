"""A run as it is seen on a terminal: bars while it goes on, a line for each look at the held-out images."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from vitreous.training.listeners import Listener

if TYPE_CHECKING:
    from rich.console import Console

    from vitreous.training.assemble import Parts
    from vitreous.training.config import TrainConfig
    from vitreous.training.folder import RunFolder

LINES = 20  # of a log, where the output is no terminal


class Display(Listener):
    """Use it as a context: the bars are taken down at the end, whatever happened."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[news]}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            refresh_per_second=4,
        )
        self.tasks: dict[str, TaskID] = {}
        self.begun = time.monotonic()
        self.first = 0

    def __enter__(self) -> Self:
        if self.console.is_interactive:  # in a log, bars would be empty lines
            self.bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.console.is_interactive:
            self.bars.stop()

    def _task(self, name: str, total: int) -> TaskID:
        if name not in self.tasks:
            self.tasks[name] = self.bars.add_task(name, total=total, news="")
        return self.tasks[name]

    def say(self, text: str) -> None:
        self.console.print(text, style="dim", markup=False)

    def decoding(self, what: str, total: int, done: int) -> None:
        task = self._task(f"decoding {what} ({total:,})", total)
        self.bars.update(task, completed=done, visible=done < total)

    def begin(self, parts: Parts, config: TrainConfig, folder: RunFolder) -> None:
        learning = sum(p.numel() for p in parts.model.parameters() if p.requires_grad)
        whole = sum(p.numel() for p in parts.model.parameters())
        share = "" if learning == whole else f" of {whole:,}"
        self.say(
            f"{config.model}: {learning:,}{share} parameters learn from {len(parts.learned):,} images of "
            f"{len(parts.learned.class_names)} classes, on {parts.state.device}; into {folder.path}"
        )
        self.begun, self.first = time.monotonic(), parts.state.epoch * parts.steps + parts.state.step
        self._task("training", config.epochs * parts.steps)

    def step(self, parts: Parts, seconds: float) -> None:
        done = parts.state.epoch * parts.steps + parts.state.step
        loss, right, images, _ = parts.state.totals.tolist()
        speed = (done - self.first) * int(parts.config.batch_size) / (time.monotonic() - self.begun)
        news = f"epoch {parts.state.epoch + 1}/{parts.config.epochs}"
        if images:
            news += f" · loss {loss / images:.3f} · {right / images:.1%} · {speed:,.0f} images/s"
        self.bars.update(self.tasks["training"], completed=done, news=news)

    def epoch(self, row: dict[str, Any], parts: Parts) -> None:
        self.bars.update(self.tasks["training"], completed=row["epoch"] * parts.steps)
        epochs = parts.config.epochs
        often = self.console.is_terminal or row["epoch"] * LINES // epochs != (row["epoch"] - 1) * LINES // epochs
        if "test_top1" in row and (often or row["epoch"] == epochs):
            said = f"epoch {row['epoch']:>4}/{epochs}  loss {row['loss']:.4f}  held out {row['test_top1']:.2%}"
            self.console.print(f"{said}  {row['seconds']:,.0f} s", markup=False)
