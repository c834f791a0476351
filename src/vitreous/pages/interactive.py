"""Interactive pages in one file: the front end's modules and style sheets, inlined with their data.

A page opened from disk may load modules from `data:` addresses alone, so each file of `pages/assets/` becomes one, and
an import map gives it the name under which the others import it. The page asks nothing of any network: its policy
forbids it.
"""

import base64
import json
import re
from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup
from matplotlib.figure import Figure

from vitreous.figures.style import encode
from vitreous.pages.payload import Payload
from vitreous.pages.render import render

ASSETS = Path(__file__).parent / "assets"
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)
NO_SCRIPT = "<noscript>This page draws with JavaScript, which is off.</noscript>"
IMPORTED = re.compile(r'from "\./([a-z]+\.js)"')


def scripted_page(
    title: str, body: str, script: str, payloads: Sequence[tuple[str, Payload]] = (), styles: Sequence[str] = ()
) -> str:
    """A whole page that one of the modules draws: `page.css` and what `styles` adds, the body, and its data."""
    page = render(
        "interactive.html",
        title=title,
        policy=Markup(POLICY),  # noqa: S704  # a constant
        style=Markup("".join((ASSETS / name).read_text(encoding="utf-8") for name in ("page.css", *styles))),  # noqa: S704  # our own files
        import_map=Markup(import_map(script)),  # noqa: S704
        body=Markup(body),  # noqa: S704  # escaped where it was written
        payloads=[(name, payload.to_text()) for name, payload in payloads],
        script=script,
    )
    return str(page)  # plain text from here on: whoever puts it into another page escapes it


def import_map(script: str) -> str:
    """Names of a module, and of all that it imports, to their text, as JSON that a page can hold."""
    texts: dict[str, str] = {}
    wanted = [script]
    while wanted:
        name = wanted.pop()
        if name not in texts:
            texts[name] = (ASSETS / name).read_text(encoding="utf-8")
            wanted += IMPORTED.findall(texts[name])
    return json.dumps({"imports": {f"vitreous/{name}": address(text) for name, text in sorted(texts.items())}})


def address(module: str) -> str:
    """A module as a `data:` address; its imports of neighbours go through the import map."""
    text = IMPORTED.sub(r'from "vitreous/\1"', module)
    return f"data:text/javascript;base64,{base64.b64encode(text.encode()).decode()}"


def figure_image(figure: Figure, alt: str) -> Markup:
    """A figure as an `img` that holds its own bytes; `alt` says in words what it shows."""
    data = base64.b64encode(encode(figure)).decode()
    return Markup('<img src="data:image/png;base64,{}" alt="{}">').format(data, alt)
