"""What `vitreous explain` makes of its images, one after the other: pages, their numbers, and files of figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from PIL.Image import Image
    from rich.console import Console

    from vitreous.data.images import ImageError
    from vitreous.pages.explanation import Page
    from vitreous.pages.payload import Payload
    from vitreous.views.inspection import Inspection
    from vitreous.weights.load import Model

    Named = tuple[str, Image | Path | None]
    """What to call an image, and the image: open already, still a file, or none at all."""

Format = Literal["png", "svg", "pdf"]


@dataclass(frozen=True)
class Wanted:
    """What is made of each image."""

    views: str
    """The views to draw, with commas between."""
    asked: frozenset[str]
    """What takes many passes and has to be asked for: `trust`, `ablation`."""
    interactive: bool
    """Whether the report is the interactive page: a ViT in front of an image."""
    drawn: bool
    """Whether figures are drawn: the interactive page has all views as numbers, and needs none."""
    figures: Path | None
    """The folder that figures also go to."""
    format: Format
    apart: bool
    """Whether each image has a folder of its own in there."""

    @property
    def files_alone(self) -> bool:
        """Whether figures are left out of the page: written as files, and on the page as numbers."""
        return self.interactive and self.views.split(",")[0] == "all"


def want(
    views: str,
    trust: bool,
    ablate: str | None,
    figures: Path | None,
    format: Format,
    model: Model,
    found: list[Named],
) -> Wanted:
    """What the flags of `explain` ask for, of this model and these images."""
    from vitreous.models.vit import ViT

    asked = [name for name, wanted in (("trust", trust), ("ablation", ablate is not None)) if wanted]
    interactive = isinstance(model, ViT) and any(image is not None for _, image in found)
    return Wanted(
        views=",".join([views, *(name for name in asked if name not in views.split(","))]),
        asked=frozenset(asked),
        interactive=interactive,
        drawn=views != "all" or figures is not None or not interactive,
        figures=figures,
        format=format,
        apart=len(found) > 1,
    )


def find(asked: tuple[str, ...], model: str | None) -> tuple[list[Named], list[ImageError]]:
    """The images by name, and what leads to none. A checkpoint without an image has views too."""
    from vitreous.data.finding import find_images

    if asked:
        paths, problems = find_images(asked)
        return [(str(path), path) for path in paths], problems
    if model is not None:
        return [("", None)], []
    from vitreous.data.samples import samples

    return [("chelsea", samples()["chelsea"])], []


def _opened(found: list[Named], problems: list[ImageError]) -> Iterator[tuple[str, Image | None]]:
    """Each image when its turn comes: all of a folder may not fit the memory. What cannot be read is a problem."""
    from vitreous.data.images import ImageError, read_image

    for name, image in found:
        if not isinstance(image, Path):
            yield name, image
            continue
        try:
            opened = read_image(image)
        except ImageError as error:
            problems.append(error)
        else:
            yield name, opened


def look_at_all(
    whole: Inspection,
    found: list[Named],
    wanted: Wanted,
    problems: list[ImageError],
    console: Console,
    begin: Callable[[], None],
    quiet: bool,
) -> tuple[list[Page], list[Payload], list[Path]]:
    """Pages, what their scripts draw, and the files of figures; what could not be looked at goes to `problems`.

    `begin` is called when there is an answer to come, and not where nothing can be looked at.
    """
    from rich.text import Text

    from vitreous.data.images import ImageError
    from vitreous.views.inspection import Inspection

    pages: list[Page] = []
    payloads: list[Payload] = []
    drawings: list[Path] = []
    folders: set[Path] = set()
    for name, image in _opened(found, problems):
        try:
            with console.status(Text(f"looking into {name or 'the model'}")):
                page, numbers = _look(Inspection(whole.model, image, whole.choice, name), wanted)
        except ImageError as error:  # preprocessing refuses some, and knows no names
            problems.append(ImageError(name, error.reason))
            continue
        if not pages:
            begin()
        if page.answer and not quiet:
            print(f"{name}: {page.answer}")
        for line in page.skipped:
            console.print(f"left out {line}", style="dim", markup=False)
        if wanted.figures is not None:
            own = _own_folder(wanted.figures, name, folders) if wanted.apart else wanted.figures
            drawings += _write_figures(page, own, wanted.format)
            page.sections = [] if wanted.files_alone else page.sections
        pages.append(page)
        payloads += numbers
    return pages, payloads, drawings


def _look(inspection: Inspection, wanted: Wanted) -> tuple[Page, list[Payload]]:
    """One image's page, and the numbers that it draws from where it is interactive."""
    from vitreous.pages.explanation import Page, answer, explain
    from vitreous.pages.page_data import page_data

    page = explain(inspection, wanted.views) if wanted.drawn else Page(inspection.name, answer(inspection))
    return page, [page_data(inspection, wanted.asked)] if wanted.interactive else []


def write_report(output: Path, pages: list[Page], whole: Inspection, payloads: list[Payload]) -> None:
    """The report's one file, whole or not at all."""
    from vitreous.pages.explanation import html
    from vitreous.runtime.files import write_atomic

    write_atomic(output, partial(Path.write_text, data=html(pages, whole, payloads), encoding="utf-8"))


def _own_folder(figures: Path, name: str, taken: set[Path]) -> Path:
    """A folder for one image of several; two of one name do not share it."""
    stem, count = Path(name).stem, 1
    folder = figures / stem
    while folder in taken:
        count += 1
        folder = figures / f"{stem}-{count}"
    taken.add(folder)
    return folder


def _write_figures(page: Page, folder: Path, format: Format) -> list[Path]:
    from vitreous.figures.style import encode
    from vitreous.runtime.files import write_atomic

    written = []
    for section in page.sections:
        for part, figure in section.figures.items():
            path = folder / f"{section.name}-{part}.{format}" if part else folder / f"{section.name}.{format}"
            written.append(write_atomic(path, partial(Path.write_bytes, data=encode(figure, format))))
    return written
