"""A command's images worked through by one or several processes into a folder of parts."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitreous.cli.console import print_json, say_problems
from vitreous.runtime.distributed import this_rank

if TYPE_CHECKING:
    from rich.console import Console

    from vitreous.data.images import ImageError
    from vitreous.predict.tables import Work


EVERY = 60.0
"""Seconds between lines on how far it is, where there is no terminal to draw a bar on."""

PATIENCE = 3600.0
"""Seconds for which the first process waits for another part. Where one fails, torchrun ends all, and nobody waits."""


def is_folder(output: Path) -> bool:
    """Whether `-o` names a folder of parts: a name without a suffix, or a folder that is there."""
    return not output.suffix or output.is_dir()


def work_through(
    output: Path,
    names: list[str],
    problems: list[ImageError],
    work: Work[Any],
    part_size: int,
    console: Console,
    as_json: bool = False,
) -> None:
    """Write this process's parts; the first process then waits for the others' and says what has come of it."""
    from rich.progress import Progress

    from vitreous.predict.parts import Parts

    if not names:
        raise problems[0] if problems else ValueError("there are no images to work through")
    place = this_rank()
    parts = Parts(output.expanduser(), names, part_size, work.schema, work.about)
    missing = parts.begin(place)
    if there := len(parts.of(place)) - len(missing):
        console.print(f"{there} of {len(parts.of(place))} parts are there already", style="dim", markup=False)
    own = sum(len(parts.span(number)) for number in missing)
    many = f", process 1 of {place.world_size}" if place.world_size > 1 else ""
    begun = message = time.monotonic()
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(f"{work.about['command']}{many}", total=own)
        for done in parts.fill(missing, work.compute, work.columns):
            progress.update(task, completed=done)
            if not console.is_terminal and time.monotonic() - message > EVERY:
                message = time.monotonic()
                rate = done / (message - begun)
                console.print(f"{done:,} of {own:,} images{many}, {rate:.1f} a second", markup=False)
    if not place.first:
        return
    with console.status("waiting for the other processes"):
        left = parts.wait(range(len(parts)), PATIENCE)
    say_problems(console, problems)
    if as_json:
        print_json({"output": str(parts.folder), "images": len(names), "parts": len(parts), "left": len(left)})
    if left:
        if not as_json:
            print(f"{len(left)} of {len(parts)} parts in {parts.folder} are left to other processes, or to another run")
        return  # an error here would make torchrun end the others
    unreadable, lines = parts.unreadable()
    if not as_json:
        print(f"wrote {parts.folder}: {len(names)} images in {len(parts)} parts")
    for line in lines:
        console.print(f"vitreous: {line}", markup=False)
    if unreadable:
        raise ValueError(f"{unreadable} of {len(names)} images could not be read: the column error says why")
    if problems:
        raise ValueError(f"{len(problems)} of the paths named no images")
