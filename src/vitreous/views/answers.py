"""Views of the answers: predictions, the answer after each block (logit lens), and the heads that it depends on."""

import numpy as np

from vitreous.figures.kinds import Bars, Matrix, Results, Steps
from vitreous.inside.head_importance import ablate_heads
from vitreous.inside.logit_lens import logit_lens
from vitreous.predict.classify import top_classes
from vitreous.views.inspection import Inspection
from vitreous.views.view import IMAGE_CLASSES, VIT_CLASSES, View

SHOWN = 8
"""Classes that are named."""
RANKED = 16
"""Heads that are listed by name."""


def predictions(inspection: Inspection) -> Bars:
    """Compute the view of the answers, predictions: the likeliest classes, with probability and logit."""
    found = top_classes(inspection.logits, inspection.model.card.label, SHOWN)
    return Bars(
        [each.class_name for each in found],
        np.array([each.probability for each in found]),
        title="Predictions",
        logits=np.array([each.logit for each in found]),
        indices=[each.index for each in found],
        everything=inspection.logits.softmax(dim=-1).numpy(),
    )


def lens(inspection: Inspection) -> Steps:
    """Compute the view of the answer after each block (logit lens): the best class, and how those in question grow."""
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


def importance(inspection: Inspection) -> Matrix:
    """Compute the view of how answers depend on each head: slopes of the target's logit, and of likely others'."""
    return Matrix(
        inspection.evidence.head_importance.float().cpu().numpy(),  # [class blocks heads]
        "How much the logit of {class} depends on each head",
        rows="block",
        columns="head",
        axes=("class",),
        at={"class": 0},
        names={"class": [inspection.model.card.label(i) for i in inspection.classes]},
        label="|slope of the logit|",
    )


def ablation(inspection: Inspection) -> Results:
    """Compute the view of heads that the answer depends on: how switching off each changes it, most first, and all."""
    effect = ablate_heads(inspection.vit, inspection.x, inspection.target, inspection.progress)  # [blocks heads]
    order = effect.abs().flatten().argsort(descending=True)[:RANKED].tolist()
    positions = [divmod(i, effect.shape[1]) for i in order]
    title = f"Switched off, a head changes the logit of {inspection.target_label}"
    return {
        "": Bars(
            [f"block {block}, head {head}" for block, head in positions],
            effect.flatten()[order].numpy(),
            title,
            label="change of the logit",
            positions=positions,
        ),
        "heads": Matrix(effect.numpy(), title, rows="block", columns="head", label="change of the logit", signed=True),
    }


PREDICTIONS = View(
    "Predictions",
    "The classes that the model finds most likely, with probability and logit.",
    "A probability is the model's confidence, not its accuracy: the model knows its own classes alone, and spreads 100 % "
    "over them whatever is in the image.",
    predictions,
    group="Why",
    needs=IMAGE_CLASSES | {"choice"},
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
IMPORTANCE = View(
    "Importance of heads",
    "How much the logit of the class depends on each head, by one gradient.",
    "A slope at full strength, not the effect of removal: the ablation view measures that.",
    importance,
    needs=VIT_CLASSES,
)
ABLATION = View(
    "Heads switched off",
    "Each head is switched off by itself and the image run again. A negative change (blue) is a head that raised the logit of the "
    "class; a positive change (red) is one that lowered it.",
    "One head at a time: heads that can replace each other look unimportant.",
    ablation,
    needs=VIT_CLASSES,
    slow=True,
)
