"""What the page shows of a scene, as a `Payload`: everything of one picture and one model that can be looked at.

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

from vitreous.inside import attention, faithfulness, importance, intervene, lens, rollout
from vitreous.inside import filters as inside_filters
from vitreous.inside import position as inside_position
from vitreous.inside import tokens as inside_tokens
from vitreous.inside.capture import capture
from vitreous.models.summary import trace
from vitreous.pages.page import short
from vitreous.pages.payload import Payload
from vitreous.views.inspection import Choice, Scene
from vitreous.views.registry import VIEWS
from vitreous.views.registry import maps as heat
from vitreous.weights.inspect import examine

FORMAT = 1
EXPLAINED = 5
"""Classes whose relevance goes along."""
NAMED = 10
"""Classes that are listed."""
MOST_NUMBERS = 40_000_000
"""Attention values that a page can hold; a larger model's page has its class token's rows alone."""

Progress = Callable[[str], object]


def page_data(scene: Scene, asked: frozenset[str] = frozenset(), progress: Progress = lambda what: None) -> Payload:
    """Everything that can be shown of a ViT and a picture; `asked` adds what takes many passes: ablation, trust."""
    payload = Payload(_header(scene))
    payload.add_bytes("picture", _encoded(scene.backdrop))
    if scene.backdrop.shape != scene.pixels.shape:
        payload.add_bytes("seen", _encoded(scene.pixels))
    progress("attention")
    whole = _add_attention(payload, scene)
    _add_tokens(payload, scene)
    progress("positions and filters")
    _add_embedding(payload, scene)
    if scene.model.card.head == "classifier":
        progress("relevance")
        _add_classes(payload, scene)
        if "ablation" in asked:
            progress("heads switched off")
            payload.add("ablation", intervene.ablate_heads(scene.vit, scene.x, scene.target).numpy())
        if "trust" in asked:
            progress("trust")
            _add_trust(payload, scene)
    payload.header["whole"] = whole
    return payload


def _header(scene: Scene) -> dict[str, Any]:
    model, config, layout = scene.vit, scene.vit.config, scene.vit.layout
    card = model.card
    return {
        "format": FORMAT,
        "model": {
            "name": short(card.name),  # a path of this machine is nobody's business
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
        "picture": {"name": short(scene.name), "size": list(scene.backdrop.shape[:2])},
        "start": {"layer": scene.layer, "head": scene.choice.head, "query": scene.choice.query},
        "predictions": predictions(scene),
        "views": {name: {"title": v.title, "read": v.read, "beware": v.beware} for name, v in VIEWS.items()},
        "shapes": [[str(step), str(shape)] for step, shape in trace(model)],
        "about": [
            [label, short(text) if label == "name" else text]
            for lines in examine(model).values()
            for label, text in lines
            if label != "file"
        ],
    }


def predictions(scene: Scene) -> list[dict[str, Any]]:
    """The likeliest classes, best first; none where the model is no classifier."""
    if scene.model.card.head != "classifier":
        return []
    probabilities = scene.logits.softmax(dim=-1)
    best = scene.logits.argsort(descending=True, stable=True)[:NAMED].tolist()
    return [
        {
            "index": i,
            "label": scene.model.card.label(i),
            "probability": probabilities[i].item(),
            "logit": scene.logits[i].item(),
        }
        for i in best
    ]


def _encoded(pixels: np.ndarray) -> bytes:
    """A small picture without loss, a large one as WebP."""
    file = io.BytesIO()
    options: dict[str, Any] = {"format": "WEBP", "quality": 88} if max(pixels.shape) > 64 else {"format": "PNG"}
    pillow.fromarray(pixels).save(file, **options)
    return file.getvalue()


def _add_attention(payload: Payload, scene: Scene) -> bool:
    """The whole attention where a page can hold it, else the class token's rows; and what follows from it."""
    model, config, layout = scene.vit, scene.vit.config, scene.vit.layout
    whole = config.depth * config.heads * layout.tokens**2 <= MOST_NUMBERS
    with torch.inference_mode(), capture(model, "norm1") as captured:
        model(scene.x)
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
    payload.add("similar", inside_tokens.similarity_of_layers(captured.stack("norm1").float()))  # [l l]
    if whole:
        with torch.inference_mode():
            options = {name: getattr(scene.choice, name) for name in ("fusion", "discard", "residual")}
            flow = rollout.rollout(torch.from_numpy(np.stack(rows))[:, None], layout=layout, **options)[0]  # [t t]
        payload.add("rollout", flow, scaled=1)
    return whole


def _add_tokens(payload: Payload, scene: Scene) -> None:
    layout = scene.vit.layout
    with torch.inference_mode():
        lengths = torch.stack([inside_tokens.norms(one.float(), layout) for one in scene.outputs])
        colours = [
            inside_tokens.principal_colours(scene.vit.norm(one)[None].float(), layout)[0] for one in scene.outputs
        ]
    payload.add("norms", lengths, scaled=2)  # [l r c]
    payload.add("colours", (torch.stack(colours).clamp(0, 1) * 255).round().byte().cpu().numpy())  # [l r c 3]


def _add_embedding(payload: Payload, scene: Scene) -> None:
    if scene.vit.config.position != "none":
        similarity = inside_position.similarity(scene.vit).float()
        patches = scene.vit.layout.patches
        payload.add("positions", similarity.reshape(patches, patches), scaled=1)  # [n n], cosine
    pictures, shares = inside_filters.principal_filters(scene.vit.patch_embed.proj.weight, count=28)
    payload.add("filters", (pictures.clamp(0, 1) * 255).round().byte().cpu().numpy())  # [28 p q c]
    payload.add("filters.share", shares)


def _add_classes(payload: Payload, scene: Scene) -> None:
    shown = [each["index"] for each in payload.header["predictions"][:EXPLAINED]]
    shown = [scene.target, *(i for i in shown if i != scene.target)][:EXPLAINED]  # the class in question comes first
    payload.header["explained"] = [{"index": i, "label": scene.model.card.label(i)} for i in shown]
    maps: dict[str, list[Tensor]] = {"relevance": [], "gradient × attention": [], "CAM": [], "integrated gradients": []}
    slopes = []
    for index in shown:
        one = scene.asked(Choice(target=index))
        for name, found in maps.items():
            if name == "relevance" or index == scene.target:
                found.append(heat.heat(name, one))
        slopes.append(importance.head_importance(scene.vit, scene.x, index).float().cpu())
    for name, found in maps.items():
        payload.add(f"map/{name}", torch.stack(found), scaled=2)  # [classes r c]
    payload.add("importance", torch.stack(slopes))  # [classes l h]
    answers = lens.lens(scene.vit, scene.x)[:, 0].float().softmax(dim=-1).cpu()  # [l+1 classes]
    best, index = answers.max(dim=-1)
    payload.header["lens"] = [
        {"label": scene.model.card.label(i), "probability": p}
        for i, p in zip(index.tolist(), best.tolist(), strict=True)
    ]
    payload.add("lens", answers[:, shown].T)  # [classes l+1]


def _add_trust(payload: Payload, scene: Scene) -> None:
    found = heat.comparable(scene)
    deletion, insertion = heat.curves(found, scene)
    alike = heat.survives(found, scene)
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
