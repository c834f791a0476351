"""`classify -o FOLDER` and `embed -o FOLDER`: show the progress of a folder of Parquet parts, and sum it up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitreous.cli.console import Estimate, print_json, say_problems
from vitreous.runtime.distributed import this_rank
from vitreous.runtime.wording import count

if TYPE_CHECKING:
    from rich.console import Console

    from vitreous.data.images import ImageError, ImageLike
    from vitreous.predict.parts import PartsJob


def is_folder(output: Path) -> bool:
    """Return whether `-o` names a folder of parts: a name without a suffix, or an existing folder."""
    return not output.suffix or output.is_dir()


def write_folder(
    output: Path,
    images: Sequence[ImageLike],
    problems: list[ImageError],
    job: PartsJob[Any],
    part_size: int,
    console: Console,
    as_json: bool = False,
) -> None:
    """Write this process's parts with a progress bar, and print a summary in the first process."""
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
