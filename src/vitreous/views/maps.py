"""Views of heat maps by method (`MAPS`): evidence for a class; which maps to trust (deletion, random weights).

`MAPS` holds every map that a model can give of an image, and `BASELINES` two that know nothing of the model.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from vitreous.figures.kinds import Bars, LinePanel, Lines, Map, Results
from vitreous.inside import faithfulness, integrated_gradients, rollout
from vitreous.inside.grad_cam import grad_cam
from vitreous.inside.hiding import HiddenPatches, log_odds
from vitreous.inside.removal import COSTS, RemovalMap, removal
from vitreous.models.vit import ViT
from vitreous.views.inspection import Choice, Inspection
from vitreous.views.view import IMAGE_CLASSES, VIT_CLASSES, View


def _rollout(inspection: Inspection) -> Tensor:
    """Compute the inspection's rollout map."""
    choice = inspection.choice
    return rollout.rollout_map(
        inspection.vit,
        inspection.x,
        query=None if choice.query is None else inspection.query,
        fusion=choice.fusion,
        discard=choice.discard,
        residual=choice.residual,
    )[0]


def _attention(inspection: Inspection) -> Tensor:
    """Compute the inspection's attention map of one block."""
    layout, rows = inspection.vit.layout, torch.from_numpy(inspection.attention[inspection.block])
    if inspection.keeps_attention:
        rows = rows[:, layout.prefix :].mean(dim=1) if inspection.query is None else rows[:, inspection.query]
    return layout.to_grid(rows.mean(dim=0))


def _cam(inspection: Inspection) -> Tensor:
    """Compute the inspection's Grad-CAM map."""
    options = {"layer": inspection.block} if isinstance(inspection.model, ViT) else {}
    return grad_cam(inspection.model, inspection.x, inspection.target, **options)[0]


def _integrated(inspection: Inspection) -> Tensor:
    """Compute the inspection's map of integrated gradients."""
    parts = integrated_gradients.integrated_gradients(inspection.vit, inspection.x, inspection.target)
    return integrated_gradients.to_patches(parts, inspection.vit.layout.grid)[0]


def find_removal(inspection: Inspection, passes: int = COSTS["quick"]) -> RemovalMap:
    """Compute the inspection's removal map, from relevance in a ViT and from CAM in a ResNet."""
    prior = heat_map("relevance" if isinstance(inspection.model, ViT) else "CAM", inspection)
    hidden = HiddenPatches(inspection.model, inspection.x, tuple(prior.shape))
    target = inspection.target
    return removal(
        lambda kept, operator: log_odds(hidden(kept, operator), target),
        prior,
        passes=passes,
        operators=hidden.operators,
    )


MAPS: dict[str, Callable[[Inspection], Tensor]] = {  # → [rows columns]
    "attention": _attention,
    "rollout": _rollout,
    "removal": lambda i: find_removal(i).map,
    "relevance": lambda i: i.evidence.relevance[0],
    "gradient × attention": lambda i: i.evidence.gradient_attention[0],
    "CAM": _cam,
    "integrated gradients": _integrated,
}
UNSEEN = 1e-3
"""Probability below which deleting patches measures nothing."""
ALIKE = 0.5
"""Rank correlation with the map of random weights from which on a map hardly depends on what was learned."""
BASELINES = ("random", "centre")
"""Maps that know nothing of the model: a good map beats both."""


def heat_map(name: str, inspection: Inspection) -> Tensor:
    """Compute one heat map by the name of its method, on the CPU: `[rows columns]`."""
    return MAPS[name](inspection).detach().float().cpu()


def _class_maps(inspection: Inspection, found: list[Tensor], title: str, label: str, signed: bool = False) -> Map:
    """Make the view of a method's maps for the target, and for the other likely classes that were computed."""
    rows, columns = found[0].shape
    return Map(
        torch.stack(found).flatten(1).numpy(),
        (rows, columns),
        title,
        ("class",),
        {"class": 0},
        {"class": [inspection.model.card.label(i) for i in inspection.classes[: len(found)]]},
        label=label,
        signed=signed,
        **inspection.left_out,
    )


def _evidence(name: str, title: str, label: str, *, signed: bool = False) -> Callable[[Inspection], Map]:
    """Make the view of one method's map for the target class."""
    return lambda i: _class_maps(i, [heat_map(name, i)], title, label, signed)


def relevance_maps(inspection: Inspection) -> Map:
    """Show relevance for the target, and for the likeliest other classes."""
    found = inspection.evidence.relevance.float().cpu()
    return _class_maps(inspection, list(found), "Relevance for {class}", "relevance")


def removal_maps(inspection: Inspection) -> Results:
    """Show how much each patch raises the log-odds of the target, and the error of each."""
    found = find_removal(inspection)
    unit = "log-odds per patch"
    return {
        "": _class_maps(inspection, [found.map], f"Removal for {{class}} ({found.passes} passes)", unit, signed=True),
        "error": _class_maps(inspection, [found.error], "Standard error of removal for {class}", unit),
    }


def comparable(inspection: Inspection) -> dict[str, Tensor]:
    """Compute every map of the inspection's class with its default options, and the two baselines."""
    default = inspection.with_choice(Choice(target=inspection.target))  # whatever block or query is shown
    found = {
        name: heat_map(name, default) for name in (MAPS if isinstance(inspection.model, ViT) else ("removal", "CAM"))
    }
    rows, columns = next(iter(found.values())).shape
    grid = rows, columns
    return found | {"random": faithfulness.random_map(grid), "centre": faithfulness.centre_map(grid)}


def similarity_to_random_weights(found: dict[str, Tensor], inspection: Inspection) -> dict[str, float]:
    """Rank correlation of each map and that of a model with random weights: near 0 is good."""
    random = inspection.with_choice(Choice(target=inspection.target), faithfulness.reinitialised(inspection.model))
    return {
        name: faithfulness.rank_correlation(values, heat_map(name, random)).item()
        for name, values in found.items()
        if name not in BASELINES
    }


def curves(found: dict[str, Tensor], inspection: Inspection, baseline: str = "blur") -> tuple[Tensor, Tensor]:
    """Compute deletion and insertion curves of all maps: `[maps steps+1]` each, on the CPU."""
    maps, model, x = torch.stack(list(found.values())), inspection.model, inspection.x
    deletion, insertion = faithfulness.curves(
        model, x, maps, inspection.target, baseline=baseline, progress=inspection.progress
    )
    return deletion.cpu(), insertion.cpu()


def verdict(areas: dict[str, tuple[float, float]], similarity: dict[str, float]) -> str:
    """Say which map is the most faithful, which are no better than a baseline, and whether the best passes the check.

    `areas` are those under deletion and insertion; a map's score is insertion less deletion.

    >>> verdict({"CAM": (0.2, 0.6), "rollout": (0.5, 0.4), "centre": (0.3, 0.5)}, {"CAM": 0.1, "rollout": 0.9})
    'CAM is the most faithful here; rollout is no better than the centre.'
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
    said = f"{best} is the most faithful here"
    said += f"; {listed} {'are' if len(weak) > 1 else 'is'} no better than {words[bar]}." if weak else "."
    if similarity.get(best, 0.0) > ALIKE:
        said += (
            f" But its map is much the same with random weights (rank correlation {similarity[best]:.2f}): be careful."
        )
    return f"{said[0].upper()}{said[1:]}" if best.islower() else said


def trust(inspection: Inspection) -> Results:
    """Show deletion and insertion curves of all maps, and how similar the maps stay with random weights."""
    if (probability := inspection.logits.softmax(dim=-1)[inspection.target].item()) < UNSEEN:
        best = inspection.model.card.label(int(inspection.logits.argmax()))
        raise ValueError(
            f"the model gives {inspection.target_label} a probability of {probability:.1g} in this image, so that no "
            f"patch can lower it: measure trust for a class that it sees, such as {best}"
        )
    found = comparable(inspection)
    deletion, insertion = curves(found, inspection)
    missing = "blurred"
    if deletion[0, -1] > deletion[0, 0] / 2:  # the model recognises the class through the blur: it removes nothing
        deletion, insertion = curves(found, inspection, baseline="mean")
        missing = "in the mean colour"
    similarity = similarity_to_random_weights(found, inspection)
    areas = {
        name: (faithfulness.area(deletion[i]).item(), faithfulness.area(insertion[i]).item())
        for i, name in enumerate(found)
    }

    def panel(title: str, label: str, values: Tensor, better: str) -> LinePanel:
        series = {name: line.numpy() for name, line in zip(found, values, strict=True)}
        under = {name: pair[better == "higher"] for name, pair in areas.items()}
        return LinePanel(title, label, series, under, better)  # type: ignore[arg-type]

    return {
        "": Lines(
            (
                panel("Deletion: lower is better", "patches deleted", deletion, "lower"),
                panel("Insertion: higher is better", "patches inserted", insertion, "higher"),
            ),
            f"Which map finds what makes it {inspection.target_label}? Missing patches are shown {missing}",
            BASELINES,
            verdict(areas, similarity),
        ),
        "sanity": Bars(
            list(similarity),
            torch.tensor(list(similarity.values())).numpy(),
            "Does the map change when the weights are random?",
            label="rank correlation with the map of random weights: near 0 is good",
            limits=(-1.0, 1.0),
        ),
    }


RELEVANCE = View(
    "Relevance for a class",
    "The coloured patches are those whose attention raises the logit of the class: attention weighted by its gradient, through "
    "all blocks.",
    "Only evidence for the class is kept; evidence against it is cut off. A map exists even when the model is wrong: compare "
    "the trust view.",
    relevance_maps,
    group="Why",
    needs=VIT_CLASSES,
)
REMOVAL = View(
    "Removal of patches",
    "How much each patch raises the log-odds of the class: measured on the image with random patches blurred, starting from the "
    "relevance map (CAM in a ResNet). Blue lowers them. The second map is the standard error of each patch: a patch below "
    "twice its error may be noise.",
    "Patches are taken to add up. Two that say the same share their effect, and an image with blurred patches is unlike those "
    "that the model was trained on.",
    removal_maps,
    group="Why",
    needs=IMAGE_CLASSES,
)
GRADIENT_ATTENTION = View(
    "Gradient × attention",
    "The attention of one block, by default the last, weighted by the gradient of the class's logit.",
    "One block only: what earlier blocks gathered is already inside its tokens.",
    _evidence("gradient × attention", "Gradient × attention for {class}", "relevance"),
    group="Why",
    needs=VIT_CLASSES,
)
CAM = View(
    "Class activation map",
    "Channels that raise the logit of the class, added up where they are active: at one block's first norm in a ViT (by default the last), at "
    "the last stage in a ResNet.",
    "A coarse map: one number for each patch.",
    _evidence("CAM", "CAM for {class}", "activation"),
    group="Why",
    needs=IMAGE_CLASSES,
)
INTEGRATED_GRADIENTS = View(
    "Integrated gradients",
    "Each patch's part in the logit of the class, on the way from a black image. Parts add up to the difference of the two "
    "logits, but for the error of 16 steps; blue lowers the logit.",
    "It depends on the black image it starts from: a black object can hardly get a part.",
    _evidence("integrated gradients", "Integrated gradients for {class}", "part of the logit", signed=True),
    group="Why",
    needs=VIT_CLASSES,
)
TRUST = View(
    "Which map to trust",
    "Patches are deleted in the order of each map (the faster the class is lost, the better) and inserted (the faster it is "
    "found, the better), beside a random and a centre map. Then each map is computed again with random weights: one that stays "
    "similar does not show what the model has learned.",
    "It measures whether a map finds what the model uses on this one image, not whether the model is correct.",
    trust,
    group="Model",
    needs=IMAGE_CLASSES,
    slow=True,
)
