"""`inspect`: a model's source, what loading assumed, its shape, cost and training; behind `vitreous doctor`."""

from dataclasses import asdict, dataclass, field
from pathlib import PurePath
from typing import Any

from vitreous.data.image_dataset import count_nouns
from vitreous.models.summary import count_flops, describe, trace
from vitreous.models.vit_config import ViTConfig
from vitreous.weights.card import Card, Rows, rows_to_html, rows_to_text, shorten
from vitreous.weights.load import Model
from vitreous.weights.model_card import training_figures


@dataclass(repr=False)
class ModelSummary:
    """Facts about a model: `sections` to read, `to_dict()` for a program."""

    sections: dict[str, Rows]  # title → pairs of label and text, in reading order
    values: dict[str, Any] = field(default_factory=dict)  # the same facts as plain values

    def to_dict(self) -> dict[str, Any]:
        """Return the facts that `inspect` found as plain values, fit for JSON."""
        return dict(self.values)

    def __repr__(self) -> str:
        return "\n".join(f"{title}\n{rows_to_text(rows, width=18)}" for title, rows in self.sections.items())

    def _repr_html_(self) -> str:
        return "".join(rows_to_html(title, rows) for title, rows in self.sections.items())


def inspect(model: Model, *, shapes: bool = False) -> ModelSummary:
    """Inspect a model for `vitreous doctor`: source, config, weights, preprocessing, training, what loading assumed.

    `shapes` adds the shape at each step of a forward pass.

    >>> from vitreous.weights.load import load
    >>> summary = inspect(load("packaged:cifar10"))
    >>> summary.sections["model"][2], summary.to_dict()["remarks"]
    (('parameters', '6,350,602'), [])
    """
    card, report = model.card, model.card.report
    parameters, flops = sum(p.numel() for p in model.parameters()), count_flops(model)
    sections: dict[str, Rows] = {
        "source": [
            ("name", card.name),
            ("origin", card.origin + (f" @ {card.revision}" if card.revision else "")),
            *(("file", path) for path in card.files),
        ],
        "model": [
            ("family", f"{card.family}, {describe(model)}"),
            *([] if card.task == "classify" else [("task", card.task)]),
            ("head", _describe_head(model)),
            ("parameters", f"{parameters:,}"),
            ("FLOPs an image", f"{flops / 1e9:.2f} G"),
        ],
        "weights": report.rows(),
        "images": [("preprocessing", card.preprocess.describe())],
    }
    if card.thresholds is not None:
        shown = shorten([f"{card.label(i)} {threshold:.2g}" for i, threshold in enumerate(card.thresholds)])
        sections["model"].append(("thresholds", ", ".join(shown)))
    if training := _training_rows(card):
        sections["training"] = training
    values = {
        "name": card.name,
        "origin": card.origin,
        "revision": card.revision,
        "files": list(card.files),
        "family": card.family,
        "config": asdict(model.config),
        "head": card.head,
        "task": card.task,
        "thresholds": None if card.thresholds is None else list(card.thresholds),
        "class_names": list(card.class_names) if card.class_names else None,
        "parameters": parameters,
        "flops": flops,
        "preprocess": card.preprocess.to_dict(),
        "training": card.training,
        "report": asdict(report),
        "remarks": report.remarks(),
    }
    if shapes:
        sections["shapes"] = trace(model)
        values["shapes"] = dict(sections["shapes"])
    return ModelSummary(sections, values)


def _describe_head(model: Model) -> str:
    """Describe a model's head in a line of what `inspect` returns."""
    card, classes = model.card, model.config.classes
    if card.head == "none":
        return "none: features only"
    if card.head == "projection":
        return f"projection to {classes} dimensions"
    outputs, names = count_nouns(card.task, classes), card.class_names
    named = " without names" if names is None else f": {', '.join(names[:4])}{' …' if classes > 4 else ''}"
    if not isinstance(config := model.config, ViTConfig) or config.dense == "none":
        return outputs + named
    blocks = ", ".join(map(str, config.dense_blocks))
    return f"{outputs}{named}; {config.dense}, on the patch tokens of blocks {blocks}"


def _training_rows(card: Card) -> Rows:
    """Return for `inspect` how the model was trained and its figures; nothing without a record of ours."""
    training: Any = card.training
    try:
        config, result = training["config"], training["result"]
        # the last parts alone: local paths of the machine that trained it are not shown
        model = f"{PurePath(str(config['model'])).name} on {PurePath(str(config['data'])).name}"
        length = f"{result['epochs']} epochs in {result['seconds']:,.0f} s"
        figures = [("accuracy", f"{result['top1']:.2%}")] if card.task == "classify" else training_figures(card)
        (name, value), *others = figures
        of = "of" if card.task == "classify" else "on"
        figures = [(name, f"{value} {of} {result['images']:,} held-out images"), *others]
    except (KeyError, TypeError, ValueError):
        return []
    command, *rest = (str(training[key]) if key in training else "" for key in ("command", "hardware", "date"))
    return [("training", ", ".join(filter(None, (command, model, length, *rest)))), *figures]
