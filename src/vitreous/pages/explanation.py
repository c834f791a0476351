"""One HTML file that opens anywhere: no request, nothing beside it.

For a ViT with an image it is the interactive page, with figures below where views were asked for by name; a ResNet, or
a model without an image, has figures alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from vitreous.models.vit import ViT
from vitreous.pages.interactive import interactive
from vitreous.pages.page import document, figure_image, short
from vitreous.pages.payload import Payload
from vitreous.views.drawing import Figures
from vitreous.views.inspection import Inspection
from vitreous.views.registry import View, choose
from vitreous.weights.inspect import inspect


@dataclass
class Section:
    """A view of one image, drawn."""

    name: str
    view: View
    figures: Figures


@dataclass
class Page:
    """All that is said about one image, or about a model without an image."""

    title: str
    answer: str
    """What the model predicts, in a line; empty without an image or classes."""
    sections: list[Section] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    """Views among `all` that this model or image cannot give, and why."""


def explain(inspection: Inspection, views: str = "all") -> Page:
    """Draw the chosen views of an inspection; of `all`, one that cannot be drawn is left out and said."""
    page = Page(inspection.name or "the model", answer(inspection))
    for name, view in choose(views, inspection).items():
        try:
            page.sections.append(Section(name, view, view.draw(inspection)))
        except ValueError as error:
            if name in views.split(","):
                raise
            page.skipped.append(f"{name}: {error}")
    return page


def answer(inspection: Inspection) -> str:
    """The prediction in a line: `dome 66.9 %, church 19.9 %, monastery 5.8 %`."""
    if inspection.image is None or inspection.model.card.head != "classifier":
        return ""
    probabilities = inspection.logits.softmax(dim=-1)
    best = probabilities.argsort(descending=True, stable=True)[:3].tolist()
    return ", ".join(f"{inspection.model.card.label(i)} {probabilities[i]:.1%}" for i in best)


def html(pages: Sequence[Page], inspection: Inspection, payloads: Sequence[Payload] = ()) -> str:
    """The whole report; the inspection tells of the model. With a payload a page, it is interactive."""
    card = inspection.model.card
    if payloads:
        named = [(short(page.title), payload) for page, payload in zip(pages, payloads, strict=True)]
        drawn = "".join(_page(page, number) for number, page in enumerate(pages) if page.sections)
        return interactive(
            named, short(card.name), describe_model(inspection), f'<div class="figures">{drawn}</div>' if drawn else ""
        )
    message = f"<h1>{escape(short(card.name))}</h1><p>{escape(describe_model(inspection))}</p>"
    body = [f"<header>{message}{_contents(pages)}</header>"]
    body += [_page(page, number) for number, page in enumerate(pages)]
    body.append(_about(inspection))
    return document(short(card.name), "".join(body))


def describe_model(inspection: Inspection) -> str:
    """The model in a line: family, size, parameters."""
    parameters = sum(p.numel() for p in inspection.model.parameters())
    config = inspection.model.config
    kind = (
        f"{config.size[0]}×{config.size[1]} px, {config.depth} blocks, {config.heads} heads"
        if isinstance(inspection.model, ViT)
        else f"{inspection.model.config.depth} layers"
    )
    return f"{inspection.model.card.family}, {kind}, {parameters / 1e6:.1f} million parameters"


def _contents(pages: Sequence[Page]) -> str:
    lines = []
    for number, page in enumerate(pages):
        links = [f'<a href="#{number}-{s.name}">{escape(s.view.title)}</a>' for s in page.sections]
        named = f"<strong>{escape(short(page.title))}</strong> " if len(pages) > 1 else ""
        lines.append(f"<nav>{named}{' '.join(links)}</nav>")
    return "".join(lines)


def _page(page: Page, number: int) -> str:
    said = f'<p class="answer">{escape(page.answer)}</p>' if page.answer else ""
    sections = "".join(_section(section, number) for section in page.sections)
    return f"<article><h2>{escape(short(page.title))}</h2>{said}{sections}</article>\n"


def _section(section: Section, number: int) -> str:
    view = section.view
    images = "".join(
        figure_image(figure, f"{view.title}{f' ({part})' if part else ''}: {view.read}")
        for part, figure in section.figures.items()
    )
    return (
        f'<section id="{number}-{section.name}"><h3>{escape(view.title)}</h3>{images}'
        f'<p>{escape(view.read)}</p><p class="beware">{escape(view.beware)}</p></section>\n'
    )


def _about(inspection: Inspection) -> str:
    rows = "".join(
        f"<tr><th>{escape(label)}</th><td>{escape(text)}</td></tr>"
        for title, lines in inspect(inspection.model).sections.items()
        for label, text in lines
        if label != "file"  # local paths are not written to files that may be shared
    )
    return f"<details><summary>About the model</summary><table>{rows}</table></details>"
