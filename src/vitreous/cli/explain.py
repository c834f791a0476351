"""`vitreous explain`."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from vitreous.cli.console import messages, print_json, say_problems
from vitreous.cli.options import Images, ModelOptions, Number, SharedModel
from vitreous.cli.pages import Format, find, look_at_all, want, write_report

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from vitreous.weights.load import Model

FEW_CLASSES = 20
"""Classes up to which a message names them all."""

Range = Annotated[str | None, tyro.conf.arg(metavar="0-7")]


def explain(
    images: Images = (),
    options: SharedModel = ModelOptions(),  # noqa: B008  # frozen
    views: Annotated[str, tyro.conf.arg(metavar="all|NAME,…")] = "all",
    layer: int = -1,
    head: Number = None,
    heads: Range = None,
    query: Number = None,
    target: Annotated[str | None, tyro.conf.arg(metavar="CLASS")] = None,
    scale: Literal["raw", "log", "layer-norm"] | None = None,
    fusion: Literal["mean", "max", "min"] = "mean",
    discard: float = 0.0,
    residual: float = 0.5,
    trust: bool = False,
    ablate: Literal["heads"] | None = None,
    figures: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None,
    format: Format = "png",
    output: Annotated[Path, tyro.conf.arg(aliases=["-o"], metavar="REPORT.html")] = Path("report.html"),
    device: str = "auto",
    json: bool = False,
) -> None:
    """Look inside: a report of what the model sees, where it looks, and which image of that to trust.

    Args:
        images: Files, folders or globs. Without any, and without --model, a photograph of a cat.
        options: Which model.
        views: Which views; `vitreous views` lists them.
        layer: The block, for views of one block; -1 is the last.
        head: The head, for views of one head; without it, the mean over heads.
        heads: Heads that are shown side by side, such as 0-7 or 0,3,5; without it, all.
        query: The token that looks: its row of the attention matrix. 0 is the class token.
        target: The class to explain, by name or number; without it, the predicted one.
        scale: How the attention matrix is shown; without it, all three ways.
        fusion: How rollout joins heads.
        discard: The share of smallest attention that rollout drops.
        residual: The shortcut's share in rollout.
        trust: Also measure which map to trust: deletion, insertion, and maps of fresh weights.
        ablate: Also switch every head off by itself and rank them by what that does to the class.
        figures: Also write every figure to this folder.
        format: The format of those figures.
        output: Where the report goes.
        device: auto, cpu, cuda, cuda:N or mps.
        json: Print what was answered and written as JSON.
    """
    from vitreous.runtime.device import pick_device
    from vitreous.views.inspection import Choice, Inspection

    console, place = messages(), pick_device(device)
    _check_places(output, figures)
    model = options.load(console).to(place)
    choice = Choice(
        layer=layer,
        head=head,
        heads=_numbers(heads),
        query=query,
        target=_class(target, model),
        scale=scale,
        fusion=fusion,
        discard=discard,
        residual=residual,
    )
    whole = Inspection(model, None, choice)  # what the model does not have is said before an image is opened
    found, problems = find(images, options.model)
    wanted = want(views, trust, ablate, figures, format, model, found)
    if not wanted.drawn:
        _say_idle(console, heads, scale)
    begin = partial(options.say_packaged, console, model)
    pages, payloads, drawings = look_at_all(whole, found, wanted, problems, console, begin, quiet=json)
    if pages:
        write_report(output, pages, whole, payloads)
    if json:
        answers = [{"image": page.title or None, "answer": page.answer or None} for page in pages]
        written = [str(path) for path in drawings]
        print_json({"report": str(output) if pages else None, "figures": written, "images": answers})
    elif pages:
        print(f"wrote {output} ({output.stat().st_size / 2**20:.1f} MB)")
        if figures is not None:
            print(f"wrote {len(drawings)} figure{'s' * (len(drawings) != 1)} to {figures}")
    say_problems(console, problems)
    if problems:
        sys.exit(2)


def _say_idle(console: Console, heads: str | None, scale: str | None) -> None:
    """Say which flags change nothing, since there is no figure that they could shape."""
    if idle := [flag for flag, given in (("--heads", heads), ("--scale", scale)) if given is not None]:
        message = f"{' and '.join(idle)} shape figures, and the page has none: add --views NAME,… or --figures FOLDER"
        console.print(message, style="dim", markup=False)


def _check_places(output: Path, figures: Path | None) -> None:
    """Say that something cannot be written before the work rather than after it."""
    if output.is_dir():
        raise ValueError(f"{output} is a folder: name the report's file, such as {output / 'report.html'}")
    if figures is not None and figures.exists() and not figures.is_dir():
        raise ValueError(f"{figures} is a file: --figures wants a folder")
    for place in (output.parent, figures):
        if place is None:
            continue
        there = next((folder for folder in (place, *place.parents) if folder.exists()), place)
        if there.is_file() or not os.access(there, os.W_OK):
            message = "is a file, not a folder" if there.is_file() else "cannot be written to"
            raise ValueError(f"{there} {message}: choose another place")


def _numbers(text: str | None) -> tuple[int, ...] | None:
    """`0-7` or `0,3,5` as numbers."""
    if text is None:
        return None
    found: list[int] = []
    try:
        for part in text.split(","):
            first, dash, last = part.partition("-")
            found += range(int(first), int(last) + 1) if dash else [int(first)]
    except ValueError as error:
        raise ValueError(f"heads are numbers such as 0-7 or 0,3,5, got {text!r}") from error
    if not found:
        raise ValueError(f"heads are numbers such as 0-7 or 0,3,5, got {text!r}, which is none")
    return tuple(found)


def _class(text: str | None, model: Model) -> int | None:
    """A class by number or by name."""
    if text is None:
        return None
    names = model.card.class_names or ()
    if text in names:
        return names.index(text)
    if text.isdecimal():
        return int(text)
    import difflib

    close = difflib.get_close_matches(text, names, n=3)
    hint = f"did you mean {' or '.join(close)}?" if close else _known(names)
    raise ValueError(f"the model has no class {text!r}: {hint}")


def _known(names: Sequence[str]) -> str:
    """How to name a class; where there are few, which."""
    return f"its classes are {', '.join(names)}" if 0 < len(names) <= FEW_CLASSES else "give a class name or number"
