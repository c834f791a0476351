"""Figures and sentences in one HTML file that opens anywhere: no script, no request, nothing beside it."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from vitreous.doctor import examine
from vitreous.drawing import Figures
from vitreous.figures.style import encode
from vitreous.models.vit import ViT
from vitreous.scene import Scene
from vitreous.views import View, choose


@dataclass
class Section:
    """A view of one picture, drawn."""

    name: str
    view: View
    figures: Figures


@dataclass
class Page:
    """All that is said about one picture, or about a model without a picture."""

    title: str
    answer: str
    """What the model predicts, in a line; empty without a picture or classes."""
    sections: list[Section] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    """Views among `all` that this model or picture cannot give, and why."""


def explain(scene: Scene, views: str = "all") -> Page:
    """Draw the chosen views of a scene; of `all`, one that cannot be drawn is left out and said."""
    page = Page(scene.name or "the model", answer(scene))
    for name, view in choose(views, scene).items():
        try:
            page.sections.append(Section(name, view, view.draw(scene)))
        except ValueError as error:
            if name in views.split(","):
                raise
            page.skipped.append(f"{name}: {error}")
    return page


def answer(scene: Scene) -> str:
    """The prediction in a line: `dome 66.9 %, church 19.9 %, monastery 5.8 %`."""
    if scene.picture is None or scene.model.card.head != "classifier":
        return ""
    probabilities = scene.logits.softmax(dim=-1)
    best = probabilities.argsort(descending=True, stable=True)[:3].tolist()
    return ", ".join(f"{scene.model.card.label(i)} {probabilities[i]:.1%}" for i in best)


def html(pages: Sequence[Page], scene: Scene) -> str:
    """The whole report; the scene tells of the model."""
    card = scene.model.card
    body = [f"<header><h1>{escape(_short(card.name))}</h1><p>{escape(_summary(scene))}</p>{_contents(pages)}</header>"]
    body += [_page(page, number) for number, page in enumerate(pages)]
    body.append(_about(scene))
    style = "".join(line.strip() for line in STYLE.splitlines())
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(_short(card.name))} · vitreous</title><style>{style}</style></head>\n"
        f"<body><main>{''.join(body)}</main></body></html>\n"
    )


def _summary(scene: Scene) -> str:
    parameters = sum(p.numel() for p in scene.model.parameters())
    config = scene.model.config
    kind = (
        f"{config.size[0]}×{config.size[1]} px, {config.depth} blocks, {config.heads} heads"
        if isinstance(scene.model, ViT)
        else f"{scene.model.config.depth} layers"
    )
    return f"{scene.model.card.family}, {kind}, {parameters / 1e6:.1f} million parameters"


def _contents(pages: Sequence[Page]) -> str:
    lines = []
    for number, page in enumerate(pages):
        links = [f'<a href="#{number}-{s.name}">{escape(s.view.title)}</a>' for s in page.sections]
        named = f"<strong>{escape(_short(page.title))}</strong> " if len(pages) > 1 else ""
        lines.append(f"<nav>{named}{' '.join(links)}</nav>")
    return "".join(lines)


def _page(page: Page, number: int) -> str:
    said = f'<p class="answer">{escape(page.answer)}</p>' if page.answer else ""
    sections = "".join(_section(section, number) for section in page.sections)
    return f"<article><h2>{escape(_short(page.title))}</h2>{said}{sections}</article>\n"


def _section(section: Section, number: int) -> str:
    view = section.view
    images = "".join(
        f'<img src="data:image/png;base64,{base64.b64encode(encode(figure)).decode()}" '
        f'alt="{escape(view.title)}{escape(f" ({part})" if part else "")}: {escape(view.read, quote=True)}">'
        for part, figure in section.figures.items()
    )
    return (
        f'<section id="{number}-{section.name}"><h3>{escape(view.title)}</h3>{images}'
        f'<p>{escape(view.read)}</p><p class="beware">{escape(view.beware)}</p></section>\n'
    )


def _about(scene: Scene) -> str:
    rows = "".join(
        f"<tr><th>{escape(label)}</th><td>{escape(text)}</td></tr>"
        for title, lines in examine(scene.model).items()
        for label, text in lines
        if label != "file"  # a path of this machine is nobody's business
    )
    return f"<details><summary>About the model</summary><table>{rows}</table></details>"


def _short(name: str) -> str:
    """The last part of a path or a name."""
    return name.rstrip("/").replace("\\\\", "/").split("/")[-1] or name


STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #5b6470; --page: #f6f5f2; --card: #ffffff; --line: #dcd9d2; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e9e7e2; --soft: #a2a8b0; --page: #15171a; --card: #1e2125; --line: #33373d; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 16px/1.55 system-ui, -apple-system, "Segoe UI",
  Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.35rem; margin: 3rem 0 .25rem; overflow-wrap: anywhere; }
h3 { font-size: 1.05rem; margin: 0 0 .75rem; }
header p, .beware { color: var(--soft); }
.answer { font-size: 1.1rem; margin: 0 0 1.5rem; }
nav { margin-top: .75rem; display: flex; flex-wrap: wrap; gap: .35rem .9rem; font-size: .9rem; }
nav a { color: inherit; text-decoration-color: var(--line); text-underline-offset: .25em; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 1.25rem; margin: 1.25rem 0; }
section p { margin: .75rem 0 0; max-width: 46rem; }
section p.beware { font-size: .92rem; margin-top: .35rem; }
img { display: block; max-width: 100%; height: auto; margin: 0 auto .75rem; border-radius: 6px; }
details { margin-top: 3rem; } summary { cursor: pointer; }
table { border-collapse: collapse; margin-top: 1rem; font-size: .9rem; }
th { text-align: left; font-weight: 500; color: var(--soft); padding: .2rem 1.25rem .2rem 0; vertical-align: top; }
td { overflow-wrap: anywhere; }
@media print { section { break-inside: avoid; } }
"""
