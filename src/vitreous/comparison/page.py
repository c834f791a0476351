"""`write_page`: all that is told of a study as one HTML file that opens anywhere.

The table first, and what it says and does not say; then curves, classes, pictures where the models disagree with each
one's map, what was not the same for all, and the command to repeat it.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from PIL.Image import Image

from vitreous.comparison.charts import class_gaps, colour, curve_lines
from vitreous.comparison.look import draw_look, draw_picture, what
from vitreous.comparison.study import read_study
from vitreous.comparison.table import QUOTED, cells, evidence, interval, verdicts
from vitreous.data.pictures import read_picture
from vitreous.field_docs import field_docs
from vitreous.interactive import scripted_page
from vitreous.line_chart import line_chart
from vitreous.page import image, short
from vitreous.run_page import percent, spell
from vitreous.train.assemble import open_data
from vitreous.train.config import TrainConfig
from vitreous.weights.load import Model, load
from vitreous.weights.save import write_atomic

Table = Mapping[str, Any]
PAIRS = 3
"""Pairs whose classes and pictures are shown; of more models, the first one against each of the others."""


def write_page(folder: Path, told: Mapping[str, Any], data_root: Path | None = None) -> Path:
    """Write `comparison.html`; the models and pictures of each table are looked at again for the maps."""
    parts = [_Part(table, data_root) for table in told["tables"]]
    whole = [part.table for part in parts if "missing" not in part.table]
    title = _title(whole) if not told["title"] else told["title"]
    body = f"<header><h1>{escape(title)}</h1>{_lead(whole)}</header>\n"
    if len(parts) > 1:
        body += _overview([part.table for part in parts])
    for part in parts:
        name = short(str(part.table["data"]))
        body += f'<h2 id="{escape(name)}">{escape(name)}</h2>' if len(parts) > 1 else ""
        body += part.html()
    body += _repeat(told["command"])
    text = scripted_page(title, body, "run.js", styles=["run.css", "comparison.css"])
    return write_atomic(folder / "comparison.html", partial(Path.write_text, data=text, encoding="utf-8"))


def _title(tables: Sequence[Table]) -> str:
    names = [row["name"] for row in tables[0]["rows"]]
    return f"{', '.join(names[:-1])} beside {names[-1]} on {short(tables[0]['data'])}"


def _lead(tables: Sequence[Table]) -> str:
    if not tables:
        return "<p>Nothing could be run: what is missing is told below.</p>"
    seeds, first = tables[0]["seeds"], tables[0]
    budget = f"{first['minutes']:g} minutes a run" if first["minutes"] else f"{first['rows'][0]['epochs']:,} epochs"
    if len(tables) > 1:
        budget = "equal epochs for all models of a data set"
    many = f"{seeds} seeds" if seeds > 1 else "one seed"
    return f"<p>The same pictures, augmentation and order of pictures; {escape(budget)}; {many} a model.</p>"


def _overview(tables: Sequence[Table]) -> str:
    """A named study in one table: data sets down, accuracies across, the report's own figures beside them."""
    lines = []
    for table in tables:
        data = escape(short(str(table["data"])))
        if "missing" in table:
            quoted = ", ".join(f"{value:.2f} %" for value in table["quoted"].values())
            lines.append(f"<tr><th>{data}</th><td>not run</td><td></td><td>{quoted}</td></tr>")
            continue
        for number, row in enumerate(table["rows"]):
            quoted = "" if row["quoted"] is None else f"{row['quoted']:.2f} %"
            told = f"{percent(row['accuracy'])}<br><small>{escape(interval(row))}</small>"
            lines.append(
                f"<tr><th>{data if not number else ''}</th><td>{escape(row['name'])}<br>"
                f"<small>{escape(row['start'])}</small></td><td>{told}</td><td>{quoted}</td></tr>"
            )
    head = f"<tr><td></td><th>model</th><th>accuracy</th><th>{QUOTED}</th></tr>"
    rows = f'<table class="rows">{head}{"".join(lines)}</table>'
    return f'<section><h3>All data sets</h3><div class="wide">{rows}</div></section>'


class _Part:
    """One data set's part of the page."""

    def __init__(self, table: Table, data_root: Path | None) -> None:
        self.table, self.data_root = table, data_root

    def html(self) -> str:
        table = self.table
        if "missing" in table:
            return f'<section><p class="unlike">Nothing was run: {escape(table["missing"])}</p></section>'
        return "".join([self._table(), self._curves(), *self._pairs(), self._differing()])

    def _table(self) -> str:
        table = self.table
        names = tuple(row["name"] for row in table["rows"])
        lines = [line if line.startswith(names) else _capital(line) for line in verdicts(table)]
        said = "".join(f'<p class="verdict">{escape(line)}.</p>' for line in lines)
        head = _heads(table["rows"])
        best = _best(table)
        measures = []
        for name, told in cells(table["rows"]):
            large = ' class="large"' if name == "accuracy" else ""
            columns = "".join(
                f'<td class="{"best" if large and i == best else ""}">{escape(value)}</td>'
                for i, value in enumerate(told)
            )
            measures.append(f"<tr{large}><th>{escape(name)}</th>{columns}</tr>")
        notes = "".join(
            f'<p class="unlike">{escape(row["name"])}: {escape(note)}</p>'
            for row in table["rows"]
            for note in row["notes"]
        )
        speed, devices = table["speed"], sorted({d for row in table["rows"] for d in row["devices"]})
        return (
            f'<section>{said}{notes}<div class="wide"><table class="models"><tr><td></td>{head}</tr>{"".join(measures)}'
            f"</table></div><p>{escape(_says(table))}</p>"
            f'<p class="beware">{escape(_says_not(table))} Speeds: {speed["batch"]} pictures at once, '
            f"{escape(speed['precision'])}, {escape(speed['device'])}, torch {escape(speed['torch'])}. "
            f"Trained on: {escape(', '.join(devices) or 'not told')}.</p></section>\n"
        )

    def _curves(self) -> str:
        names = {row["model"]: row["name"] for row in self.table["rows"]}
        curves = {names[label]: curve for label, curve in self.table["curves"].items()}
        if any(len(curve["epochs"]) < 2 for curve in curves.values()):
            return ""
        band = ": a line is the mean over seeds, its band runs from the worst seed to the best"
        band = band if self.table["seeds"] > 1 else ", of one seed"
        overs: dict[Literal["epochs", "seconds"], str] = {"epochs": "epoch", "seconds": "seconds of training"}
        drawn = ""
        for over, label in overs.items():
            chart = line_chart(
                curve_lines(curves, over),
                title=f"Accuracy over {over}",
                x_label=label,
                y_label="right first guesses",
                unit=" %",
                x_from=0,
            )
            drawn += f"<section><h3>Over {over}</h3>{chart}</section>"
        return (
            f'<h2>Training</h2><div class="pair">{drawn}</div><p class="under">Accuracy on the test pictures{band}. '
            "Seconds are those of one machine, evaluation and checkpoints among them. "
            f"{self._runs()}</p>\n"
        )

    def _runs(self) -> str:
        """Links to the pages of all runs, where the inside of each model can be followed over training."""
        links = []
        for row in self.table["rows"]:
            seeds = " ".join(
                f'<a href="{escape(quote(page), quote=True)}">seed {number}</a>'
                for number, page in enumerate(row["pages"])
            )
            links.append(f"{escape(row['name'])} ({seeds})")
        return f"Every run has a page of its own, beside this one: {', '.join(links)}."

    def _pairs(self) -> list[str]:
        pairs = list(self.table["pairs"])
        if len(pairs) > PAIRS:
            first = self.table["rows"][0]["model"]
            pairs = [pair for pair in pairs if pair["one"] == first]
        if not pairs:
            return []
        folder = Path(self.table["folder"])
        study = read_study(folder)
        models = {run.entrant.label: load(run.folder / "model") for run in study.runs() if run.config.seed == 0}
        _, tested = open_data(study.configs[0], self.data_root)
        return [self._pair(pair, models, lambda i: read_picture(tested.picture(i))) for pair in pairs]

    def _pair(self, pair: Mapping[str, Any], models: Mapping[str, Model], picture: Callable[[int], Image]) -> str:
        names = {row["model"]: row["name"] for row in self.table["rows"]}
        one, other = names[pair["one"]], names[pair["other"]]
        classes, order = self.table["classes"], list(names)
        accuracy = classes["accuracy"]
        gaps = class_gaps(classes["names"], accuracy[pair["one"]], accuracy[pair["other"]])
        bars = _bars(gaps, colour(order.index(pair["one"])), colour(order.index(pair["other"])))
        shown = "" if len(gaps) == len(classes["names"]) else f" The {len(gaps)} classes that differ most."
        strips = "".join(self._strip(side, pair, models, names, picture) for side in ("one", "other"))
        return (
            f"<h2>{escape(one)} and {escape(other)}</h2><section><h3>Class by class</h3>{bars}"
            f"<p>The accuracy of {escape(one)} less that of {escape(other)} in points, over all seeds: to the right "
            f"where {escape(one)} knows a class better, to the left where {escape(other)} does.{shown}</p>"
            '<p class="beware">Short bars say little: a class has few pictures. '
            f"{escape(_capital(evidence(pair)))}.</p></section>{strips}\n"
        )

    def _strip(
        self,
        side: str,
        pair: Mapping[str, Any],
        models: Mapping[str, Model],
        names: Mapping[str, str],
        picture: Callable[[int], Image],
    ) -> str:
        better, worse = (pair["one"], pair["other"]) if side == "one" else (pair["other"], pair["one"])
        found, seeds = pair["disagreements"][side], self.table["seeds"]
        every = "with every seed" if seeds > 1 else "with its one seed"
        head = f"<h3>{escape(names[better])} is right and {escape(names[worse])} is wrong</h3>"
        pictures = "picture" if found["count"] == 1 else "pictures"
        told = f"<p>{found['count']:,} {pictures} of {self.table['pictures']:,}, {every}."
        if not found["count"]:
            return f"<section>{head}{told}</p></section>"
        order = [("one", better if side == "one" else worse), ("other", worse if side == "one" else better)]
        order.sort(key=lambda item: item[1] != better)
        tiles = []
        for each in found["pictures"]:
            shown = picture(each["picture"])
            panels = [
                f"<figure>{image(draw_picture(models[better], shown), 'the picture')}"
                f"<figcaption>{escape(self._class(each['label']))}</figcaption></figure>"
            ]
            for key, label in order:
                said, sure = each[key]
                drawn = draw_look(models[label], shown, said)
                alt = f"{what(models[label])} of {names[label]} for {self._class(said)}"
                mark = "right" if said == each["label"] else "wrong"
                panels.append(
                    f'<figure>{image(drawn, alt)}<figcaption class="{mark}">{escape(self._class(said))} '
                    f"<small>{100 * sure:.0f}&nbsp;%</small></figcaption></figure>"
                )
            tiles.append(f'<div class="three">{"".join(panels)}</div>')
        kinds = {label: what(models[label]) for label in (better, worse)}
        alike = "Each map runs over all colours by itself."
        if kinds[better] != kinds[worse]:
            alike = "The two kinds of map are made differently, and each runs over all colours by itself."
        shown_first = "" if found["count"] == len(found["pictures"]) else " Shown are those they were surest of."
        return (
            f'<section>{head}{told}{shown_first}</p><div class="strips">{"".join(tiles)}</div>'
            f"<p>Each time: the picture and its class; what {escape(names[better])} says, with its map "
            f"({kinds[better]}); what {escape(names[worse])} says, with its own ({kinds[worse]}). Maps are of the "
            "first seed, for the class that it names.</p>"
            '<p class="beware">A map shows what speaks for an answer, not why one model is right. '
            f"{alike}</p></section>"
        )

    def _class(self, index: int) -> str:
        names = self.table["classes"]["names"]
        return names[index] if index < len(names) else f"class {index}"

    def _differing(self) -> str:
        docs, head = field_docs(TrainConfig), _heads(self.table["rows"])
        lines = "".join(
            f"<tr><th>{name}<br><small>{escape(docs.get(name, '').replace('`', ''))}</small></th>"
            f"{''.join(f'<td>{escape(spell(value))}</td>' for value in values)}</tr>"
            for name, values in self.table["differing"]
        )
        table = f'<div class="wide"><table class="models differing"><tr><td></td>{head}</tr>{lines}</table></div>'
        batch = self.table["common"]["batch_size"]
        kinds = {row["kind"] for row in self.table["rows"]}
        resnet = " A ResNet has neither dropout nor stochastic depth, and gets the optimiser that suits its kind."
        return (
            f"<h2>What was not the same for all</h2><section>{table if lines else ''}"
            f"<p>{'Everything else' if lines else 'Nothing: everything'} was equal: recipe "
            f"{escape(self.table['recipe'])}, with the same augmentation, batches of {batch} and the same order of "
            f"pictures for the same seed.{resnet if 'ResNet' in kinds else ''}</p></section>\n"
        )


def _heads(rows: Sequence[Mapping[str, Any]]) -> str:
    """The models' names above their columns; a narrow page may break them after an underscore."""
    return "".join(f"<th>{escape(row['name']).replace('_', '_<wbr>')}</th>" for row in rows)


def _best(table: Table) -> int | None:
    """The row that every verdict it takes part in names; None where no such thing was shown."""
    for number, row in enumerate(table["rows"]):
        mine = [pair for pair in table["pairs"] if row["model"] in (pair["one"], pair["other"])]
        if mine and all(pair["verdict"] == row["model"] for pair in mine):
            return number
    return None


def _bars(gaps: Sequence[tuple[str, float]], right: str, left: str) -> str:
    """Bars to both sides of a middle line, in the page's own type: sharp on a phone, and dark where the page is."""
    most = max((abs(gap) for _, gap in gaps), default=0.0) or 1.0
    rows = []
    for name, gap in gaps:
        wide = 50 * abs(gap) / most
        place = f"left: {50 - (wide if gap < 0 else 0):.2f}%; width: {wide:.2f}%"
        bar = f'<i><b style="{place}; background: {right if gap > 0 else left}"></b></i>'
        rows.append(f"<span>{escape(name)}</span>{bar}<span>{_signed(gap)}</span>")
    return f'<div class="bars">{"".join(rows)}</div>'


def _says(table: Table) -> str:
    """How the table is to be read."""
    seeds, pictures = table["seeds"], f"{table['pictures']:,}"
    if seeds == 1:
        return (
            f"Accuracy is that of one run on {pictures} test pictures, with Wilson's interval over pictures. The "
            "paired test over pictures is McNemar's exact test. How far another seed would lie is not known, so no "
            "verdict is drawn."
        )
    return (
        f"Accuracy is the mean of {seeds} seeds on {pictures} test pictures, with Student's 95 % interval over seeds. "
        "The test that decides is the exact paired test over pictures (every picture's right answers over seeds, all "
        "choices of sign, corrected for the number of pairs); a verdict is drawn only where it and the interval of the "
        "difference over seeds agree."
    )


def _says_not(table: Table) -> str:
    """What must not be read out of it."""
    unlike = "" if table["alike"] else "The models did not begin alike, so their accuracies do not rank them. "
    return (
        f"{unlike}The budget is equal, not each model's best: step sizes are usual ones for the kind and were not "
        "tuned here, and with more or less training the order may be another. Time and energy are those of the "
        "machines that ran it; energy is that of the whole GPU."
    )


def _repeat(command: str) -> str:
    return f"<h2>To repeat it</h2><section><pre><code>{escape(command)}</code></pre></section>\n" if command else ""


def _signed(points: float) -> str:
    return f"{points:+.1f}".replace("-", "−")


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
