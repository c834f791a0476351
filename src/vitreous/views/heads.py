"""Which heads matter for a class: by one gradient, and by switching each head off."""

import torch

from vitreous.figures.kinds import Bars, Matrix, Results
from vitreous.inside.head_importance import head_importance
from vitreous.inside.intervene import ablate_heads
from vitreous.views.inspection import Inspection
from vitreous.views.view import VIT_CLASSES, View

RANKED = 16
"""Heads that are listed by name."""


def importance(inspection: Inspection) -> Matrix:
    """The slope of a class's logit for every head: the target's, and those of the likeliest other classes."""
    found = [head_importance(inspection.vit, inspection.x, i).float().cpu() for i in inspection.classes]
    return Matrix(
        torch.stack(found).numpy(),  # [class blocks heads]
        "How much the logit of {class} depends on each head",
        rows="block",
        columns="head",
        axes=("class",),
        at={"class": 0},
        names={"class": [inspection.model.card.label(i) for i in inspection.classes]},
        label="|slope of the logit|",
    )


def ablation(inspection: Inspection) -> Results:
    """The heads that change the logit most when they are switched off, and all of them as a matrix."""
    effect = ablate_heads(inspection.vit, inspection.x, inspection.target)  # [blocks heads]
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


IMPORTANCE = View(
    "Importance of heads",
    "How much the logit of the class depends on each head, by one gradient.",
    "A slope at full strength, not the effect of removal: the ablation view measures that.",
    importance,
    tab="Heads",
    needs=VIT_CLASSES,
)
ABLATION = View(
    "Heads switched off",
    "Each head is switched off by itself and the image run again. A negative change (blue) is a head that raised the logit of the "
    "class; a positive change (red) is one that lowered it.",
    "One head at a time: heads that can replace each other look unimportant.",
    ablation,
    tab="Heads",
    needs=VIT_CLASSES,
    slow=True,
)
