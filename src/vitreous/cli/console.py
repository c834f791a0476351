"""What commands print: results on standard output, remarks and progress on standard error."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from vitreous.data.images import ImageError
    from vitreous.predict.compute import Compute, Output
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


def choose_compute(console: Console, model: Model, output: Output = "logits", **options: Any) -> Compute | None:
    """Choose how to compute (`--fast`, `--merge`, `--precision`), and print what was chosen."""
    from vitreous.predict.compute import fast_compute

    waiting = "finding the fastest way (the first time on a machine takes a minute)"
    with console.status(waiting) if options.get("fast") else nullcontext():
        compute, notes = fast_compute(model, output, **options)
    for line in notes:
        console.print(line, style="dim", markup=False)
    return compute


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
