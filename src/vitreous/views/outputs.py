"""What a model gives that does not choose one class: its labels, its numbers, or its mask over the image, and their view."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.data.masks import class_colours, mask_colours
from vitreous.figures.kinds import Bars, Mask, Table
from vitreous.runtime.wording import format_number
from vitreous.views.inspection import Inspection
from vitreous.views.view import View

SHOWN = 20  # labels
WORDS = {
    "multilabel": {
        "title": "Labels",
        "read": "The probability of each label by itself, and the logit behind it.",
        "beware": "A probability is the model's confidence, not its accuracy. Labels need not sum to 100 %.",
    },
    "regress": {
        "title": "Numbers",
        "read": "What the model gives for this image, in the units of the table that it was trained on.",
        "beware": "A number comes without an error: how far such numbers are off, `vitreous evaluate` measures.",
    },
    "segment": {
        "title": "Mask",
        "read": "The likeliest class of each pixel, in colours over the image, and the share of the pixels that each class has.",
        "beware": "A pixel shows its likeliest class alone, however close the next one is.",
    },
}
"""Task → what the page says of the view of outputs."""


def list_outputs(inspection: Inspection) -> list[dict[str, Any]]:
    """List the outputs of a model of another task than one class, as the page shows them.

    Labels have a `probability`, by which they are sorted, and are `present` from their thresholds on; numbers have a
    `value`; classes of pixels have their share of the mask as `probability`, by which they are sorted, and a `colour`.
    """
    card, answers = inspection.asked.card, inspection.answers
    rows: list[dict[str, Any]] = [{"index": i, "class_name": card.label(i)} for i in range(len(answers))]
    if card.task == "regress":
        return [row | {"value": value} for row, value in zip(rows, answers.tolist(), strict=True)]
    if card.task == "multilabel":
        found = zip(rows, answers.sigmoid().tolist(), strict=True)
        rows = [row | {"probability": value, "present": value >= card.threshold(row["index"])} for row, value in found]
    else:
        shares = np.bincount(mask_of(inspection).ravel(), minlength=len(rows)) / answers[0].numel()
        drawn = zip(rows, shares.tolist(), mask_colours(len(rows)), strict=False)
        rows = [row | {"probability": share, "colour": colour} for row, share, colour in drawn]
    return sorted(rows, key=lambda row: -row["probability"])


def mask_of(inspection: Inspection) -> NDArray[np.int64]:
    """Return for the view of outputs the class of each pixel that the model sees: `[H W]`."""
    return inspection.answers.argmax(dim=0).numpy()


def outputs(inspection: Inspection) -> Bars | Mask | Table:
    """Compute the view of outputs, by the model's task."""
    card, rows = inspection.asked.card, list_outputs(inspection)
    if card.task == "multilabel":
        rows = rows[:SHOWN]
        names, order = [row["class_name"] for row in rows], [row["index"] for row in rows]
        chosen = np.array([row["probability"] for row in rows])
        logits = inspection.answers[order].numpy()
        return Bars(names, chosen, "Labels, each by itself", logits=logits, indices=order)
    if card.task == "regress":
        return Table([(row["class_name"], format_number(row["value"])) for row in rows], "Numbers of this image")
    found = [row for row in rows if row["probability"]]
    legend = [(row["class_name"], row["colour"], row["probability"]) for row in found]
    colours = class_colours(len(rows))[mask_of(inspection)]
    return Mask(inspection.pixels, colours, legend, [row["index"] for row in found], "The class of each pixel")


OUTPUTS = View(
    "Labels, numbers or mask",
    "What the model gives for this image: the probability of each label by itself, its numbers in their own units, or the class "
    "of each pixel in colours over the image.",
    "An answer is not a certainty: labels are probabilities of their own and need not sum to 100 %, a number comes without an "
    "error, and a pixel shows its likeliest class alone, however close the next one is.",
    outputs,
    group="Why",
    needs=frozenset({"image", "task"}),
)
