"""The view that says which heat map to trust for this model and image: deletion, insertion, and fresh weights.

The maps are those of `METHODS`, so that they have the figures that `vitreous compare --maps` has for the same image.
"""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from vitreous.figures.kinds import Bars, LinePanel, Lines, Results
from vitreous.inside import faithfulness
from vitreous.inside.intervene import intervene_alike
from vitreous.inside.methods import METHODS, Method, removal_method
from vitreous.inside.removal import count_passes
from vitreous.models.vit import ViT
from vitreous.views.inspection import Inspection
from vitreous.views.view import IMAGE_CLASSES, View

COMPARED = (
    "removal",
    "pruned gradients",
    "relevance",
    "gradient × attention",
    "attention",
    "rollout",
    "CAM",
    "integrated gradients",
)
"""The maps that are compared."""
OPERATORS = {"mean": "in the mean colour", "blur": "blurred"}
"""What deleted patches show. The first decides: no map that is compared was fitted with it."""
UNSEEN = 1e-3
"""Probability below which deleting patches measures nothing."""
ALIKE = 0.5
"""Rank correlation with the map of random weights from which on a map hardly depends on what was learned."""
BASELINES = ("random", "centre")
"""Maps that know nothing of the model: a good map beats both."""
FITTED = " *"
"""Marks a map that was fitted with what deleted patches show."""


def compared_methods(inspection: Inspection) -> dict[str, Method]:
    """List the maps that the trust view compares: those that the model allows, and the two baselines."""
    known = {**METHODS, "removal": removal_method(count_passes(inspection.choice.passes))}
    vit = isinstance(inspection.model, ViT)
    return {name: known[name] for name in (*COMPARED, *BASELINES) if vit or not known[name].vit}


def comparable(inspection: Inspection) -> dict[str, Tensor]:
    """Compute every map that the trust view compares, for the inspection's class, and the two baselines."""
    model, x, target = inspection.model, inspection.x, inspection.target
    return {name: method(model, x, target).cpu() for name, method in compared_methods(inspection).items()}


def similarity_to_random_weights(found: dict[str, Tensor], inspection: Inspection) -> dict[str, float]:
    """Compute for the trust view the rank correlation of each map with that of random weights: near 0 is good."""
    random = faithfulness.reinitialised(cast(ViT, inspection.model))  # or a ResNet
    methods = compared_methods(inspection)
    with intervene_alike(inspection.model, random):
        maps = {name: methods[name](random, inspection.x, inspection.target).cpu() for name in found.keys() - BASELINES}
    return {name: faithfulness.rank_correlation(found[name], maps[name]).item() for name in found if name in maps}


def curves(found: dict[str, Tensor], inspection: Inspection, baseline: str = "mean") -> tuple[Tensor, Tensor]:
    """Compute for the trust view the deletion and insertion curves of all maps: `[maps steps+1]` each, on the CPU."""
    maps, model, x = torch.stack(list(found.values())), inspection.model, inspection.x
    deletion, insertion = faithfulness.curves(
        model, x, maps, inspection.target, baseline=baseline, progress=inspection.progress
    )
    return deletion.cpu(), insertion.cpu()


def verdict(areas: dict[str, tuple[float, float]], similarity: dict[str, float]) -> str:
    """Say which map to trust for one image, which are no better than a baseline, and whether the best passes.

    `areas` are those under deletion and insertion; a map's score is insertion less deletion.

    >>> verdict({"CAM": (0.2, 0.6), "rollout": (0.5, 0.4), "centre": (0.3, 0.5)}, {"CAM": 0.1, "rollout": 0.9})
    'CAM is the most faithful here (insertion less deletion); rollout is no better than the centre.'
    """
    scores = {name: insertion - deletion for name, (deletion, insertion) in areas.items()}
    known = {name: scores.pop(name) for name in BASELINES if name in scores}
    bar = max(known, key=lambda name: known[name])
    words = {"random": "random patches", "centre": "the centre"}
    best = max(scores, key=lambda name: scores[name])
    if scores[best] <= known[bar]:
        return f"No map is better than {words[bar]} here: none of them finds what the answer rests on."
    weak = [name for name, score in scores.items() if score <= known[bar]]
    listed = ", ".join(weak[:-1]) + " and " + weak[-1] if len(weak) > 1 else "".join(weak)
    said = f"{best} is the most faithful here (insertion less deletion)"
    said += f"; {listed} {'are' if len(weak) > 1 else 'is'} no better than {words[bar]}." if weak else "."
    if similarity.get(best, 0.0) > ALIKE:
        said += (
            f" But its map is much the same with random weights (rank correlation {similarity[best]:.2f}): be careful."
        )
    return f"{said[0].upper()}{said[1:]}" if best.islower() else said


def trust(inspection: Inspection) -> Results:
    """Compute the view of which map to trust: deletion and insertion curves, and similarity to random weights' maps."""
    if (probability := inspection.logits.softmax(dim=-1)[inspection.target].item()) < UNSEEN:
        best = inspection.model.card.label(int(inspection.logits.argmax()))
        raise ValueError(
            f"the model gives {inspection.target_label} a probability of {probability:.1g} in this image, so that no "
            f"patch can lower it: measure trust for a class that it sees, such as {best}"
        )
    found, methods = comparable(inspection), compared_methods(inspection)
    similarity = similarity_to_random_weights(found, inspection)
    results: dict[str, Lines | Bars] = {}
    for operator, shown in OPERATORS.items():
        lines = curves(found, inspection, operator)
        areas = {
            name: (faithfulness.area(deleted).item(), faithfulness.area(inserted).item())
            for name, deleted, inserted in zip(found, *lines, strict=True)
        }
        marked = [name + FITTED * (operator in methods[name].fitted) for name in found]
        title = f"Which map finds what makes it {inspection.target_label}? Hidden patches {shown}"
        if results:
            said = "* was fitted with such images: this does not count for it." if marked != list(found) else ""
        else:
            said = verdict(areas, similarity)
        results[operator if results else ""] = Lines(
            _panels(marked, lines, list(areas.values())), title, BASELINES, said
        )
    results["sanity"] = Bars(
        list(similarity),
        torch.tensor(list(similarity.values())).numpy(),
        "Does the map change when the weights are random?",
        label="rank correlation with the map of random weights: near 0 is good",
        limits=(-1.0, 1.0),
    )
    return results


def _panels(
    names: Sequence[str], lines: tuple[Tensor, Tensor], areas: Sequence[tuple[float, float]]
) -> tuple[LinePanel, LinePanel]:
    """Make the trust view's charts of deletion and insertion."""
    series = [{name: line.numpy() for name, line in zip(names, values, strict=True)} for values in lines]
    under = [{name: pair[way] for name, pair in zip(names, areas, strict=True)} for way in range(2)]
    return (
        LinePanel("Deletion: lower is better", "patches deleted", series[0], under[0], "lower"),
        LinePanel("Insertion: higher is better", "patches inserted", series[1], under[1], "higher"),
    )


TRUST = View(
    "Which map to trust",
    "Patches are deleted in the order of each map (the faster the class is lost, the better) and inserted (the faster it is "
    "found, the better), beside a random and a centre map: in the mean colour, which decides, and blurred, which the maps "
    "marked * were fitted with. Then each map is computed again with random weights: one that stays similar does not show "
    "what the model has learned.",
    "It measures whether a map finds what the model uses on this one image, not whether the model is correct.",
    trust,
    group="Model",
    needs=IMAGE_CLASSES,
    slow=True,
)
