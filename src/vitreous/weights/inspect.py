"""`doctor`: what was loaded, from where, what was done to it, what it costs, and the shape at each step."""

from dataclasses import asdict
from pathlib import PurePath
from typing import Any

from vitreous.models.summary import count_flops, describe
from vitreous.weights.load import Model

Rows = list[tuple[str, str]]


def examine(model: Model) -> dict[str, Rows]:
    """Sections of label and text, in the order to be read."""
    card, report = model.card, model.card.report
    parameters = sum(p.numel() for p in model.parameters())
    sections: dict[str, Rows] = {
        "where from": [
            ("name", card.name),
            ("origin", card.origin + (f" @ {card.revision}" if card.revision else "")),
            *(("file", path) for path in card.files),
        ],
        "model": [
            ("family", f"{card.family}, {describe(model)}"),
            ("head", _head(model)),
            ("parameters", f"{parameters:,}"),
            ("FLOPs an image", f"{count_flops(model) / 1e9:.2f} G"),
        ],
        "weights": [
            ("format", report.format),
            ("tensors", f"{report.tensors} read, stored as {report.stored_as}"),
            *(("peeled off", wrapper) for wrapper in report.wrappers),
            *(("not needed", key) for key in _shortened(report.left_out)),
            *(("unexpected", key) for key in _shortened(report.unexpected)),
            *(("resized", line) for line in report.resized),
            *(("re-initialised", key) for key in report.reinitialised),
            *(("assumed", f"{name} = {why}") for name, why in report.assumed.items()),
            *(("NaN or infinite", f"{key}: {count} values") for key, count in report.nonfinite.items()),
        ],
        "images": [("preprocessing", card.preprocess.describe())],
    }
    if trained := _training(card.training):
        sections["training"] = trained
    return sections


def facts(model: Model) -> dict[str, Any]:
    """The same as plain values, for a program to read."""
    card = model.card
    return {
        "name": card.name,
        "origin": card.origin,
        "revision": card.revision,
        "files": list(card.files),
        "family": card.family,
        "config": asdict(model.config),
        "head": card.head,
        "class_names": list(card.class_names) if card.class_names else None,
        "parameters": sum(p.numel() for p in model.parameters()),
        "flops": count_flops(model),
        "preprocess": card.preprocess.to_dict(),
        "training": card.training,
        "report": asdict(card.report),
        "remarks": card.report.remarks(),
    }


def _head(model: Model) -> str:
    card, classes = model.card, model.config.classes
    if card.head == "none":
        return "none: features only"
    if card.head == "projection":
        return f"projection to {classes} dimensions"
    if card.class_names is None:
        return f"{classes} classes without names"
    return f"{classes} classes: {', '.join(card.class_names[:4])}{' …' if classes > 4 else ''}"


def _training(message: Any) -> Rows:
    """How the model was trained and how good it became; `told` is what its config.json says, if anything."""
    try:
        config, result = message["config"], message["result"]
        # the last parts alone: where they lay on the machine that trained it is nobody's business
        model = f"{PurePath(str(config['model'])).name} on {PurePath(str(config['data'])).name}"
        length = f"{result['epochs']} epochs in {result['seconds']:,.0f} s"
        accuracy = f"{result['top1']:.2%} of {result['images']:,} held-out images"
    except (KeyError, TypeError, ValueError):  # written by somebody else
        return []
    command, *where = (str(message[key]) if key in message else "" for key in ("command", "hardware", "date"))
    return [("training", ", ".join(filter(None, (command, model, length, *where)))), ("accuracy", accuracy)]


def _shortened(keys: list[str], most: int = 6) -> list[str]:
    return keys if len(keys) <= most else [*keys[:most], f"… and {len(keys) - most} more"]
