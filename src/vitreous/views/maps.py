"""`MAPS`: every heat map of an image that a model can give, by name, and the two that know nothing of the model.

Each takes what it needs of the inspection's choice: `attention` a query and a layer, `rollout` a query, `CAM` and
`gradient × attention` a layer, and all but the first two a class.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from vitreous.inside import faithfulness, relevance, rollout
from vitreous.inside import grad_cam as cam
from vitreous.inside import integrated_gradients as integrated
from vitreous.models.vit import ViT
from vitreous.views.inspection import Choice, Inspection


def _rollout(inspection: Inspection) -> Tensor:
    choice = inspection.choice
    return rollout.rollout_map(
        inspection.vit,
        inspection.x,
        query=None if choice.query is None else inspection.query,
        fusion=choice.fusion,
        discard=choice.discard,
        residual=choice.residual,
    )[0]


def _integrated(inspection: Inspection) -> Tensor:
    parts = integrated.integrated_gradients(inspection.vit, inspection.x, inspection.target)
    return integrated.to_patches(parts, inspection.vit.layout.grid)[0]


MAPS: dict[str, Callable[[Inspection], Tensor]] = {  # → [rows columns]
    "attention": lambda s: s.vit.layout.to_grid(s.rows[s.layer].mean(dim=0)),
    "rollout": _rollout,
    "relevance": lambda s: relevance.relevance(s.vit, s.x, s.target)[0],
    "gradient × attention": lambda s: relevance.gradient_attention(s.vit, s.x, s.target, layer=s.layer)[0],
    "CAM": lambda s: cam.grad_cam(s.model, s.x, s.target, **({"layer": s.layer} if isinstance(s.model, ViT) else {}))[
        0
    ],
    "integrated gradients": _integrated,
}
BLIND = ("random", "centre")
"""Maps that know nothing of the model: what any good one should beat."""


def heat(name: str, inspection: Inspection) -> Tensor:
    """One map, on the CPU: `[rows columns]`."""
    return MAPS[name](inspection).detach().float().cpu()


def comparable(inspection: Inspection) -> dict[str, Tensor]:
    """Every map that the model can give for the inspection's class, each in its usual form, and the two blind ones."""
    usual = inspection.asked(Choice(target=inspection.target))  # whatever layer or query is looked at
    found = {name: heat(name, usual) for name in (MAPS if isinstance(inspection.model, ViT) else ("CAM",))}
    rows, columns = next(iter(found.values())).shape
    return found | {
        "random": faithfulness.random_map((rows, columns)),
        "centre": faithfulness.centre_map((rows, columns)),
    }


def survives(found: dict[str, Tensor], inspection: Inspection) -> dict[str, float]:
    """How alike each map and that of a model with fresh weights are, by rank: near 0 is good."""
    fresh = inspection.asked(Choice(target=inspection.target), faithfulness.reinitialised(inspection.model))
    return {
        name: faithfulness.rank_correlation(values, heat(name, fresh)).item()
        for name, values in found.items()
        if name not in BLIND
    }


def curves(found: dict[str, Tensor], inspection: Inspection, baseline: str = "blur") -> tuple[Tensor, Tensor]:
    """Deletion and insertion curves of all maps: `[maps steps+1]` each, on the CPU."""
    maps = torch.stack(list(found.values()))
    deletion, insertion = faithfulness.curves(
        inspection.model, inspection.x, maps, inspection.target, baseline=baseline
    )
    return deletion.cpu(), insertion.cpu()
