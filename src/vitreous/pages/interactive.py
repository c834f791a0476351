"""Interactive pages in one file: the explorer's own modules and style sheet, inlined with their data.

A module that a page opened from disk may load has to be a `data:` address, so each file of `pages/assets/` becomes
one, and an import map gives it the name under which the others import it. The page asks nothing of any network: its
policy forbids it.
"""

import base64
import json
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

from vitreous.pages.payload import Payload

ASSETS = Path(__file__).parent / "assets"
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)
LEAD = (
    "Move over the image, or use the arrow keys: the bright patches are those that the patch under the pointer looks "
    "at. A click holds it. Away from the image, the token that answers is asked."
)
NO_SCRIPT = "<noscript>This page draws with JavaScript, which is off.</noscript>"
IMPORTED = re.compile(r'from "\./([a-z]+\.js)"')


def interactive(payloads: Sequence[tuple[str, Payload]], title: str, summary: str, rest: str = "") -> str:
    """A page for images by name and what is known of each; `rest` is HTML that follows below."""
    body = (
        f'<header class="top"><h1>{escape(title)}</h1><p>{escape(summary)}</p></header>'
        f'<p class="lead">{escape(LEAD)}</p><div class="chips" id="images" role="group" aria-label="Images"></div>'
        f'<div id="viewer" class="viewers">{NO_SCRIPT}</div>{rest}'
    )
    return scripted_page(title, body, "report.js", payloads)


def scripted_page(
    title: str, body: str, script: str, payloads: Sequence[tuple[str, Payload]] = (), styles: Sequence[str] = ()
) -> str:
    """A whole page that one of the modules brings to life: with `page.css` and what `styles` adds, and its data."""
    style = "".join((ASSETS / name).read_text(encoding="utf-8") for name in ("page.css", *styles))
    data = "".join(
        f'<script type="application/vitreous" data-name="{escape(name, quote=True)}">{payload.to_text()}</script>\n'
        for name, payload in payloads
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<title>{escape(title)} · vitreous</title><style>{style}</style>"
        f'<script type="importmap">{import_map(script)}</script></head>\n'
        f"<body><main>{body}</main>\n{data}"
        f'<script type="module">import "vitreous/{script}";</script></body></html>\n'
    )


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
