"""What commands print: results on standard output, remarks and progress on standard error."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from vitreous.data.images import ImageError
    from vitreous.weights.load import Model


NAMED = 20
"""Unreadable images that are named; of more, the number is."""


def messages() -> Console:
    """Open standard error for remarks and progress; of several processes, only the first one prints."""
    from rich.console import Console

    from vitreous.runtime.distributed import this_rank

    return Console(stderr=True, highlight=False, soft_wrap=True, quiet=not this_rank().first)


def say_remarks(console: Console, model: Model) -> None:
    """Print what was assumed, resized or left out when the model was loaded."""
    for line in model.card.report.remarks():
        console.print(line, style="dim", markup=False)


def say_doubts(console: Console, model: Model) -> None:
    """Print what makes a model's answers doubtful; what is merely assumed each time, `vitreous doctor` prints."""
    report = model.card.report
    lines = [f"re-initialised {key}: it has learned nothing yet" for key in report.reinitialised]
    lines += [f"{key} holds {count} NaN or infinite values" for key, count in report.nonfinite.items()]
    if guessed := [name for name in report.assumed if name != "class names"]:
        lines.append(f"assumed {' and '.join(guessed)}: `vitreous doctor --model {model.card.name}` says why")
    for line in lines:
        console.print(line, style="dim", markup=False)


def notes(console: Console) -> Callable[[str], None]:
    """Make a function that prints a line in grey."""
    return lambda line: console.print(line, style="dim", markup=False)


def say_problems(console: Console, problems: Sequence[ImageError], total: int = 0) -> None:
    """Print which images were left out, and why; of many, the first ones and how many more of how many."""
    for problem in problems[:NAMED]:
        console.print(f"vitreous: {problem}", markup=False)
    if len(problems) > NAMED:
        console.print(f"vitreous: … and {len(problems) - NAMED:,} more", markup=False)
    if problems and total > 1:
        console.print(f"vitreous: {len(problems):,} of {count(total, 'image')} left out", markup=False)


def count(number: int, word: str) -> str:
    """Write a number of things, with the plural where there is one.

    >>> count(1, "image"), count(1200, "image")
    ('1 image', '1,200 images')
    """
    return f"{number:,} {word}{'s' * (number != 1)}"


def check_writable(output: Path) -> None:
    """Raise if a file cannot be written, before the work rather than after it."""
    folder = output.expanduser().resolve().parent
    if output.is_dir():
        raise ValueError(f"{output} is a folder: name a file with -o")
    if folder.exists() and not (folder.is_dir() and os.access(folder, os.W_OK)):
        raise ValueError(f"{folder} cannot be written to: choose another folder with -o")


def print_json(value: object, indent: int | None = 2) -> None:
    """Print one JSON value and nothing else. JSON has no NaN and no infinity: they become null."""
    import json

    print(json.dumps(_finite(value), indent=indent, ensure_ascii=False, allow_nan=False))


def _finite(value: Any) -> Any:
    """
    >>> _finite({"loss": float("nan"), "top": (1, float("inf"))})
    {'loss': None, 'top': [1, None]}
    """
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
