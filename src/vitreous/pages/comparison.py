"""`write_comparison_page`: the results of a study as one HTML file that opens anywhere.

First the verdicts, and for a study of several datasets one table of them all; then a part for each dataset: the table,
curves, pairs of models with images on which they disagree, and what was not the same for all.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure
from PIL.Image import Image

from vitreous.pages.comparison_maps import draw_image, draw_map, map_name
from vitreous.pages.interactive import figure_image, scripted_page
from vitreous.pages.line_chart import Line, line_chart
from vitreous.pages.render import render
from vitreous.pages.run import config_docs, spell
from vitreous.runtime.files import short_name, write_atomic
from vitreous.weights.load import Model

COMPARISON_PAGE = "comparison.html"
PAIRS = 3
"""Pairs whose classes and images are shown; of more models, the first one against each of the others."""
CLASSES = 24
"""Classes that are shown of more: half of them where one model is furthest ahead, half where the other is."""
COLOURS = 8
"""Colours of lines in `page.css`; a model has the same one on the whole page."""
OPPOSITE = {"one": "other", "other": "one"}
"""The two sides of a pair."""
AXES: dict[Literal["epochs", "seconds"], str] = {"epochs": "epoch", "seconds": "seconds of training"}


def write_comparison_page(
    folder: Path, datasets: Sequence["ComparedDataset"], *, title: str = "", command: str = ""
) -> Path:
    """Write `comparison.html`; `command` repeats the study."""
    run = [dataset for dataset in datasets if not dataset.missing]
    title = title or _title(run[0])
    body = render(
        "comparison.html",
        title=title,
        lead=_lead([dataset.table for dataset in run]),
        datasets=datasets,
        command=command,
        docs=config_docs(),
        spell=spell,
    )
    text = scripted_page(title, body, "run.js", styles=["run.css", "comparison.css"])
    return write_atomic(folder / COMPARISON_PAGE, partial(Path.write_text, data=text, encoding="utf-8"))


def _title(dataset: "ComparedDataset") -> str:
    names = [row["name"] for row in dataset.table["rows"]]
    return f"{', '.join(names[:-1])} beside {names[-1]} on {dataset.name}"


def _lead(tables: Sequence[Mapping[str, Any]]) -> str:
    if not tables:
        return "Nothing could be run: the reasons are below."
    seeds, first = tables[0]["seeds"], tables[0]
    epochs = first["rows"][0]["epochs"]
    budget = f"{first['minutes']:g} minutes a run" if first["minutes"] else f"{epochs:,} epoch{'s' * (epochs != 1)}"
    if len(tables) > 1:
        budget = "equal epochs for all models of a dataset"
    many = f"{seeds} seeds" if seeds > 1 else "one seed"
    return f"The same images, augmentation and order of images; {budget}; {many} a model."


@dataclass(frozen=True)
class ComparedDataset:
    """One dataset of a study: the results, the same in words, and what its images are drawn with."""

    table: Mapping[str, Any]
    """The results; or with `missing`, why nothing was run."""
    cells: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Name of a measure → a cell for each model."""
    verdicts: Sequence[str] = ()
    evidence: Sequence[str] = ()
    """The numbers behind the verdict on each pair."""
    models: Callable[[], Mapping[str, Model]] = dict
    """Loads the models of the first seed, by label."""
    image: Callable[[int], Image] | None = None
    """Opens a test image by its index."""

    @property
    def name(self) -> str:
        return short_name(str(self.table["data"]))

    @property
    def missing(self) -> str:
        return str(self.table.get("missing", ""))

    def sentences(self) -> list[str]:
        """The verdicts with a capital, unless they begin with a model's name."""
        names = tuple(row["name"] for row in self.table["rows"])
        return [line if line.startswith(names) else _capital(line) for line in self.verdicts]

    def devices(self) -> list[str]:
        return sorted({device for row in self.table["rows"] for device in row["devices"]})

    def best(self) -> int | None:
        """The index of the model that wins every verdict on it; None if there is none."""
        for number, row in enumerate(self.table["rows"]):
            own = [pair for pair in self.table["pairs"] if row["model"] in (pair["one"], pair["other"])]
            if own and all(pair["verdict"] == row["model"] for pair in own):
                return number
        return None

    def charts(self) -> dict[str, Markup]:
        """Accuracy over epochs and over seconds; nothing if a run was evaluated only once."""
        names = {row["model"]: row["name"] for row in self.table["rows"]}
        curves = {names[label]: curve for label, curve in self.table["curves"].items()}
        if any(len(curve["epochs"]) < 2 for curve in curves.values()):
            return {}
        return {
            over: line_chart(
                curve_lines(curves, over),
                title=f"Accuracy over {over}",
                x_label=label,
                y_label="top-1 accuracy",
                unit=" %",
                x_from=0,
            )
            for over, label in AXES.items()
        }

    def drawn_pairs(self) -> Iterator[dict[str, Any]]:
        """The pairs that are shown, one by one, drawn with the models of the first seed."""
        pairs = list(zip(self.table["pairs"], self.evidence, strict=True))
        if len(pairs) > PAIRS:
            first = self.table["rows"][0]["model"]
            pairs = [(pair, evidence) for pair, evidence in pairs if pair["one"] == first]
        models = self.models()
        for pair, evidence in pairs:
            yield self._draw_pair(pair, models) | {"evidence": _capital(evidence)}

    def _draw_pair(self, pair: Mapping[str, Any], models: Mapping[str, Model]) -> dict[str, Any]:
        rows, classes = {row["model"]: row for row in self.table["rows"]}, self.table["classes"]
        gaps = class_gaps(classes["names"], *(classes["accuracy"][pair[side]] for side in OPPOSITE))
        colours = [list(rows).index(pair[side]) % COLOURS for side in OPPOSITE]
        names = {side: rows[pair[side]]["name"] for side in OPPOSITE}
        return {
            **names,
            "bars": _bars(gaps, *colours),
            "strips": [self._strip(side, pair, models) for side in OPPOSITE],
        }

    def _strip(self, side: str, pair: Mapping[str, Any], models: Mapping[str, Model]) -> dict[str, Any]:
        """Images that one side gets right and the other wrong, each with both answers and both maps."""
        names, found = {row["model"]: row["name"] for row in self.table["rows"]}, pair["disagreements"][side]
        better, worse = pair[side], pair[OPPOSITE[side]]
        return {
            "better": names[better],
            "worse": names[worse],
            "count": found["count"],
            "maps": [map_name(models[label]) for label in (better, worse)],
            "tiles": [self._tile(side, pair, models, names, each) for each in found["images"]],
        }

    def _tile(
        self,
        side: str,
        pair: Mapping[str, Any],
        models: Mapping[str, Model],
        names: Mapping[str, str],
        found: Mapping[str, Any],
    ) -> dict[str, Any]:
        """One image, then the answer of the model that is right, then the other's."""
        assert self.image is not None
        image, answers = self.image(found["image"]), []
        for key in (side, OPPOSITE[side]):
            model, (answer, probability) = models[pair[key]], found[key]
            alt = f"{map_name(model)} of {names[pair[key]]} for {self._class(answer)}"
            answers.append(
                {
                    "map": _embed(draw_map(model, image, answer), alt),
                    "label": self._class(answer),
                    "probability": probability,
                    "correct": answer == found["label"],
                }
            )
        shown = _embed(draw_image(models[pair[side]], image), "the image")
        return {"image": shown, "label": self._class(found["label"]), "answers": answers}

    def _class(self, index: int) -> str:
        names = self.table["classes"]["names"]
        return str(names[index]) if index < len(names) else f"class {index}"


def curve_lines(curves: Mapping[str, Mapping[str, Any]], over: Literal["epochs", "seconds"]) -> list[Line]:
    """Accuracy on held-out images by model: the mean over seeds as a line, from worst to best seed as a band.

    >>> curve_lines({"vit": {"epochs": [1], "top1": [[0.5], [0.7]]}}, "epochs")
    [Line(label='vit', x=[1], y=[60.0], low=[50.0], high=[70.0])]
    """
    lines = []
    for name, curve in curves.items():
        top1 = 100 * np.asarray(curve["top1"], dtype=float)  # [s n]
        low, high = (top1.min(axis=0).tolist(), top1.max(axis=0).tolist()) if len(top1) > 1 else (None, None)
        lines.append(Line(name, list(curve[over]), top1.mean(axis=0).tolist(), low, high))
    return lines


def class_gaps(
    names: Sequence[str], one: Sequence[float | None], other: Sequence[float | None]
) -> list[tuple[str, float]]:
    """The accuracy of one model less the other's, in points, by class; of many classes those that differ most.

    >>> class_gaps(["cat", "dog", "owl"], [0.5, 0.9, None], [0.75, 0.8, None])
    [('dog', 10.0), ('cat', -25.0)]
    """
    pairs = zip(names, one, other, strict=True)
    gaps = [(name, round(100 * (a - b), 6)) for name, a, b in pairs if a is not None and b is not None]
    gaps.sort(key=lambda pair: -pair[1])
    return gaps if len(gaps) <= CLASSES else gaps[: CLASSES // 2] + gaps[-CLASSES // 2 :]


def _bars(gaps: Sequence[tuple[str, float]], right: int, left: int) -> list[dict[str, Any]]:
    """Bars to both sides of a middle line: position and width in percent, and the colour of the better model."""
    scale = max((abs(gap) for _, gap in gaps), default=0.0) or 1.0
    bars = []
    for name, gap in gaps:
        width = 50 * abs(gap) / scale
        start = 50 - width if gap < 0 else 50
        colour = right if gap > 0 else left
        points = f"{gap:+.1f}".replace("-", "−")
        bars.append({"label": name, "left": start, "width": width, "colour": colour, "points": points})
    return bars


def _embed(figure: Figure, alt: str) -> Markup:
    return Markup(figure_image(figure, alt))  # noqa: S704  # it escapes `alt`


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]
