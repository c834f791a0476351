"""Print what commands say: results on standard output; remarks, problems, progress and estimates on standard error."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

from vitreous.runtime.progress import LogPace, time_left
from vitreous.runtime.wording import count

if TYPE_CHECKING:
    from rich.console import Console

    from vitreous.data.images import ImageError
    from vitreous.weights.load import Model


Item = TypeVar("Item")
NAMED = 20
"""Unreadable images that are named; of more, the number is."""


def messages() -> Console:
    """Open standard error for remarks and progress; of several processes, only the first one prints."""
    from rich.console import Console

    from vitreous.runtime.distributed import this_rank

    return Console(stderr=True, highlight=False, soft_wrap=True, quiet=not this_rank().first)


def say_remarks(console: Console, model: Model) -> None:
    """Print the remarks on a loaded model: what was assumed, resized or left out."""
    for line in model.card.report.remarks():
        console.print(line, style="dim", markup=False)


def say_doubts(console: Console, model: Model) -> None:
    """Print the remarks that make a model's answers doubtful; `vitreous doctor` prints the others too."""
    report = model.card.report
    lines = [report.unfinished] if report.unfinished else []
    lines += [f"re-initialised {key}: it has learned nothing yet" for key in report.reinitialised]
    lines += [f"{key} holds {count} NaN or infinite values" for key, count in report.nonfinite.items()]
    if guessed := [name for name in report.assumed if name != "class names"]:
        command = f"vitreous doctor --model {model.card.name}{report.flags()}"
        lines.append(f"assumed {' and '.join(guessed)}: `{command}` says why")
    for line in lines:
        console.print(line, style="dim", markup=False)


def say_packaged(console: Console, named: str | None, model: Model) -> None:
    """Print the remark that names the model which answers, if none was `named`."""
    if named is None:
        text = f"model: {model.card.name} (ViT-Ti/16, {model.config.classes:,} classes of ImageNet)"
        console.print(text, style="dim", markup=False)


def notes(console: Console) -> Callable[[str], None]:
    """Make a function that prints a remark in grey."""
    return lambda line: console.print(line, style="dim", markup=False)


def say_problems(console: Console, problems: Sequence[ImageError], total: int = 0) -> None:
    """Print the problems of a command: which images were left out, and why; of many, the first ones."""
    for problem in problems[:NAMED]:
        console.print(f"vitreous: {problem}", markup=False)
    if len(problems) > NAMED:
        console.print(f"vitreous: … and {len(problems) - NAMED:,} more", markup=False)
    if len(problems) > 1 and total > 1:
        console.print(f"vitreous: {len(problems):,} of {count(total, 'image')} left out", markup=False)


class Estimate:
    """Show how far slow work has come and how long it will take: live on a terminal, else by a line now and then."""

    def __init__(self, console: Console, what: str) -> None:
        self.console, self.what = console, what
        self.status = console.status(what)
        self.since = self.called = time.monotonic()
        self.pace, self.done = LogPace(), 0

    def __enter__(self) -> Self:
        self.status.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.status.stop()

    def begin(self, what: str) -> None:
        """Begin with the next part of the work; estimates count from here."""
        self.what, self.since, self.done = what, time.monotonic(), 0
        self.status.update(what)

    def __call__(self, done: int, total: int) -> None:
        """Show that `done` of `total` steps are done."""
        if done <= self.done:  # once more from the start
            self.since = self.called
        self.done, self.called = done, time.monotonic()
        if done < total:
            self.say(f"{done:,} of {total:,}, {time_left(self.called - self.since, done, total)}")

    def track(self, items: Iterable[Item], total: int) -> Iterator[Item]:
        """Yield items as they are done, and show how many of `total` they are."""
        for done, item in enumerate(items, 1):
            self(done, total)
            yield item

    def say(self, text: str) -> None:
        """Show a line of progress; a log gets one only if the last is some seconds old."""
        self.status.update(f"{self.what}: {text}")
        if not self.console.is_terminal and self.pace.is_due():
            self.console.print(f"{self.what}: {text}", style="dim", markup=False)


def print_json(value: object, indent: int | None = 2) -> None:
    """Print one JSON value and nothing else. JSON has no NaN and no infinity: they become null."""
    import json

    print(json.dumps(_finite(value), indent=indent, ensure_ascii=False, allow_nan=False))


def _finite(value: Any) -> Any:
    """Replace NaN and infinity by null in what `print_json` prints.

    >>> _finite({"loss": float("nan"), "top": (1, float("inf"))})
    {'loss': None, 'top': [1, None]}
    """
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
