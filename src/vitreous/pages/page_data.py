"""What the page shows of an inspection, as a `Payload`: everything of one image and one model that can be looked at.

Attention comes whole, `[layers heads t t]` with one scale a row, so that any patch can be asked where it looks without
the model; the other views are a few kilobytes each. Sentences are those of `VIEWS`.

Shapes:  l layers   h heads   t tokens   n patches   r c rows and columns of patches
"""

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image as pillow
from torch import Tensor

from vitreous.inside import (
    attention,
    faithfulness,
    intervene,
    position_similarity,
    representations,
    rollout,
)
from vitreous.inside import filters as inside_filters
from vitreous.inside import (
    head_importance as importance,
)
from vitreous.inside import (
    logit_lens as lens,
)
from vitreous.inside.capture import capture
from vitreous.models.summary import trace
from vitreous.pages.page import short
from vitreous.pages.payload import Payload
from vitreous.views import maps as heat
from vitreous.views.inspection import Choice, Inspection
from vitreous.views.registry import VIEWS
from vitreous.weights.inspect import inspect

FORMAT = 1
EXPLAINED = 5
"""Classes whose relevance goes along."""
NAMED = 10
"""Classes that are listed."""
MOST_NUMBERS = 40_000_000
"""Attention values that a page can hold; a larger model's page has its class token's rows alone."""

Progress = Callable[[str], object]


def page_data(
    inspection: Inspection, asked: frozenset[str] = frozenset(), progress: Progress = lambda what: None
) -> Payload:
    """Everything that can be shown of a ViT and an image; `asked` adds what takes many passes: ablation, trust."""
    payload = Payload(_header(inspection))
    payload.add_bytes("image", _encoded(inspection.backdrop))
    if inspection.backdrop.shape != inspection.pixels.shape:
        payload.add_bytes("seen", _encoded(inspection.pixels))
    progress("attention")
    whole = _add_attention(payload, inspection)
    _add_tokens(payload, inspection)
    progress("positions and filters")
    _add_embedding(payload, inspection)
    if inspection.model.card.head == "classifier":
        progress("relevance")
        _add_classes(payload, inspection)
        if "ablation" in asked:
            progress("heads switched off")
            payload.add("ablation", intervene.ablate_heads(inspection.vit, inspection.x, inspection.target).numpy())
        if "trust" in asked:
            progress("trust")
            _add_trust(payload, inspection)
    payload.header["whole"] = whole
    return payload


def _header(inspection: Inspection) -> dict[str, Any]:
    model, config, layout = inspection.vit, inspection.vit.config, inspection.vit.layout
    card = model.card
    return {
        "format": FORMAT,
        "model": {
            "name": short(card.name),  # local paths are not written to files that may be shared
            "family": card.family,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "size": list(config.size),
            "patch": list(config.patch),
            "grid": list(layout.grid),
            "prefix": [layout.name(i) for i in range(layout.prefix)],
            "depth": config.depth,
            "heads": config.heads,
            "classifier": card.head == "classifier",
            "readsMean": "token" not in config.pool,  # then the patches answer, on average
        },
        "image": {"name": short(inspection.name), "size": list(inspection.backdrop.shape[:2])},
        "start": {"layer": inspection.layer, "head": inspection.choice.head, "query": inspection.choice.query},
        "predictions": predictions(inspection),
        "views": {name: {"title": v.title, "read": v.read, "beware": v.beware} for name, v in VIEWS.items()},
        "shapes": [[str(step), str(shape)] for step, shape in trace(model)],
        "about": [
            [label, short(text) if label == "name" else text]
            for lines in inspect(model).sections.values()
            for label, text in lines
            if label != "file"
        ],
    }


def predictions(inspection: Inspection) -> list[dict[str, Any]]:
    """The likeliest classes, best first; none where the model is no classifier."""
    if inspection.model.card.head != "classifier":
        return []
    probabilities = inspection.logits.softmax(dim=-1)
    best = inspection.logits.argsort(descending=True, stable=True)[:NAMED].tolist()
    return [
        {
            "index": i,
            "label": inspection.model.card.label(i),
            "probability": probabilities[i].item(),
            "logit": inspection.logits[i].item(),
        }
        for i in best
    ]


def _encoded(pixels: np.ndarray) -> bytes:
    """A small image without loss, a large one as WebP."""
    file = io.BytesIO()
    options: dict[str, Any] = {"format": "WEBP", "quality": 88} if max(pixels.shape) > 64 else {"format": "PNG"}
    pillow.fromarray(pixels).save(file, **options)
    return file.getvalue()


def _add_attention(payload: Payload, inspection: Inspection) -> bool:
    """The whole attention where a page can hold it, else the class token's rows; and what follows from it."""
    model, config, layout = inspection.vit, inspection.vit.config, inspection.vit.layout
    whole = config.depth * config.heads * layout.tokens**2 <= MOST_NUMBERS
    with torch.inference_mode(), capture(model, "norm1") as captured:
        model(inspection.x)
    depth = range(config.depth)
    each = (attention.attention_of(model, i, captured[f"blocks.{i}.norm1"])[0].float() for i in depth)
    rows, distances, entropies = [], [], []
    for one in each:  # [h t t], one block at a time
        distances.append(attention.mean_distance(one, layout, config.patch).cpu())
        entropies.append(attention.entropy(one).cpu())
        answering = one[:, layout.prefix :].mean(1, keepdim=True) if "token" not in config.pool else one[:, :1]
        rows.append((one if whole else answering).cpu().numpy())
    payload.add("attention", np.stack(rows), scaled=1)  # [l h t t]
    payload.add("distance", torch.stack(distances))  # [l h], pixels
    payload.add("entropy", torch.stack(entropies))  # [l h], nats
    payload.add("similar", representations.layer_similarity(captured.stack("norm1").float()))  # [l l]
    if whole:
        with torch.inference_mode():
            options = {name: getattr(inspection.choice, name) for name in ("fusion", "discard", "residual")}
            flow = rollout.rollout(torch.from_numpy(np.stack(rows))[:, None], layout=layout, **options)[0]  # [t t]
        payload.add("rollout", flow, scaled=1)
    return whole


def _add_tokens(payload: Payload, inspection: Inspection) -> None:
    layout = inspection.vit.layout
    with torch.inference_mode():
        lengths = torch.stack([representations.token_norms(one.float(), layout) for one in inspection.outputs])
        colours = [
            representations.principal_colours(inspection.vit.norm(one)[None].float(), layout)[0]
            for one in inspection.outputs
        ]
    payload.add("norms", lengths, scaled=2)  # [l r c]
    payload.add("colours", (torch.stack(colours).clamp(0, 1) * 255).round().byte().cpu().numpy())  # [l r c 3]


def _add_embedding(payload: Payload, inspection: Inspection) -> None:
    if inspection.vit.config.position != "none":
        similarity = position_similarity.position_similarity(inspection.vit).float()
        patches = inspection.vit.layout.patches
        payload.add("positions", similarity.reshape(patches, patches), scaled=1)  # [n n], cosine
    images, shares = inside_filters.principal_filters(inspection.vit.patch_embed.proj.weight, count=28)
    payload.add("filters", (images.clamp(0, 1) * 255).round().byte().cpu().numpy())  # [28 p q c]
    payload.add("filters.share", shares)


def _add_classes(payload: Payload, inspection: Inspection) -> None:
    shown = [each["index"] for each in payload.header["predictions"][:EXPLAINED]]
    shown = [inspection.target, *(i for i in shown if i != inspection.target)][
        :EXPLAINED
    ]  # the class in question comes first
    payload.header["explained"] = [{"index": i, "label": inspection.model.card.label(i)} for i in shown]
    maps: dict[str, list[Tensor]] = {"relevance": [], "gradient × attention": [], "CAM": [], "integrated gradients": []}
    slopes = []
    for index in shown:
        one = inspection.asked(Choice(target=index))
        for name, found in maps.items():
            if name == "relevance" or index == inspection.target:
                found.append(heat.heat(name, one))
        slopes.append(importance.head_importance(inspection.vit, inspection.x, index).float().cpu())
    for name, found in maps.items():
        payload.add(f"map/{name}", torch.stack(found), scaled=2)  # [classes r c]
    payload.add("importance", torch.stack(slopes))  # [classes l h]
    answers = lens.logit_lens(inspection.vit, inspection.x)[:, 0].float().softmax(dim=-1).cpu()  # [l+1 classes]
    best, index = answers.max(dim=-1)
    payload.header["lens"] = [
        {"label": inspection.model.card.label(i), "probability": p}
        for i, p in zip(index.tolist(), best.tolist(), strict=True)
    ]
    payload.add("lens", answers[:, shown].T)  # [classes l+1]


def _add_trust(payload: Payload, inspection: Inspection) -> None:
    found = heat.comparable(inspection)
    deletion, insertion = heat.curves(found, inspection)
    alike = heat.survives(found, inspection)
    payload.header["trust"] = [
        {
            "name": name,
            "blind": name in heat.BLIND,
            "deletion": faithfulness.area(d).item(),
            "insertion": faithfulness.area(i).item(),
            "alike": alike.get(name),
        }
        for name, d, i in zip(found, deletion, insertion, strict=True)
    ]
    payload.add("deletion", deletion)  # [maps steps]
    payload.add("insertion", insertion)
