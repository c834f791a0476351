"""`write_page`: all that is told of a study as one HTML file that opens anywhere.

First what it says, and of a named study all its datasets in one table; then each dataset's part (`dataset.py`), and
at the end the command to repeat it.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

from vitreous.comparison.table import QUOTED, interval
from vitreous.pages.comparison_dataset import Table, part_of
from vitreous.pages.interactive import scripted_page
from vitreous.pages.page import short
from vitreous.pages.run import percent
from vitreous.runtime.files import write_atomic


def write_page(folder: Path, message: Mapping[str, Any], data_root: Path | None = None) -> Path:
    """Write `comparison.html`; the models and images of each table are looked at again for the maps."""
    tables = message["tables"]
    whole = [table for table in tables if "missing" not in table]
    title = message["title"] or _title(whole)
    body = f"<header><h1>{escape(title)}</h1>{_lead(whole)}</header>\n"
    if len(tables) > 1:
        body += _overview(tables)
    for table in tables:
        name = short(str(table["data"]))
        body += f'<h2 id="{escape(name)}">{escape(name)}</h2>' if len(tables) > 1 else ""
        body += part_of(table, data_root)
    body += _repeat(message["command"])
    text = scripted_page(title, body, "run.js", styles=["run.css", "comparison.css"])
    return write_atomic(folder / "comparison.html", partial(Path.write_text, data=text, encoding="utf-8"))


def _title(tables: Sequence[Table]) -> str:
    names = [row["name"] for row in tables[0]["rows"]]
    return f"{', '.join(names[:-1])} beside {names[-1]} on {short(tables[0]['data'])}"


def _lead(tables: Sequence[Table]) -> str:
    if not tables:
        return "<p>Nothing could be run: what is missing is told below.</p>"
    seeds, first = tables[0]["seeds"], tables[0]
    epochs = first["rows"][0]["epochs"]
    budget = f"{first['minutes']:g} minutes a run" if first["minutes"] else f"{epochs:,} epoch{'s' * (epochs != 1)}"
    if len(tables) > 1:
        budget = "equal epochs for all models of a dataset"
    many = f"{seeds} seeds" if seeds > 1 else "one seed"
    return f"<p>The same images, augmentation and order of images; {escape(budget)}; {many} a model.</p>"


def _overview(tables: Sequence[Table]) -> str:
    """A named study in one table: datasets down, accuracies across, the report's own figures beside them."""
    lines = []
    for table in tables:
        data = escape(short(str(table["data"])))
        if "missing" in table:
            quoted = ", ".join(f"{value:.2f} %" for value in table["quoted"].values())
            lines.append(f"<tr><th>{data}</th><td>not run</td><td></td><td>{quoted}</td></tr>")
            continue
        for number, row in enumerate(table["rows"]):
            quoted = "" if row["quoted"] is None else f"{row['quoted']:.2f} %"
            message = f"{percent(row['accuracy'])}<br><small>{escape(interval(row))}</small>"
            lines.append(
                f"<tr><th>{data if not number else ''}</th><td>{escape(row['name'])}<br>"
                f"<small>{escape(row['start'])}</small></td><td>{message}</td><td>{quoted}</td></tr>"
            )
    head = f"<tr><td></td><th>model</th><th>accuracy</th><th>{QUOTED}</th></tr>"
    rows = f'<table class="rows">{head}{"".join(lines)}</table>'
    return f'<section><h3>All datasets</h3><div class="wide">{rows}</div></section>'


def _repeat(command: str) -> str:
    return f"<h2>To repeat it</h2><section><pre><code>{escape(command)}</code></pre></section>\n" if command else ""
