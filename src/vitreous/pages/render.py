"""Render parts of a page to HTML: jinja2 templates, whole pages in one file, scripts, images, figures, line charts.

A page opened from disk may load modules from `data:` addresses alone, so each file of `pages/assets/` becomes one, and
an import map gives it the name under which the others import it. The page asks nothing of any network: its policy
forbids it.
"""

import base64
import io
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from numpy.typing import NDArray
from PIL.Image import fromarray

from vitreous.pages.payload import Payload

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ASSETS = Path(__file__).parent / "assets"
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)
COMMENT = re.compile(r"^ *//.*\n", re.MULTILINE)
"""Lines of a script that are only for its readers: a report does not carry them."""
KEPT = " !$&'()*+,/:;=?@[]^`{|}~\">\\"
"""What a `data:` address and a script element can hold as it is: all but `%`, `#`, `<` and line ends."""
IMPORTED = re.compile(r'from "\./([a-z]+\.js)"')


@cache
def _environment() -> Environment:
    """Set up jinja2, which renders the pages' templates."""
    return Environment(
        loader=PackageLoader("vitreous.pages"),
        autoescape=True,
        undefined=StrictUndefined,  # a name that the template misspells is an error, not an empty string
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render(template: str, **values: Any) -> Markup:
    """Fill in a template of a page; the result may stand inside another one as it is."""
    return Markup(_environment().get_template(template).render(**values))  # noqa: S704  # the template escaped them


def scripted_page(
    title: str,
    body: str,
    script: str,
    payloads: Sequence[tuple[str, Payload]] = (),
    styles: Sequence[str] = (),
    *,
    policy: str = POLICY,
    instead: Mapping[str, str] | None = None,
    worker: str = "",
    network: str = "",
) -> str:
    """Render a whole page that one of the modules draws: `page.css` and what `styles` adds, the body, and its data.

    A live page has scripts `instead` of others, the text of its `worker`, and its `network`, which is read last.
    """
    page = render(
        "interactive.html",
        title=title,
        policy=Markup(policy),  # noqa: S704  # a constant
        style=Markup("".join((ASSETS / name).read_text(encoding="utf-8") for name in ("page.css", *styles))),  # noqa: S704  # our own files
        import_map=Markup(import_map(script, instead)),  # noqa: S704
        body=Markup(body),  # noqa: S704  # escaped where it was written
        payloads=[(name, Markup(payload.to_text())) for name, payload in payloads],  # noqa: S704  # without a `<`
        script=script,
        worker=Markup(worker),  # noqa: S704  # our own files
        network=Markup(network),  # noqa: S704  # without a `<`
    )
    return str(page)  # plain text from here on: whoever puts it into another page escapes it


def import_map(script: str, instead: Mapping[str, str] | None = None) -> str:
    """Map the names of a script, and of all that it imports, to their text, as JSON that a page can hold.

    `instead` names files whose text stands under another one's name.
    """
    texts: dict[str, str] = {}
    wanted = [script]
    while wanted:
        name = wanted.pop()
        if name not in texts:
            texts[name] = COMMENT.sub("", (ASSETS / (instead or {}).get(name, name)).read_text(encoding="utf-8"))
            wanted += IMPORTED.findall(texts[name])
    imports = {}
    for name, text in sorted(texts.items()):
        module = IMPORTED.sub(r'from "vitreous/\1"', text)  # neighbours are imported through the map
        imports[f"vitreous/{name}"] = f"data:text/javascript,{quote(module, safe=KEPT)}"
    return json.dumps({"imports": imports})


def figure_image(figure: "Figure", alt: str) -> Markup:
    """Render a figure as an `img` that holds its own bytes; `alt` says in words what it shows."""
    from vitreous.figures.style import encode  # imported late: a page without figures needs no matplotlib

    data = base64.b64encode(encode(figure)).decode()
    return Markup('<img src="data:image/png;base64,{}" alt="{}">').format(data, alt)


@dataclass(frozen=True)
class Line:
    """One line of a page's chart: as many x as y, and perhaps a band around it."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    """The lower edge of a band, such as the worst of several seeds."""
    high: Sequence[float] | None = None

    def __post_init__(self) -> None:
        for name in ("y", "low", "high"):
            values = getattr(self, name)
            if values is not None and len(values) != len(self.x):
                raise ValueError(f"{name} of {self.label!r} must hold {len(self.x)} numbers, got {len(values)}")
        if (self.low is None) != (self.high is None):
            raise ValueError(f"a band needs low and high, {self.label!r} has one of them")


def line_chart(
    lines: Sequence[Line], *, title: str, x_label: str, y_label: str, unit: str = "", x_from: float | None = None
) -> Markup:
    """Render a line chart as HTML, an element of a page; its x axis begins at `x_from`, or at the first number.

    >>> str(line_chart([Line("ViT", [1, 2], [0.5, float("nan")])], title="Loss", x_label="epoch", y_label="loss"))[-65:]
    '[{"label": "ViT", "x": [1, 2], "y": [0.5, null]}]}</script></div>'
    """
    chart = {"title": title, "xLabel": x_label, "yLabel": y_label, "unit": unit, "xFrom": x_from}
    series = [
        {"label": line.label}
        | {name: _numbers(values) for name in ("x", "y", "low", "high") if (values := getattr(line, name)) is not None}
        for line in lines
    ]
    text = json.dumps(chart | {"series": series}, ensure_ascii=False, allow_nan=False)
    text = text.replace("<", "\\u003c")  # a label cannot end the script
    return Markup(f'<div class="curves"><script type="application/json">{text}</script></div>')  # noqa: S704


def _numbers(values: Sequence[float]) -> list[float | None]:
    """Render infinite and undefined numbers of a page's line chart as None: a gap in the line."""
    return [value if math.isfinite(value) else None for value in values]


def data_uri(pixels: NDArray[np.uint8]) -> str:
    """Render an image `[h w c]` for a page as an address (`data:`) that holds its own bytes."""
    file = io.BytesIO()
    fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
