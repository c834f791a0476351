"""One dataset's part of a study's page: the table and what it says, curves, pairs of models, what was not alike."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from vitreous.comparison.study import first_models, read_study
from vitreous.comparison.table import capital, cells, verdicts
from vitreous.data.images import read_image
from vitreous.pages.comparison_charts import curve_lines
from vitreous.pages.comparison_pairs import beside
from vitreous.pages.line_chart import line_chart
from vitreous.pages.run import spell
from vitreous.runtime.field_docs import field_docs
from vitreous.training.assemble import open_data
from vitreous.training.config import TrainConfig

Table = Mapping[str, Any]
"""What `results.gather` gives of one dataset, or why nothing was run."""
PAIRS = 3
"""Pairs whose classes and images are shown; of more models, the first one against each of the others."""


def part_of(table: Table, data_root: Path | None) -> str:
    """The whole part as HTML."""
    if "missing" in table:
        return f'<section><p class="unlike">Nothing was run: {escape(table["missing"])}</p></section>'
    return "".join([_table(table), _curves(table), *_pairs(table, data_root), _differing(table)])


def _table(table: Table) -> str:
    names = tuple(row["name"] for row in table["rows"])
    lines = [line if line.startswith(names) else capital(line) for line in verdicts(table)]
    said = "".join(f'<p class="verdict">{escape(line)}.</p>' for line in lines)
    head = _heads(table["rows"])
    best = _best(table)
    measures = []
    for name, message in cells(table["rows"]):
        large = ' class="large"' if name == "accuracy" else ""
        columns = "".join(
            f'<td class="{"best" if large and i == best else ""}">{escape(value)}</td>'
            for i, value in enumerate(message)
        )
        measures.append(f"<tr{large}><th>{escape(name)}</th>{columns}</tr>")
    notes = "".join(
        f'<p class="unlike">{escape(row["name"])}: {escape(note)}</p>' for row in table["rows"] for note in row["notes"]
    )
    speed, devices = table["speed"], sorted({d for row in table["rows"] for d in row["devices"]})
    return (
        f'<section>{said}{notes}<div class="wide"><table class="models"><tr><td></td>{head}</tr>{"".join(measures)}'
        f"</table></div><p>{escape(_says(table))}</p>"
        f'<p class="beware">{escape(_says_not(table))} Speeds: {speed["batch"]} images at once, '
        f"{escape(speed['precision'])}, {escape(speed['device'])}, torch {escape(speed['torch'])}. "
        f"Trained on: {escape(', '.join(devices) or 'not told')}.</p></section>\n"
    )


def _curves(table: Table) -> str:
    names = {row["model"]: row["name"] for row in table["rows"]}
    curves = {names[label]: curve for label, curve in table["curves"].items()}
    if any(len(curve["epochs"]) < 2 for curve in curves.values()):
        return ""
    band = ": a line is the mean over seeds, its band runs from the worst seed to the best"
    band = band if table["seeds"] > 1 else ", of one seed"
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
        f'<h2>Training</h2><div class="pair">{drawn}</div><p class="under">Accuracy on the test images{band}. '
        "Seconds are those of one machine, evaluation and checkpoints among them. "
        f"{_runs(table)}</p>\n"
    )


def _runs(table: Table) -> str:
    """Links to the pages of all runs, where the inside of each model can be followed over training."""
    links = []
    for row in table["rows"]:
        seeds = " ".join(
            f'<a href="{escape(quote(page), quote=True)}">seed {number}</a>' for number, page in enumerate(row["pages"])
        )
        links.append(f"{escape(row['name'])} ({seeds})")
    return f"Every run has a page of its own, beside this one: {', '.join(links)}."


def _pairs(table: Table, data_root: Path | None) -> list[str]:
    """The pairs that are shown, each with its first seed's models and the test images at hand."""
    pairs = list(table["pairs"])
    if len(pairs) > PAIRS:
        first = table["rows"][0]["model"]
        pairs = [pair for pair in pairs if pair["one"] == first]
    if not pairs:
        return []
    study = read_study(Path(table["folder"]))
    models = first_models(study)
    _, tested = open_data(study.configs[0], data_root)
    return [beside(table, pair, models, lambda i: read_image(tested.image(i))) for pair in pairs]


def _differing(table: Table) -> str:
    docs, head = field_docs(TrainConfig), _heads(table["rows"])
    lines = "".join(
        f"<tr><th>{name}<br><small>{escape(docs.get(name, '').replace('`', ''))}</small></th>"
        f"{''.join(f'<td>{escape(spell(value))}</td>' for value in values)}</tr>"
        for name, values in table["differing"]
    )
    drawn = f'<div class="wide"><table class="models differing"><tr><td></td>{head}</tr>{lines}</table></div>'
    batch = table["common"]["batch_size"]
    kinds = {row["kind"] for row in table["rows"]}
    resnet = " A ResNet has neither dropout nor stochastic depth, and gets the optimiser that suits its kind."
    return (
        f"<h2>What was not the same for all</h2><section>{drawn if lines else ''}"
        f"<p>{'Everything else' if lines else 'Nothing: everything'} was equal: recipe "
        f"{escape(table['recipe'])}, with the same augmentation, batches of {batch} and the same order of "
        f"images for the same seed.{resnet if 'ResNet' in kinds else ''}</p></section>\n"
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


def _says(table: Table) -> str:
    """How the table is to be read."""
    seeds, images = table["seeds"], f"{table['images']:,}"
    if seeds == 1:
        return (
            f"Accuracy is that of one run on {images} test images, with Wilson's interval over images. The "
            "paired test over images is McNemar's exact test. How far another seed would lie is not known, so no "
            "verdict is drawn."
        )
    return (
        f"Accuracy is the mean of {seeds} seeds on {images} test images, with Student's 95 % interval over seeds. "
        "The test that decides is the exact paired test over images (every image's right answers over seeds, all "
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
