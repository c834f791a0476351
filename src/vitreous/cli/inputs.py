"""Find the images that a command is given: names, the clipboard, what is piped to standard input, or none."""

from __future__ import annotations

import os
import select
import stat
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from vitreous.data.images import ImageError, ImageLike

PATIENCE = 2.0
"""Seconds that a pipe has for its first byte if no image was named: a script's idle input is not waited for."""


def find_inputs(names: Sequence[str], clipboard: bool, console: Console) -> tuple[list[ImageLike], list[ImageError]]:
    """List the images that the user named, copied or piped in, and the problems with the others; none if none was."""
    from vitreous.data.finding import find_names

    found: list[ImageLike] = []
    problems: list[ImageError] = []
    if names:
        named, problems = find_names(names)
        found += named
    if clipboard:
        found += read_clipboard()
    elif not names and is_piped():
        found += _read_piped(console)
    return found, problems


def read_clipboard() -> list[ImageLike]:
    """Return the image or the files that were copied; a `ValueError` where there are none, or no clipboard."""
    from PIL import Image, ImageGrab

    try:
        found = ImageGrab.grabclipboard()
    except Exception as error:  # no clipboard, no program to read it with, no display: each system has its own errors
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"the clipboard cannot be read here ({reason}): save the image to a file first") from error
    if isinstance(found, Image.Image):
        found.filename = "clipboard"  # type: ignore[attr-defined]  # the name that answers carry
        return [found]
    if not found:
        raise ValueError("the clipboard holds no image: copy one first")
    return list(found)


def is_piped() -> bool:
    """Return whether standard input is a file or a pipe, rather than a terminal or nothing."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):  # closed, or replaced by something that is no file
        return False
    return stat.S_ISREG(mode) or (os.name != "nt" and (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)))


def _read_piped(console: Console) -> list[ImageLike]:
    """Read the image that a command is piped; nothing, and a line that says so, if none comes."""
    from vitreous.data.images import ImageError, image_name, read_image, read_standard_input

    if os.name != "nt" and not select.select([sys.stdin], [], [], PATIENCE)[0]:  # Windows: a file, ready at once
        console.print("nothing was piped in so far: name - to wait for it", style="dim", markup=False)
        return []
    if not (data := read_standard_input()):
        console.print("standard input is empty", style="dim", markup=False)
        return []
    name = image_name("-")
    try:
        image = read_image(data)
    except ImageError as error:
        raise ImageError(name, error.reason) from error
    image.filename = name  # type: ignore[attr-defined]  # the name that answers carry
    return [image]
