"""`write_comparison_page`: the results of a study as one HTML file: verdicts, charts, gaps by class, disagreements.

First the verdicts, and for a study of several datasets one table of them all; then a part for each dataset: the table,
curves, pairs of models with images on which they disagree, and what was not the same for all.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from markupsafe import Markup
from numpy.typing import NDArray
from PIL.Image import Image
from torch import Tensor

from vitreous.data.masks import class_colours, draw_mask
from vitreous.figures.maps import draw_overlay
from vitreous.inside.grad_cam import grad_cam
from vitreous.inside.pixel_gradients import gradient_input, to_patches
from vitreous.inside.relevance import relevance
from vitreous.models.resnet import ResNet
from vitreous.models.timm_classifier import TimmClassifier
from vitreous.models.vit import ViT
from vitreous.pages.render import Line, data_uri, figure_image, line_chart, render, scripted_page
from vitreous.pages.run import config_docs, spell
from vitreous.predict.scores import SCORES
from vitreous.predict.segmentation import full_mask
from vitreous.runtime.files import short_name, write_text
from vitreous.runtime.wording import FIGURES
from vitreous.views.inspection import Inspection
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
COARSEST = 4
"""Cells along a side that a CNN's map must have: the last stage leaves fewer of a small image."""
LOWEST = -1.0
"""The lowest R² that is drawn: early in training it may be −1000, which would hide all the rest."""
THUMBNAIL = 224
"""Pixels of the longer side of images with labels, numbers or masks."""
AXES: dict[Literal["epochs", "seconds"], str] = {"epochs": "epoch", "seconds": "seconds of training"}


def write_comparison_page(
    folder: Path, datasets: Sequence["ComparedDataset"], *, title: str = "", command: str = ""
) -> Path:
    """Write the comparison's page, `comparison.html`; `command` repeats the study."""
    run = [dataset for dataset in datasets if not dataset.missing]
    if not title:
        *names, last = (row["name"] for row in run[0].table["rows"])
        title = f"{', '.join(names)} beside {last} on {run[0].name}"
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
    return write_text(folder / COMPARISON_PAGE, text)


def _lead(tables: Sequence[Mapping[str, Any]]) -> str:
    """Write the opening sentence of the comparison's page."""
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
    """Loads the models of the first seed, by name."""
    image: Callable[[int], Image] | None = None
    """Opens a test image by its index."""
    mask: Callable[[int], Image] | None = None
    """Opens a test image's mask, if masks are learned."""

    @property
    def name(self) -> str:
        return short_name(str(self.table["data"]))

    @property
    def task(self) -> str:
        """What was learned, on the comparison's page: classify, multilabel, regress or segment."""
        return str(self.table.get("task", "classify"))

    @property
    def score(self) -> str:
        """What the models on the comparison's page are compared by, as the table names it."""
        return "accuracy" if self.task == "classify" else FIGURES[SCORES[self.task].main][0]

    @property
    def score_title(self) -> str:
        """What the models on the comparison's page are compared by, at the beginning of a sentence."""
        return _capital(SCORES[self.task].title)

    @property
    def in_points(self) -> bool:
        """Whether the score on the comparison's page is a share, whose differences are points."""
        return self.task in ("classify", "segment")

    @property
    def missing(self) -> str:
        return str(self.table.get("missing", ""))

    def sentences(self) -> list[str]:
        """Write the verdicts on the comparison's page with a capital, unless they begin with a model's name."""
        names = tuple(row["name"] for row in self.table["rows"])
        return [line if line.startswith(names) else _capital(line) for line in self.verdicts]

    def decided(self) -> int:
        """Count the verdicts that lead the comparison's page; of many pairs, the sentences behind them are folded."""
        few = len(self.verdicts) <= PAIRS
        return len(self.verdicts) if few else sum(bool(pair["verdict"]) for pair in self.table["pairs"])

    def devices(self) -> list[str]:
        return sorted({device for row in self.table["rows"] for device in row["devices"]})

    def best(self) -> int | None:
        """Return the model that wins every verdict, for the comparison's page: its index; None if there is none."""
        for number, row in enumerate(self.table["rows"]):
            own = [pair for pair in self.table["pairs"] if row["model"] in (pair["one"], pair["other"])]
            if own and all(pair["verdict"] == row["model"] for pair in own):
                return number
        return None

    def charts(self) -> dict[str, Markup]:
        """Draw the comparison page's score over epochs and over seconds; nothing if a run was evaluated only once."""
        names = {row["model"]: row["name"] for row in self.table["rows"]}
        curves = {names[label]: curve for label, curve in self.table["curves"].items()}
        if any(len(curve["epochs"]) < 2 for curve in curves.values()):
            return {}
        figure, scale = SCORES[self.task].main, 100.0 if self.in_points else 1.0
        y_label = "top-1 accuracy" if self.task == "classify" else self.score
        shared: dict[str, Any] = {"y_label": y_label, "unit": " %" if self.in_points else "", "x_from": 0}
        lines = {over: curve_lines(curves, over, figure, scale) for over in AXES}
        return {
            over: line_chart(lines[over], title=f"{self.score_title} over {over}", x_label=label, **shared)
            for over, label in AXES.items()
        }

    def drawn_pairs(self) -> Iterator[dict[str, Any]]:
        """Draw the pairs of models that the comparison's page shows, one by one, with the models of the first seed."""
        pairs = list(zip(self.table["pairs"], self.evidence, strict=True))
        if len(pairs) > PAIRS:
            first = self.table["rows"][0]["model"]
            pairs = [(pair, evidence) for pair, evidence in pairs if pair["one"] == first]
        models = self.models()
        for pair, evidence in pairs:
            yield self._draw_pair(pair, models) | {"evidence": _capital(evidence)}

    def _draw_pair(self, pair: Mapping[str, Any], models: Mapping[str, Model]) -> dict[str, Any]:
        """Draw two models against each other on the comparison's page: gaps by class, images of disagreement."""
        rows, classes = {row["model"]: row for row in self.table["rows"]}, self.table["classes"]
        figure = next(key for key in classes if key != "names")
        one, other = (classes[figure][pair[side]] for side in OPPOSITE)
        gaps = class_gaps(classes["names"], one, other, scale=100 if self.in_points else 1)
        right, left = (list(rows).index(pair[side]) % COLOURS for side in OPPOSITE)
        names = {side: rows[pair[side]]["name"] for side in OPPOSITE}
        draw = self._strip if self.task == "classify" else self._task_strip
        strips = [draw(side, pair, models, names) for side in OPPOSITE]
        ahead = {"one": any(gap > 0 for _, gap in gaps), "other": any(gap < 0 for _, gap in gaps)}
        bars = _bars(gaps, right, left, form=".1f" if self.in_points else ".3f")
        return {**names, "bars": bars, "ahead": ahead, "strips": strips}

    # --- labels, numbers, masks ---------------------------------------------------------------------------------------

    def by_class(self) -> dict[str, str]:
        """Write what the comparison's page calls one class, label or number, and the figure that is shown of each."""
        figure = next(key for key in self.table["classes"] if key != "names")
        one = {"multilabel": "label", "regress": "number", "segment": "class"}[self.task]
        return {"one": one, "many": one + ("es" if one == "class" else "s"), "figure": FIGURES[figure][0]}

    def swatches(self) -> list[tuple[str, str]]:
        """List the classes of masks with their colours for the comparison's page."""
        names = self.table["classes"]["names"] if self.mask is not None else []
        return [(name, "#" + bytes(c).hex()) for name, c in zip(names, class_colours(len(names)), strict=True)]

    def _task_strip(
        self, side: str, pair: Mapping[str, Any], models: Mapping[str, Model], names: Mapping[str, str]
    ) -> dict[str, Any]:
        """Draw on the comparison's page images that one model answers better, each with its target and both answers."""
        found, sides = pair["disagreements"][side], (side, OPPOSITE[side])
        tiles: list[dict[str, Any]] = []
        for each in found["images"]:
            assert self.image is not None
            image = self.image(each["image"]).convert("RGB")
            small = image.copy()
            small.thumbnail((THUMBNAIL, THUMBNAIL))
            shown = [("image", small)]
            if self.mask is not None:
                masks = {"labelled": np.asarray(self.mask(each["image"]))}
                masks |= {names[key]: _mask_of(models[pair[key]], image) for key in sides}
                shown += [(name, draw_mask(small, mask, len(self.swatches()), 0.7)) for name, mask in masks.items()]
            answers = [(names[key], self._answer(each[key])) for key in sides]
            drawings = [(name, data_uri(np.asarray(drawn))) for name, drawn in shown]
            target = "" if self.mask is not None else self._answer(each["target"])
            tiles.append({"drawings": drawings, "answers": answers, "target": target})
        return {"better": names[side], "worse": names[OPPOSITE[side]], "count": found["count"], "tiles": tiles}

    def _answer(self, found: Any) -> str:
        """Write on the comparison's page what a model answers, or what is true: labels, numbers, or a mask's IoU."""
        if self.task == "segment":
            return f"{100 * found:.1f} %"
        names = self.table["classes"]["names"]
        if self.task == "multilabel":
            return ", ".join(names[i] for i in found) or "none"
        numbers = [f"{value:.4g}".replace("-", "−") for value in found]
        return numbers[0] if len(names) == 1 else ", ".join(map(" ".join, zip(names, numbers, strict=True)))

    # --- classes ------------------------------------------------------------------------------------------------------

    def _strip(
        self, side: str, pair: Mapping[str, Any], models: Mapping[str, Model], names: Mapping[str, str]
    ) -> dict[str, Any]:
        """Draw on the comparison's page images that one model gets right, the other wrong: both answers and maps."""
        found, sides = pair["disagreements"][side], (side, OPPOSITE[side])
        answering = {each: (names[each], models[pair[each]]) for each in sides}  # the model that is right comes first
        return {
            "better": names[side],
            "worse": names[OPPOSITE[side]],
            "count": found["count"],
            "maps": [map_name(model) for _, model in answering.values()],
            "tiles": [self._tile(answering, each) for each in found["images"]],
        }

    def _tile(self, answering: Mapping[str, tuple[str, Model]], found: Mapping[str, Any]) -> dict[str, Any]:
        """Draw on the comparison's page an image on which two models disagree, then each one's answer with its map."""
        assert self.image is not None
        image, drawings, answers = self.image(found["image"]), [], []
        for key, (name, model) in answering.items():
            (answer, probability), inspection = found[key], Inspection(model, image)
            drawings.append(inspection.backdrop_of_patches)
            label, correct = self._class(answer), answer == found["label"]
            heat = evidence_map(model, inspection.x, answer)[0].float().cpu().numpy()
            drawing = figure_image(draw_overlay(drawings[-1], heat), f"{map_name(model)} of {name} for {label}")
            answers.append({"map": drawing, "label": label, "probability": probability, "correct": correct})
        shown = figure_image(draw_overlay(drawings[0]), "the image")
        return {"image": shown, "label": self._class(found["label"]), "answers": answers}

    def _class(self, index: int) -> str:
        """Name a class of the dataset on the comparison's page."""
        names = self.table["classes"]["names"]
        return str(names[index]) if index < len(names) else f"class {index}"


@torch.inference_mode()
def _mask_of(model: Model, image: Image) -> NDArray[np.uint8]:
    """Return for the comparison's page the class that a model gives each pixel of an image: uint8 `[H W]`."""
    preprocess, like = model.card.preprocess, next(model.parameters())
    logits = model.eval()(preprocess(image)[None].to(like))[0].float().cpu()
    return full_mask(logits, preprocess, image.width, image.height)


def curve_lines(
    curves: Mapping[str, Mapping[str, Any]],
    over: Literal["epochs", "seconds"],
    figure: str = "top1",
    scale: float = 100,
) -> list[Line]:
    """Prepare the comparison page's curves: a figure by model, the mean over seeds, a band from worst to best seed.

    >>> curve_lines({"vit": {"epochs": [1], "top1": [[0.5], [0.7]]}}, "epochs")
    [Line(label='vit', x=[1], y=[60.0], low=[50.0], high=[70.0])]
    """
    lines = []
    for name, curve in curves.items():
        found = scale * np.asarray(curve[figure], dtype=float)  # [s n]
        found = np.maximum(found, LOWEST) if figure == "r2" else found
        low, high = (found.min(axis=0).tolist(), found.max(axis=0).tolist()) if len(found) > 1 else (None, None)
        lines.append(Line(name, list(curve[over]), found.mean(axis=0).tolist(), low, high))
    return lines


def class_gaps(
    names: Sequence[str], one: Sequence[float | None], other: Sequence[float | None], scale: float = 100
) -> list[tuple[str, float]]:
    """Compute the comparison page's gaps by class: one model's accuracy less the other's, in points.

    Of many classes, those that differ most are left: half of them to each side, or more where the other side has fewer.

    >>> class_gaps(["cat", "dog", "owl"], [0.5, 0.9, None], [0.75, 0.8, None])
    [('dog', 10.0), ('cat', -25.0)]
    """
    pairs = zip(names, one, other, strict=True)
    gaps = [(name, round(scale * (a - b), 6)) for name, a, b in pairs if a is not None and b is not None]
    gaps.sort(key=lambda pair: -pair[1])
    if len(gaps) <= CLASSES:
        return gaps
    gaps = [(name, gap) for name, gap in gaps if gap] or gaps
    above, below = sum(gap > 0 for _, gap in gaps), sum(gap < 0 for _, gap in gaps)
    last = min(below, max(CLASSES // 2, CLASSES - above))
    return gaps if len(gaps) <= CLASSES else gaps[: CLASSES - last] + gaps[len(gaps) - last :]


def _bars(gaps: Sequence[tuple[str, float]], right: int, left: int, form: str = ".1f") -> list[dict[str, Any]]:
    """Prepare the comparison page's bars: position, width, the better model's colour.

    They go to both sides of a middle line, or all to the right if one model is ahead in every class that differs.

    >>> [(bar["left"], bar["width"]) for bar in _bars([("dog", 10.0), ("cat", -5.0)], 0, 1)]
    [(50, 50.0), (25.0, 25.0)]
    >>> [(bar["left"], bar["width"]) for bar in _bars([("dog", -5.0), ("cat", -10.0)], 0, 1)]
    [(0, 50.0), (0, 100.0)]
    """
    scale = max((abs(gap) for _, gap in gaps), default=0.0) or 1.0
    both = any(gap > 0 for _, gap in gaps) and any(gap < 0 for _, gap in gaps)
    bars = []
    for name, gap in gaps:
        width = (50 if both else 100) * abs(gap) / scale
        start = 0 if not both else 50 - width if gap < 0 else 50
        colour = right if gap > 0 else left
        points = f"{gap:+{form}}".replace("-", "−")
        bars.append({"label": name, "left": start, "width": width, "colour": colour, "points": points})
    return bars


def _capital(sentence: str) -> str:
    """Begin a sentence of the comparison's page with a capital."""
    return sentence[:1].upper() + sentence[1:]


def evidence_map(model: Model, x: Tensor, target: int) -> Tensor:
    """Compute the comparison page's evidence for a class, by the method of `map_name`: → `[b rows columns]`."""
    if isinstance(model, ViT):
        return relevance(model, x, target)
    if isinstance(model, TimmClassifier):
        if map_name(model) == "Grad-CAM":
            return grad_cam(model, x, target)
        rows, columns = (next(n for n in range(16, 0, -1) if side % n == 0) for side in x.shape[-2:])
        return to_patches(gradient_input(model, x, target), (rows, columns)).clamp_min(0)
    return grad_cam(model, x, target, layer=stage(model, min(x.shape[-2:])))


def stage(model: ResNet, side: int) -> int:
    """Choose the ResNet stage that a page of compared models shows: the last not too coarse for `side` pixels.

    It is the stage that Grad-CAM takes.

    >>> from vitreous.models.resnet import resnet_config
    >>> small, usual = ResNet(resnet_config("resnet18_small")), ResNet(resnet_config("resnet18"))
    >>> stage(small, 32), stage(small, 8), stage(usual, 224)
    (3, 1, 3)
    """
    first = side if model.config.stem == "small" else side // 4
    return max((number for number in range(4) if first >> number >= COARSEST), default=0)


def map_name(model: Model) -> str:
    """Name the kind of map that shows a model's evidence on the comparison's page."""
    if isinstance(model, TimmClassifier):  # a network of tokens, or one that leaves few cells of a small image
        grid = model.grid()
        return "Grad-CAM" if grid is not None and min(grid) >= COARSEST else "gradient × input"
    return "relevance" if isinstance(model, ViT) else "Grad-CAM"
