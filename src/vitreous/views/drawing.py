"""Compute and draw, paired: each function takes a `Inspection` and gives figures by name.

`inside/` computes, `figures/` draws; nothing else happens here. `views/registry.py` gives each title and sentences.
"""

from collections.abc import Callable
from math import log

import torch
from matplotlib.figure import Figure
from torch import Tensor

from vitreous.figures import bars, curves, filters, maps, matrix, position, table
from vitreous.inside import (
    attention,
    faithfulness,
    intervene,
    position_similarity,
    representations,
)
from vitreous.inside import filters as inside_filters
from vitreous.inside import (
    head_importance as importance,
)
from vitreous.inside import (
    logit_lens as lens,
)
from vitreous.inside.attention import attention_of
from vitreous.inside.capture import capture
from vitreous.models.resnet import ResNet
from vitreous.models.summary import trace
from vitreous.views import maps as heat
from vitreous.views.inspection import Choice, Inspection

Figures = dict[str, Figure]
"""Figures by what sets them apart within the view; one alone has the name ''."""


def predictions(inspection: Inspection) -> Figures:
    """The eight likeliest classes as bars."""
    order = inspection.logits.argsort(descending=True, stable=True)[:8].tolist()
    probabilities = inspection.logits.softmax(dim=-1)
    labels = [inspection.model.card.label(i) for i in order]
    return {
        "": bars.draw_predictions(
            labels, probabilities[order].tolist(), inspection.logits[order].tolist(), title="What it sees"
        )
    }


def patches(inspection: Inspection) -> Figures:
    """The image with its grid, and cut into patches."""
    rows, columns = inspection.vit.layout.grid
    return {"": maps.draw_patches(inspection.pixels, inspection.vit.layout.grid, title=f"{rows} × {columns} patches")}


def shapes(inspection: Inspection) -> Figures:
    """A table of the shapes at each step."""
    return {"": table.draw_table(trace(inspection.vit), title="Shapes at each step")}


def positions(inspection: Inspection) -> Figures:
    """A tile for each patch, and the chosen or the middle one enlarged."""
    similarity = position_similarity.position_similarity(inspection.vit).cpu().numpy()
    rows, columns = inspection.vit.layout.grid
    place = inspection.query_place or (rows // 2, columns // 2)
    return {
        "": position.draw_similarity_tiles(similarity, title="Similarity of position embeddings"),
        "one": position.draw_similarity_one(similarity[place], place=place, title=f"Position {place} and all others"),
    }


def embedding_filters(inspection: Inspection) -> Figures:
    """A ViT's principal components, or a ResNet's first filters."""
    if isinstance(inspection.model, ResNet):
        images = inside_filters.first_filters(inspection.model.conv1.weight)
        return {"": filters.draw_filters(images.cpu().numpy(), title="Filters of the first convolution")}
    images, shares = inside_filters.principal_filters(inspection.vit.patch_embed.proj.weight, count=28)
    title = "Principal components of the patch embedding's filters"
    return {"": filters.draw_filters(images.cpu().numpy(), explained=shares.tolist(), title=title)}


def attention_matrix(inspection: Inspection) -> Figures:
    """One block's matrix, of one head or their mean, in up to three scales."""
    whole = inspection.matrix(inspection.layer)
    head = inspection.choice.head
    chosen = whole.mean(dim=0) if head is None else whole[head]
    name = "mean over heads" if head is None else f"head {head % inspection.vit.config.heads}"
    ways = {
        "raw": lambda m: m,
        "log": attention.log_scaled,
        "layer-norm": attention.layer_normed,
    }
    figures = {}
    for way, change in ways.items():
        if inspection.choice.scale in (None, way):
            title = f"Attention of block {inspection.layer}, {name}"
            prefix = inspection.vit.layout.prefix
            figures[way] = matrix.draw_matrix(change(chosen).numpy(), prefix=prefix, scale=way, title=title)  # type: ignore[arg-type]
    return figures


def attention_rows(inspection: Inspection) -> Figures:
    """One token's row in one block, head by head."""
    heats = inspection.vit.layout.to_grid(inspection.rows[inspection.layer, inspection.heads])  # [heads rows columns]
    titles = [f"head {head}" for head in inspection.heads]
    title = f"Where the {inspection.query_name} looks, block {inspection.layer}"
    return {
        "": maps.draw_maps(
            inspection.backdrop, heats.numpy(), titles, label="attention", suptitle=title, marked=inspection.query_place
        )
    }


def attention_maps(inspection: Inspection) -> Figures:
    """One token's rows through all blocks, and all of their heads."""
    heats = inspection.vit.layout.to_grid(inspection.rows)  # [layers heads rows columns]
    depth, heads = heats.shape[:2]
    titles = [f"block {layer}" for layer in range(depth)]
    title = f"Where the {inspection.query_name} looks, mean over heads"
    by_block = maps.draw_maps(
        inspection.backdrop,
        heats.mean(dim=1).numpy(),
        titles,
        label="attention",
        suptitle=title,
        marked=inspection.query_place,
    )
    grid = maps.draw_grid(
        heats.numpy(),
        [str(i) for i in range(depth)],
        [str(i) for i in range(heads)],
        title=f"Where the {inspection.query_name} looks, every block and head",
        label="attention",
    )
    return {"": by_block, "heads": grid}


def one_map(name: str, title: str, label: str, diverging: bool = False) -> Callable[[Inspection], Figures]:
    """A view that lays one of `MAPS` over the image; `{target}` in the title is the class explained."""

    def draw(inspection: Inspection) -> Figures:
        words = title.format(target=inspection.target_label) if "{target}" in title else title
        if name == "rollout":
            words += rollout_options(inspection)
        values = heat.heat(name, inspection).numpy()
        return {"": maps.draw_map(inspection.backdrop, values, title=words, label=label, diverging=diverging)}

    return draw


def rollout_options(inspection: Inspection) -> str:
    """What was chosen for rollout, where it is not the usual."""
    choice, usual = inspection.choice, Choice()
    said = [] if choice.query is None else [f"of the {inspection.query_name}"]
    said += [f"{choice.fusion} over heads"] if choice.fusion != usual.fusion else []
    said += [f"{choice.discard:.0%} dropped"] if choice.discard else []
    said += [f"shortcut's share {choice.residual:g}"] if choice.residual != usual.residual else []
    return f" ({', '.join(said)})" if said else ""


def _by_layer(inspection: Inspection, measure: Callable[[Tensor], Tensor]) -> Tensor:
    """Something of every block's whole attention `[heads t t]`, one block at a time: `[layers heads]`."""
    with torch.inference_mode(), capture(inspection.vit, "norm1") as captured:
        inspection.vit(inspection.x)
    depth = inspection.vit.config.depth
    each = (attention_of(inspection.vit, i, captured[f"blocks.{i}.norm1"])[0].float() for i in range(depth))
    return torch.stack([measure(one).cpu() for one in each])


def distance(inspection: Inspection) -> Figures:
    """How far every head of every block looks."""
    layout, patch = inspection.vit.layout, inspection.vit.config.patch
    values = _by_layer(inspection, lambda a: attention.mean_distance(a, layout, patch))
    return {"": curves.draw_distance(values.numpy(), title="How far heads look")}


def entropy(inspection: Inspection) -> Figures:
    """How widely every head of every block looks."""
    values = _by_layer(inspection, attention.entropy)
    return {
        "": curves.draw_entropy(
            values.numpy(), ceiling=log(inspection.vit.layout.tokens), title="How sharply heads look"
        )
    }


def head_importance(inspection: Inspection) -> Figures:
    """The slope of the logit for every head."""
    values = importance.head_importance(inspection.vit, inspection.x, inspection.target).float().cpu().numpy()
    title = f"How much the logit of {inspection.target_label} hangs on each head"
    return {"": matrix.draw_layers_heads(values, title=title, label="|slope of the logit|")}


def ablation(inspection: Inspection) -> Figures:
    """The sixteen heads that do most when they are switched off, and all of them as a matrix."""
    effect = intervene.ablate_heads(inspection.vit, inspection.x, inspection.target)
    order = effect.abs().flatten().argsort(descending=True)[:16].tolist()
    heads = effect.shape[1]
    names = [f"block {i // heads}, head {i % heads}" for i in order]
    title = f"Switched off, a head changes the logit of {inspection.target_label}"
    return {
        "": bars.draw_ranking(names, effect.flatten()[order].tolist(), title=title, label="change of the logit"),
        "heads": matrix.draw_layers_heads(effect.numpy(), title=title, label="change of the logit", diverging=True),
    }


def logit_lens(inspection: Inspection) -> Figures:
    """The best class after each block, and how the final one grows."""
    probabilities = (
        lens.logit_lens(inspection.vit, inspection.x)[:, 0].float().softmax(dim=-1).cpu()
    )  # [layers+1 classes]
    best, index = probabilities.max(dim=-1)
    labels = [inspection.model.card.label(i) for i in index.tolist()]
    curve = probabilities[:, inspection.target].tolist()
    steps = ["embedding", *(f"block {i}" for i in range(len(curve) - 1))]
    title = "What the model would answer after each block"
    return {
        "": bars.draw_lens(
            labels, best.tolist(), curve, target_label=inspection.target_label, layers=steps, title=title
        )
    }


def token_colours(inspection: Inspection) -> Figures:
    """The tokens' three main directions as colours."""
    normed = inspection.vit.norm(
        inspection.outputs[inspection.layer]
    )  # else a few very long tokens would decide the colours
    colours = representations.principal_colours(normed[None].float(), inspection.vit.layout)[0]
    title = f"Tokens after block {inspection.layer}: three principal components as colours"
    return {"": maps.draw_colours(inspection.backdrop, colours.cpu().numpy(), title=title)}


def token_norms(inspection: Inspection) -> Figures:
    """The length of each token."""
    lengths = (
        representations.token_norms(inspection.outputs[inspection.layer].float(), inspection.vit.layout).cpu().numpy()
    )
    return {
        "": maps.draw_map(
            inspection.backdrop, lengths, title=f"Length of the tokens after block {inspection.layer}", label="norm"
        )
    }


def layers(inspection: Inspection) -> Figures:
    """How alike what any two blocks read is."""
    with torch.inference_mode(), capture(inspection.vit, "norm1") as captured:  # normed, as above
        inspection.vit(inspection.x)
    values = representations.layer_similarity(captured.stack("norm1").float()).cpu().numpy()
    labels = [str(i) for i in range(len(values))]
    return {"": matrix.draw_similarity(values, labels, title="Similarity of what blocks read (CKA)")}


def trust(inspection: Inspection) -> Figures:
    """Deletion and insertion curves of all maps, and how alike they stay with fresh weights."""
    found = heat.comparable(inspection)
    deletion, insertion = heat.curves(found, inspection)
    missing = "blurred"
    if deletion[0, -1] > deletion[0, 0] / 2:  # a blur that the model still sees through takes nothing away
        deletion, insertion = heat.curves(found, inspection, baseline="mean")
        missing = "in the mean colour"
    pairs = list(zip(found, deletion, insertion, strict=True))
    alike = heat.survives(found, inspection)
    return {
        "": curves.draw_faithfulness(
            {name: (d.numpy(), i.numpy()) for name, d, i in pairs},
            {name: (faithfulness.area(d).item(), faithfulness.area(i).item()) for name, d, i in pairs},
            title=f"Which map finds what makes it {inspection.target_label}? Missing patches are shown {missing}",
            plain=heat.BLIND,
        ),
        "sanity": bars.draw_ranking(
            list(alike),
            list(alike.values()),
            title="Maps of this model and of one with fresh weights: how alike?",
            label="rank correlation, −1 to 1: near 0 is good",
            limits=(-1, 1),
        ),
    }
