"""What the model answers: its predictions, and what it would answer after each block."""

import numpy as np

from vitreous.figures.kinds import Bars, Steps
from vitreous.inside.logit_lens import logit_lens
from vitreous.predict.classify import top_classes
from vitreous.views.inspection import Inspection
from vitreous.views.view import IMAGE_CLASSES, VIT_CLASSES, View

SHOWN = 8
"""Classes that are named."""


def predictions(inspection: Inspection) -> Bars:
    """The likeliest classes, with probability and logit."""
    found = top_classes(inspection.logits, inspection.model.card.label, SHOWN)
    return Bars(
        [each.class_name for each in found],
        np.array([each.probability for each in found]),
        title="Predictions",
        logits=np.array([each.logit for each in found]),
    )


def lens(inspection: Inspection) -> Steps:
    """The best class after each block, and how the classes in question grow."""
    probabilities = logit_lens(inspection.vit, inspection.x)[:, 0].float().softmax(dim=-1).cpu()  # [blocks+1 classes]
    best, index = probabilities.max(dim=-1)
    label = inspection.model.card.label
    return Steps(
        ["embedding", *(f"block {i}" for i in range(len(best) - 1))],
        [label(i) for i in index.tolist()],
        best.numpy(),
        probabilities[:, inspection.classes].T.numpy(),
        {"class": [label(i) for i in inspection.classes]},
        title="What the model would answer after each block",
    )


PREDICTIONS = View(
    "Predictions",
    "The classes that the model finds most likely, with probability and logit.",
    "A probability is the model's confidence, not its accuracy: the model knows its own classes alone, and spreads 100 % "
    "over them whatever is in the image.",
    predictions,
    needs=IMAGE_CLASSES,
)
LENS = View(
    "Logit lens",
    "The answer that the model would give if it stopped after each block, and how the probability of the final class "
    "grows.",
    "The head was trained on the last block's tokens alone: early answers show how far early tokens are from what the "
    "head reads.",
    lens,
    needs=VIT_CLASSES,
)
