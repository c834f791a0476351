"""`vitreous explain` and `vitreous views`."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from vitreous.verbs.options import ModelOptions, Number, Pictures, SharedModel, messages, print_json

if TYPE_CHECKING:
    from vitreous.report import Page
    from vitreous.weights.load import Model

Range = Annotated[str | None, tyro.conf.arg(metavar="0-7")]


def explain(
    pictures: Pictures = (),
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
    format: Literal["png", "svg", "pdf"] = "png",
    output: Annotated[Path, tyro.conf.arg(aliases=["-o"], metavar="REPORT.html")] = Path("report.html"),
    device: str = "auto",
    json: bool = False,
) -> None:
    """Look inside: a report of what the model sees, where it looks, and which picture of that to trust.

    Args:
        pictures: Files, folders or globs. Without any, and without --model, a photograph of a cat.
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
    from rich.text import Text

    from vitreous.data.pictures import PictureError
    from vitreous.device import pick_device
    from vitreous.models.vit import ViT
    from vitreous.page_data import page_data
    from vitreous.report import Page, answer, html
    from vitreous.report import explain as draw
    from vitreous.scene import Choice, Scene
    from vitreous.weights.save import write_atomic

    console = messages()
    place = pick_device(device)
    _check_places(output, figures)
    model = options.load(console).to(place)
    options.say_packaged(console, model)
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
    named, problems = _open(pictures, options.model)
    interactive = isinstance(model, ViT) and bool(named) and named[0][1] is not None
    asked = frozenset(["trust"] * trust + ["ablation"] * (ablate is not None))
    drawn = views != "all" or figures is not None or not interactive  # the interactive page has all of them as numbers
    if not drawn and (idle := [name for name, given in (("--heads", heads), ("--scale", scale)) if given is not None]):
        told = f"{' and '.join(idle)} shape figures, and the page has none: add --views NAME,… or --figures FOLDER"
        console.print(told, style="dim", markup=False)
    views = _with_asked(views, trust, ablate)
    pages: list[Page] = []
    payloads = []
    folders: set[Path] = set()
    drawings: list[str] = []
    everything = views.split(",")[0] == "all"
    scene = Scene(model, None, choice)
    for name, picture in named:
        scene = Scene(model, picture, choice, name)
        try:
            with console.status(Text(f"looking into {name or 'the model'}")):
                page = draw(scene, views) if drawn else Page(name, answer(scene))
                if interactive:
                    payloads.append(page_data(scene, asked))
        except PictureError as error:  # preprocessing refuses some, and knows no names
            problems.append(PictureError(name, error.reason))
            continue
        pages.append(page)
        if page.answer and not json:
            print(f"{name}: {page.answer}")
        for line in page.skipped:
            console.print(f"left out {line}", style="dim", markup=False)
        if figures is not None:
            own = _own_folder(figures, name, folders) if len(named) > 1 else figures
            drawings += map(str, _write_figures(page, own, format))
            if everything and interactive:
                page.sections = []  # written as files, and on the page as numbers
    if pages:
        path = write_atomic(
            output, lambda temporary: temporary.write_text(html(pages, scene, payloads), encoding="utf-8")
        )
        if not json:
            print(f"wrote {path} ({path.stat().st_size / 2**20:.1f} MB)")
    if figures is not None and pages and not json:
        print(f"wrote {len(drawings)} figures to {figures}")
    if json:
        answers = [{"picture": page.title or None, "answer": page.answer or None} for page in pages]
        print_json({"report": str(output) if pages else None, "figures": drawings, "pictures": answers})
    for problem in problems:
        console.print(f"vitreous: {problem}", markup=False)
    if problems:
        sys.exit(2)


def views(json: bool = False) -> None:
    """List the views that `explain` can draw.

    Args:
        json: Print JSON.
    """
    from vitreous.views import VIEWS

    if json:
        told = [{"name": name, "title": view.title, "when_asked": view.asked} for name, view in VIEWS.items()]
        print_json(told)
        return
    width = max(len(name) for name in VIEWS) + 2
    for name, view in VIEWS.items():
        print(f"{name:<{width}}{view.title}{' (when asked for)' if view.asked else ''}")


def _open(asked: tuple[str, ...], model: str | None) -> tuple[list[tuple[str, Any]], list[Any]]:
    """Names with opened pictures, and what could not be opened. A checkpoint without a picture has views too."""
    from vitreous.data.pictures import PictureError, find_pictures, read_picture

    if not asked:
        if model is not None:
            return [("", None)], []
        from vitreous.samples import samples

        return [("chelsea", samples()["chelsea"])], []
    found, problems = find_pictures(asked)
    opened: list[tuple[str, Any]] = []
    for path in found:
        try:
            opened.append((str(path), read_picture(path)))
        except PictureError as error:
            problems.append(error)
    return opened, problems


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
            told = "is a file, not a folder" if there.is_file() else "cannot be written to"
            raise ValueError(f"{there} {told}: choose another place")


def _own_folder(figures: Path, name: str, taken: set[Path]) -> Path:
    """A folder for one picture of several; two of one name do not share it."""
    stem, count = Path(name).stem, 1
    folder = figures / stem
    while folder in taken:
        count += 1
        folder = figures / f"{stem}-{count}"
    taken.add(folder)
    return folder


def _with_asked(views: str, trust: bool, ablate: str | None) -> str:
    extra = ["trust"] * trust + ["ablation"] * (ablate is not None)
    if not extra:
        return views
    return ",".join([views, *(name for name in extra if name not in views.split(","))])


def _write_figures(page: Page, folder: Path, format: Literal["png", "svg", "pdf"]) -> list[Path]:
    from vitreous.figures.style import encode
    from vitreous.weights.save import write_atomic

    written = []
    for section in page.sections:
        for part, figure in section.figures.items():
            path = folder / f"{section.name}-{part}.{format}" if part else folder / f"{section.name}.{format}"
            written.append(write_atomic(path, partial(Path.write_bytes, data=encode(figure, format))))
    return written


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
    hint = f"did you mean {' or '.join(close)}?" if close else "give a class name or number"
    raise ValueError(f"the model has no class {text!r}: {hint}")
