"""The view that tests a map on its own image: hide the patches it marks, or show them alone, and ask again."""

from functools import partial

import numpy as np
import torch
from torch import Tensor

from vitreous.figures.kinds import Removal, RemovedNumber
from vitreous.inside.faithfulness import centre_map, random_map
from vitreous.views.inspection import Inspection
from vitreous.views.view import IMAGE_CLASSES, View

SHARES = (0.0, 0.02, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0)
"""Shares of the patches that are hidden, or shown alone."""
CLASSES = 3
"""Classes whose evidence is tested: the target, and the likeliest others."""
ANSWERS = 10
"""Classes whose probabilities the page follows."""
DRAWS = 8
"""Random choices of patches that a map is compared with."""
MARGIN = 0.05
"""The share of the whole image's probability by which a map must do better than other choices of patches."""
LOST = 0.25
"""A class is lost when this share of its probability is left."""
LARGEST = 0.34
"""The share of patches within which a class must be lost: a map that needs more of the image points at nothing."""
PLAIN = 0.25
"""The share of patches that is told where a class is not lost within that."""

AT_PIXELS = (
    "Hide the {count} strongest of {patches} patches, and “{class}” there {moves} {now}.",
    "Show only these {count} of {patches} patches, and “{class}” there {moves} {now}.",
)
"""What the page says of a class of pixels that are asked about: with patches hidden, and with these alone."""


def evidence(inspection: Inspection) -> Removal:
    """Compute the view of evidence: probabilities while a map's strongest patches are hidden, or shown alone."""
    classes = inspection.classes[:CLASSES]
    maps = inspection.removal.map[: len(classes)].clone()  # [m r c]
    if artifacts := inspection.artifacts:  # the page does not colour them: they are the last to be hidden
        maps.flatten(1)[:, list(artifacts.patches)] = -torch.inf
    grid, patches = (maps.shape[1], maps.shape[2]), maps[0].numel()
    order = maps.flatten(1).argsort(dim=1, descending=True, stable=True)  # [m n]
    counts = sorted({round(share * patches) for share in SHARES})
    ask = partial(_ask, inspection)
    first = torch.stack([_first(order, count, grid) for count in counts[1:-1]], dim=1)  # [m s-2 r c]
    everything = torch.ones(1, *grid, dtype=torch.bool)
    ends = ask(torch.cat([everything, ~everything]))  # the whole image, and nothing of it
    middle = ask(torch.cat([~first, first]).flatten(0, 1)).unflatten(0, (2, *first.shape[:2]))  # [2 m s-2 classes]
    whole, nothing = (end.expand(2, len(classes), 1, -1) for end in ends)
    found = torch.cat([whole, middle, nothing], dim=2)  # [2 m s classes]
    found[1] = torch.cat([nothing[1], middle[1], whole[1]], dim=1)
    logits, found = found, found.softmax(dim=-1)
    own = found[0, range(len(classes)), :, classes]  # [m s]
    chosen = [_telling(line, counts) for line in own]
    rivals = torch.stack([random_map(grid, seed) for seed in range(DRAWS)] + [centre_map(grid)])
    ranked = rivals.flatten(1).argsort(dim=1, descending=True, stable=True)
    hidden = {step: ask(~_first(ranked, counts[step], grid)) for step in sorted(set(chosen))}  # [rivals classes] each
    random, centre, passed = [], [], []
    for number, (index, step) in enumerate(zip(classes, chosen, strict=True)):
        left = hidden[step].softmax(dim=-1)[:, index]
        random.append(left[:-1].mean().item())
        centre.append(left[-1].item())
        passed.append(passes(own[number, step].item(), left.min().item(), own[number, 0].item()))
    likely = inspection.logits.argsort(descending=True, stable=True)[:ANSWERS].tolist()
    answers = [*classes, *(index for index in likely if index not in classes)]
    label = inspection.model.card.label
    best = [[[(label(i), p) for p, i in zip(*map(Tensor.tolist, found[way, m].max(dim=-1)), strict=True)]
             for way in range(2)] for m in range(len(classes))]  # fmt: skip
    words = {"hide": AT_PIXELS[0], "show": AT_PIXELS[1]} if inspection.asked.card.task == "segment" else {}
    red, green, blue = inspection.pixels.reshape(-1, 3).mean(axis=0).round().astype(int).tolist()
    return Removal(
        counts,
        order.numpy().astype(np.int32),
        found[0][..., answers].numpy(),
        found[1][..., answers].numpy(),
        best,
        {"class": [label(index) for index in classes]},
        answers,
        [label(index) for index in answers],
        chosen,
        np.array(random),
        np.array(centre),
        passed,
        (red, green, blue),
        title="What is left of an answer when its strongest patches are hidden",
        number=_number(inspection, logits[:, 0], hidden[chosen[0]]),
        **words,
    )


def _number(inspection: Inspection, logits: Tensor, rivals: Tensor) -> RemovedNumber | None:
    """Compute what the number that is asked about becomes in the view of evidence, from logits `[2 s 2]`, `[r 2]`."""
    if inspection.spread is None or inspection.output is None:
        return None
    mean, std = inspection.spread
    (hidden, alone), left = ((mean + std * (x[..., 0] - x[..., 1]).double()).tolist() for x in (logits, rivals))
    name = inspection.asked.card.label(inspection.output)
    return RemovedNumber(name, hidden, alone, [sum(left[:-1]) / len(left[:-1])], left[-1:])


def passes(now: float, rival: float, whole: float) -> bool:
    """Return whether a map passes in the view of evidence: hiding its patches leaves a class less than hiding others.

    >>> passes(0.04, 0.6, whole=0.67), passes(0.59, 0.6, whole=0.67)
    (True, False)
    """
    return now < rival - MARGIN * whole


def _ask(inspection: Inspection, kept: Tensor) -> Tensor:
    """Compute logits with only some patches kept, the others in mean colour, for the view of evidence: `[k classes]`."""
    return inspection.hidden(kept, "mean").cpu()


def _first(order: Tensor, count: int, grid: tuple[int, int]) -> Tensor:
    """Mask the first `count` patches of each order in the view of evidence, `[m n]`: `[m r c]`."""
    return (order.argsort(dim=1) < count).view(-1, *grid)


def _telling(line: Tensor, counts: list[int]) -> int:
    """Choose the step that the view of evidence tells of: where the class is lost, or a quarter of the patches.

    >>> _telling(torch.tensor([0.8, 0.6, 0.1, 0.0]), [0, 10, 20, 100])
    2
    >>> _telling(torch.tensor([0.8, 0.6, 0.5, 0.1, 0.0]), [0, 10, 25, 50, 100])
    2
    """
    patches = counts[-1]
    lost = [step for step, count in enumerate(counts) if count <= LARGEST * patches and line[step] < LOST * line[0]]
    return lost[0] if lost else min(range(1, len(counts)), key=lambda step: abs(counts[step] - PLAIN * patches))


EVIDENCE = View(
    "Test of the map",
    "The probability of an answer while the strongest patches of its removal map are hidden, and while they alone are shown; hidden "
    "patches take the image's mean colour.",
    "An image with holes is unlike any that the model was trained on, so a fall is a sign of evidence and no proof of it.",
    evidence,
    group="Why",
    needs=IMAGE_CLASSES,
)
