"""`as_classifier`: a question about a label, a number or a region of an image, as a model that answers with classes.

Whatever explains a class of a classifier then explains why a label is found, what raises a number, or why the pixels of
a region have their class. The returned models share their weights with the one that is asked.
"""

import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.models.dense_head import at_pixel, at_region
from vitreous.models.vit import ViT
from vitreous.weights.load import Model


@dataclass(frozen=True)
class Question:
    """A classifier that answers a question about another model's outputs."""

    model: Model
    target: int
    """The class to explain."""
    probability: str
    """What its probability is, in words."""
    output: int
    """The label, number or class of pixels that is asked about, as the model itself counts."""
    spread: tuple[float, float] | None = None
    """Of a number: mean and standard deviation by which it is mean + deviation · log-odds."""


@torch.no_grad()
def as_classifier(
    model: Model, x: Tensor | None, target: int | None = None, pixel: tuple[int, int] | None = None
) -> Question:
    """Ask a question about one output of a model that gives labels, numbers or masks, for an image `[1 c H W]`.

    `target` is the index of a label, a number or a class of pixels; by default the likeliest label, the first number,
    or the class at the centre. Of a mask, the pixels that have that class are asked about, or one `pixel` (row and
    column). Without an image, the first output is asked about, and of a mask the whole image.
    """
    if target is not None:
        target %= model.config.classes  # -1 is the last one
    card, names = model.card, [model.card.label(i) for i in range(model.config.classes)]
    if card.task == "segment":
        assert isinstance(model, ViT)
        return _region(model, x, target, pixel)
    if pixel is not None:
        raise ValueError(f"a pixel can be asked about of masks alone: this model gives {card.task} answers")
    outputs = None if x is None else model(x)[0]
    if card.task == "multilabel":
        index = target if target is not None else 0 if outputs is None else int(outputs.argmax())
        asked = _two_classes(model, index, (names[index], f"no {names[index]}"))
        return Question(asked, 0, "the probability of this label by itself", index)
    index = target or 0
    mean, std = _spread(model, index, outputs)
    asked = _two_classes(model, index, (f"higher {names[index]}", f"lower {names[index]}"), mean, std)
    words = f"the maps explain how far {names[index]} lies above {mean:.3g}, in units of {std:.3g}"
    return Question(asked, 0, words.replace(" -", " −"), index, (mean, std))


def _region(model: ViT, x: Tensor | None, target: int | None, pixel: tuple[int, int] | None) -> Question:
    """Ask a question about the pixels of an image that have a class, or about one pixel."""
    height, width = model.config.size
    if pixel is not None:
        row, column = pixel
        asked = at_pixel(model, row, column)
        index = target if target is not None else 0 if x is None else int(asked(x).argmax())
        return Question(asked, index, f"at row {row}, column {column} of the image", index)
    if x is None:
        whole = torch.ones(height, width, dtype=torch.bool)
        return Question(at_region(model, whole), target or 0, "the mean over all pixels", target or 0)
    logits = model(x)[0]  # [classes H W]
    predicted = logits.argmax(dim=0)
    index = int(predicted[height // 2, width // 2]) if target is None else target
    region, name = (predicted == index).cpu(), model.card.label(index)
    if region.any():
        return Question(at_region(model, region), index, f"the pixels that are taken for {name}", index)
    best = int(logits[index].argmax())
    asked = at_pixel(model, best // width, best % width)
    return Question(asked, index, f"no pixel is taken for {name}: the one where it is likeliest", index)


def _two_classes(model: Model, index: int, names: tuple[str, str], mean: float = 0.0, std: float = 1.0) -> Any:
    """Return for a question a model with two classes whose odds are those of one output, less `mean`, by `std`."""
    asked: Any = copy.copy(model)
    asked._modules = dict(model._modules)
    for key in ("head", "head_dist") if isinstance(model, ViT) else ("fc",):  # DeiT averages the logits of two heads
        if getattr(model, key) is None:
            continue
        head: Any = copy.copy(getattr(model, key))
        head._parameters = dict(head._parameters)
        weight = head.weight[index] / std
        bias = (head.bias[index] if head.bias is not None else weight.new_zeros(())) - mean
        head.weight = nn.Parameter(torch.stack([weight, torch.zeros_like(weight)]), requires_grad=False)
        head.bias = nn.Parameter(torch.stack([bias / std, torch.zeros_like(bias)]), requires_grad=False)
        asked._modules[key] = head
    asked.config = replace(model.config, classes=2)
    asked.card = replace(model.card, task="classify", class_names=names, independent=False, thresholds=None)
    return asked


def _spread(model: Model, index: int, outputs: Tensor | None) -> tuple[float, float]:
    """Return for a question about a number its mean and standard deviation in training; else 0 and its size."""
    known = (model.card.training or {}).get("standard")
    if isinstance(known, list) and len(known) == model.config.classes:
        return float(known[index][0]), float(known[index][1])
    return 0.0, 1.0 if outputs is None else max(abs(float(outputs[index])), 1e-6)
