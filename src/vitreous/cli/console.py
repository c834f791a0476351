"""What commands print: results on standard output, remarks and progress on standard error."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from vitreous.data.images import ImageError
    from vitreous.weights.load import Model


def messages() -> Console:
    """Open standard error for remarks and progress; of several processes, only the first one prints."""
    from rich.console import Console

    from vitreous.runtime.distributed import this_rank

    return Console(stderr=True, highlight=False, soft_wrap=True, quiet=not this_rank().first)


def say_remarks(console: Console, model: Model) -> None:
    """Print what was assumed, resized or left out when the model was loaded."""
    for line in model.card.report.remarks():
        console.print(line, style="dim", markup=False)


def notes(console: Console) -> Callable[[str], None]:
    """Make a function that prints a line in grey."""
    return lambda line: console.print(line, style="dim", markup=False)


def say_problems(console: Console, problems: Iterable[ImageError]) -> None:
    """Print which images were left out, and why."""
    for problem in problems:
        console.print(f"vitreous: {problem}", markup=False)


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
