"""`report`: render and save the page of one or several images; its header describes the model, image and answers."""

import base64
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image as pillow

from vitreous.inside.artifacts import describe_artifacts
from vitreous.models.text import SentenceHead
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.pages.live import LivePrecision, check_live, live_page
from vitreous.pages.payload import Payload
from vitreous.pages.render import render, scripted_page
from vitreous.predict.classify import Prediction, top_classes
from vitreous.runtime.files import short_name, write_text
from vitreous.runtime.wording import format_number
from vitreous.views.inspection import Inspection
from vitreous.views.outputs import list_outputs
from vitreous.views.tokens import (
    COLOURS_BEWARE,
    COLOURS_TITLE,
    MAX_IMAGES,
    SIMILARITY_READ,
    joint_colours,
    joint_directions,
)
from vitreous.views.view import GROUPS
from vitreous.weights.load import Model

FORMAT = 3
NAMED = 10
"""Classes that the page lists."""
DIRECTIONS = "joint/directions"
"""The array by which a page of several images compares their patches."""
SHARES = "100 % are shared among these sentences"
OWN_PROBABILITY = "the probability of this sentence by itself"
"""What the probabilities of sentences are: of a CLIP, of a SigLIP."""


def save_report(
    path: str | Path, pages: Sequence[tuple[str, Payload]], model: Model, live: LivePrecision | None = None
) -> Path:
    """Write the report of several images of one model, whole or not at all; a `live` one holds the model too."""
    data = report(pages, model, live)
    return write_text(Path(path), data)


def report(pages: Sequence[tuple[str, Payload]], model: Model, live: LivePrecision | None = None) -> str:
    """Render the report of several images of one model, shown one at a time."""
    title = short_name(model.card.name)
    if live is not None:
        return live_page(title, pages, check_live(model), live)
    _join([payload for _, payload in pages], model)
    images = [
        (name, base64.b64encode(payload.thumbnail).decode(), _first_answer(payload.header)) for name, payload in pages
    ]
    body = render("explanation.html", title=title, images=images if len(images) > 1 else [])
    return scripted_page(title, body, "report.js", pages)


def _first_answer(header: dict[str, Any]) -> str:
    """Write the answer under an image's thumbnail in a report of several: the first, or what was asked about."""
    found, asked = header["predictions"], header["start"]["class"]
    shown = found[:1] if header["model"]["task"] == "classify" else [each for each in found if each["index"] == asked]
    return "".join(
        f"{each['class_name']} "
        + (format_number(each["value"]) if "value" in each else f"{100 * each['probability']:.0f} %")
        for each in shown
    )


def _join(payloads: Sequence[Payload], model: Model) -> None:
    """Add the comparison of several images' patches to the pages of a report."""
    joined = [(payload, payload.tokens) for payload in payloads if payload.tokens is not None][:MAX_IMAGES]
    if len(joined) < 2 or not isinstance(model, ViT):
        return
    outputs = [tokens for _, tokens in joined]
    together = zip(joined, joint_directions(outputs, model), joint_colours(outputs, model), strict=True)
    for (payload, _), directions, colours in together:
        payload.tokens = None
        payload.add(DIRECTIONS, directions, scaled=1)
        for view in payload.header["views"]:
            if view["name"] == "similarity":
                view["read"] += SIMILARITY_READ
            if view["name"] == "token-colours":
                view["beware"] = COLOURS_BEWARE
                view["results"][0] |= {"title": COLOURS_TITLE, "array": "joint/colours"}
                payload.add("joint/colours", (colours * 255).round().astype(np.uint8))


def _summary(model: Model) -> str:
    """Describe the model in one line of the report's page: family, size, parameters."""
    parameters = sum(p.numel() for p in model.parameters())
    config: Any = model.config
    size = f"{config.depth} layers"
    if isinstance(config, ViTConfig):
        height, width = config.size
        size = f"{height}×{width} px, {config.depth} blocks, {config.heads} heads"
    return f"{model.card.family}, {size}, {parameters / 1e6:.1f} million parameters"


def predictions(inspection: Inspection) -> tuple[Prediction, ...]:
    """List the classes that the report's header names, best first; none where there is no image or no classifier.

    Of a label, a number or a mask, they are those of the question that is asked about it.
    """
    if inspection.image is None or inspection.model.card.head != "classifier":
        return ()
    return top_classes(inspection.logits, inspection.model.card.label, NAMED)


def describe_answers(inspection: Inspection) -> list[dict[str, Any]]:
    """Describe the answers for the report's header: the likeliest classes, or all labels, numbers or pixel classes."""
    if inspection.output is not None and inspection.image is not None:
        return list_outputs(inspection)
    return [asdict(each) for each in predictions(inspection)]


def report_header(inspection: Inspection) -> dict[str, Any]:
    """Describe model, image and answers for the header of the report."""
    card, choice = inspection.asked.card, inspection.choice
    model: dict[str, Any] = {"name": short_name(card.name), "classifier": card.head == "classifier", "task": card.task}
    start: dict[str, Any] = {"view": None, "block": None, "head": choice.head, "query": choice.query, "class": None}
    if inspection.pixel is not None:
        start["pixel"] = inspection.pixel
    if isinstance(inspection.model, ViT):
        config, layout = inspection.model.config, inspection.model.layout
        model |= {
            "grid": list(layout.grid),
            "size": list(config.size),
            "covered": list(layout.covered),
            "prefix": [layout.name(i) for i in range(layout.prefix)],
            "depth": config.depth,
            "heads": config.heads,
            "readsMean": "token" not in config.pool,  # then the head reads the mean of the patches
        }
        start["block"] = inspection.block
        if isinstance(head := inspection.model.head, SentenceHead):
            model["compares"] = SHARES if head.bias is None else OWN_PROBABILITY
    if inspection.probability:
        model["compares"] = inspection.probability
    found = describe_answers(inspection)
    explained, names = [], list(card.class_names or ())
    if found and inspection.output is None:
        explained = inspection.classes
    elif inspection.output is not None and found:
        explained, names = [inspection.output], [card.label(i) for i in range(len(found))]
    if found:
        start["class"] = explained[0]
    return {
        "format": FORMAT,
        "model": model | {"summary": _summary(inspection.asked)},
        "groups": GROUPS,
        "image": None if inspection.image is None else _describe_image(inspection, inspection.image),
        "artifacts": _artifacts(inspection),
        "classNames": names if found and names else None,
        "start": start,
        "predictions": found,
        "classes": [{"index": i, "class_name": card.label(i), **_asked(inspection, i)} for i in explained],
    }


def _asked(inspection: Inspection, index: int) -> dict[str, float]:
    """State in the report's header what maps of a class explain: its probability, or a number.

    With the number stands the size of one log-odds.
    """
    logits = inspection.logits.double()
    if inspection.output is None:
        return {"probability": float(logits.softmax(dim=-1)[index])}
    if inspection.spread is None:
        return {"probability": float(logits.softmax(dim=-1)[inspection.target])}
    mean, deviation = inspection.spread
    return {"value": mean + deviation * float(logits[0] - logits[1]), "deviation": deviation}


def _describe_image(inspection: Inspection, image: pillow.Image) -> dict[str, Any]:
    """Describe the image for the report: name, size, the part that the model sees (left, top, right, bottom), steps."""
    preprocess = inspection.model.card.preprocess
    crop = [round(end, 2) for end in preprocess.crop_box(image.width, image.height)]
    size = [image.width, image.height]
    return {"name": short_name(inspection.name), "size": size, "crop": crop, "preprocess": preprocess.describe()}


def _artifacts(inspection: Inspection) -> dict[str, Any] | None:
    """Write what the page's report says of an image's artifacts: which patches, and a sentence."""
    if inspection.image is None or not (found := inspection.artifacts):
        return None
    said = describe_artifacts(str(len(found.patches)), str(found.block), f"{found.norm:.0f}", f"{found.usual:.0f}")
    return {"patches": found.patches, "block": found.block, "said": said}
