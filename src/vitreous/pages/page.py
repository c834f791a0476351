"""One HTML file that opens anywhere, light or dark: no script, no request, nothing beside it. Every page is one."""

import base64
from html import escape

from matplotlib.figure import Figure

from vitreous.figures.style import encode


def document(title: str, body: str, style: str = "") -> str:
    """A whole page of `body`, in the style of all pages and what `style` adds to it.

    >>> document("a & b", "<h1>a</h1>").splitlines()[1][:60]
    '<html lang="en"><head><meta charset="utf-8"><meta name="view'
    """
    sheet = "".join(f"{line.strip()} " for line in (STYLE + style).splitlines() if line.strip())
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)} · vitreous</title><style>{sheet}</style></head>\n"
        f"<body><main>{body}</main></body></html>\n"
    )


def figure_image(figure: Figure, alt: str) -> str:
    """A figure as an `img` that holds its own bytes; `alt` says in words what it shows."""
    data = base64.b64encode(encode(figure)).decode()
    return f'<img src="data:image/png;base64,{data}" alt="{escape(alt, quote=True)}">'


def short(name: str) -> str:
    """The last part of a path or a name.

    >>> short("runs/digits/"), short("google/vit-base-patch16-224")
    ('digits', 'vit-base-patch16-224')
    """
    return name.rstrip("/").replace("\\", "/").split("/")[-1] or name


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
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 1.25rem;
  margin: 1.25rem 0; }
section p { margin: .75rem 0 0; max-width: 46rem; }
section p.beware { font-size: .92rem; margin-top: .35rem; }
img { display: block; max-width: 100%; height: auto; margin: 0 auto .75rem; border-radius: 6px; }
details { margin-top: 3rem; } summary { cursor: pointer; }
table { border-collapse: collapse; margin-top: 1rem; font-size: .9rem; }
th { text-align: left; font-weight: 500; color: var(--soft); padding: .2rem 1.25rem .2rem 0; vertical-align: top; }
td { overflow-wrap: anywhere; }
@media print { section { break-inside: avoid; } }
"""
