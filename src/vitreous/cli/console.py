"""Print what commands say: results on standard output; remarks, problems, the progress of parts on standard error."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitreous.runtime.distributed import this_rank
from vitreous.runtime.progress import Estimate
from vitreous.runtime.wording import count

if TYPE_CHECKING:
    from rich.console import Console

    from vitreous.data.images import ImageError, ImageLike
    from vitreous.predict.parts import PartsJob
    from vitreous.weights.load import Model

NAMED = 20
"""Unreadable images that are named; of more, the number is."""


def messages() -> Console:
    """Open the console on standard error for remarks and progress; of several processes, only the first one prints."""
    from rich.console import Console

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
    """Make a function that prints a remark on the console in grey."""
    return lambda line: console.print(line, style="dim", markup=False)


def say_problems(console: Console, problems: Sequence[ImageError], total: int = 0) -> None:
    """Print the problems of a command: which images were left out, and why; of many, the first ones."""
    for problem in problems[:NAMED]:
        console.print(f"vitreous: {problem}", markup=False)
    if len(problems) > NAMED:
        console.print(f"vitreous: … and {len(problems) - NAMED:,} more", markup=False)
    if len(problems) > 1 and total > 1:
        console.print(f"vitreous: {len(problems):,} of {count(total, 'image')} left out", markup=False)


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


# --- `classify -o FOLDER` and `embed -o FOLDER`: a folder of Parquet parts ------------------------------------------


def write_folder(
    output: Path,
    images: Sequence[ImageLike],
    problems: list[ImageError],
    job: PartsJob[Any],
    part_size: int,
    console: Console,
    as_json: bool = False,
) -> None:
    """Show the progress on the console while this process writes its parts of a folder, then what came of it.

    Of several processes, the first one alone prints the problems and the summary.
    """
    from vitreous.predict.parts import write_parts

    if not images and problems:
        raise problems[0]
    names = [image for image in images if isinstance(image, str) and image != "-"]
    if len(names) < len(images):
        raise ValueError("a folder of parts is for images with names: write the clipboard or standard input to a file")
    world_size = this_rank().world_size
    process = f", process 1 of {world_size}" if world_size > 1 else ""
    with Estimate(console, f"{job.about['command']}{process}") as estimate:

        def progress(done: int, total: int, existing: int) -> None:
            if done == 0 and existing:
                parts = existing + -(-total // part_size)
                console.print(f"{existing} of {parts} parts are there already", style="dim", markup=False)
            if done:
                estimate(done, total)
            if done == total and world_size > 1:
                console.print("waiting for the other processes", style="dim", markup=False)

        report = write_parts(output, names, job, part_size, progress=progress)
    if report is None:
        return
    say_problems(console, problems)
    if as_json:
        print_json({"output": str(report.folder), "images": report.images, "parts": report.parts, "left": report.left})
    elif report.left:
        print(f"{report.left} of {report.parts} parts in {report.folder} are left to other processes or another run")
    else:
        print(f"wrote {report.folder}: {count(report.images, 'image')} in {count(report.parts, 'part')}")
    if report.left:
        return  # an error here would make torchrun end the others
    for line in report.errors:
        console.print(f"vitreous: {line}", markup=False)
    if report.unreadable:
        raise ValueError(f"{report.unreadable} of {report.images} images could not be read: the column error says why")
    if problems:
        raise ValueError(f"{count(len(problems), 'path')} named no images")
