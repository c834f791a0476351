"""Compute and draw, paired: each function takes a `Scene` and gives figures by name.

`inside/` computes, `figures/` draws; nothing else happens here. `views/registry.py` gives each its title and its sentences.
"""

from collections.abc import Callable
from math import log

import torch
from matplotlib.figure import Figure
from torch import Tensor

from vitreous.figures import bars, curves, filters, maps, matrix, position, table
from vitreous.inside import attention, faithfulness, importance, intervene, lens
from vitreous.inside import filters as inside_filters
from vitreous.inside import position as inside_position
from vitreous.inside import tokens as inside_tokens
from vitreous.inside.attention import attention_of
from vitreous.inside.capture import capture
from vitreous.models.resnet import ResNet
from vitreous.models.summary import trace
from vitreous.views.inspection import Choice, Scene
from vitreous.views.registry import maps as heat

Figures = dict[str, Figure]
"""Figures by what sets them apart within the view; one alone has the name ''."""


def predictions(scene: Scene) -> Figures:
    """The eight likeliest classes as bars."""
    order = scene.logits.argsort(descending=True, stable=True)[:8].tolist()
    probabilities = scene.logits.softmax(dim=-1)
    labels = [scene.model.card.label(i) for i in order]
    return {
        "": bars.draw_predictions(
            labels, probabilities[order].tolist(), scene.logits[order].tolist(), title="What it sees"
        )
    }


def patches(scene: Scene) -> Figures:
    """The picture with its grid, and cut into patches."""
    rows, columns = scene.vit.layout.grid
    return {"": maps.draw_patches(scene.pixels, scene.vit.layout.grid, title=f"{rows} × {columns} patches")}


def shapes(scene: Scene) -> Figures:
    """A table of the shapes at each step."""
    return {"": table.draw_table(trace(scene.vit), title="Shapes at each step")}


def positions(scene: Scene) -> Figures:
    """A tile for each patch, and the chosen or the middle one enlarged."""
    similarity = inside_position.similarity(scene.vit).cpu().numpy()
    rows, columns = scene.vit.layout.grid
    place = scene.query_place or (rows // 2, columns // 2)
    return {
        "": position.draw_similarity_tiles(similarity, title="Similarity of position embeddings"),
        "one": position.draw_similarity_one(similarity[place], place=place, title=f"Position {place} and all others"),
    }


def embedding_filters(scene: Scene) -> Figures:
    """A ViT's principal components, or a ResNet's first filters."""
    if isinstance(scene.model, ResNet):
        pictures = inside_filters.first_filters(scene.model.conv1.weight)
        return {"": filters.draw_filters(pictures.cpu().numpy(), title="Filters of the first convolution")}
    pictures, shares = inside_filters.principal_filters(scene.vit.patch_embed.proj.weight, count=28)
    title = "Principal components of the patch embedding's filters"
    return {"": filters.draw_filters(pictures.cpu().numpy(), explained=shares.tolist(), title=title)}


def attention_matrix(scene: Scene) -> Figures:
    """One block's matrix, of one head or their mean, in up to three scales."""
    whole = scene.matrix(scene.layer)
    head = scene.choice.head
    chosen = whole.mean(dim=0) if head is None else whole[head]
    name = "mean over heads" if head is None else f"head {head % scene.vit.config.heads}"
    ways = {
        "raw": lambda m: m,
        "log": attention.log_scaled,
        "layer-norm": attention.layer_normed,
    }
    figures = {}
    for way, change in ways.items():
        if scene.choice.scale in (None, way):
            title = f"Attention of block {scene.layer}, {name}"
            prefix = scene.vit.layout.prefix
            figures[way] = matrix.draw_matrix(change(chosen).numpy(), prefix=prefix, scale=way, title=title)  # type: ignore[arg-type]
    return figures


def attention_rows(scene: Scene) -> Figures:
    """One token's row in one block, head by head."""
    heats = scene.vit.layout.to_grid(scene.rows[scene.layer, scene.heads])  # [heads rows columns]
    titles = [f"head {head}" for head in scene.heads]
    title = f"Where the {scene.query_name} looks, block {scene.layer}"
    return {
        "": maps.draw_maps(
            scene.backdrop, heats.numpy(), titles, label="attention", suptitle=title, marked=scene.query_place
        )
    }


def attention_maps(scene: Scene) -> Figures:
    """One token's rows through all blocks, and all of their heads."""
    heats = scene.vit.layout.to_grid(scene.rows)  # [layers heads rows columns]
    depth, heads = heats.shape[:2]
    titles = [f"block {layer}" for layer in range(depth)]
    title = f"Where the {scene.query_name} looks, mean over heads"
    by_block = maps.draw_maps(
        scene.backdrop, heats.mean(dim=1).numpy(), titles, label="attention", suptitle=title, marked=scene.query_place
    )
    grid = maps.draw_grid(
        heats.numpy(),
        [str(i) for i in range(depth)],
        [str(i) for i in range(heads)],
        title=f"Where the {scene.query_name} looks, every block and head",
        label="attention",
    )
    return {"": by_block, "heads": grid}


def one_map(name: str, title: str, label: str, diverging: bool = False) -> Callable[[Scene], Figures]:
    """A view that lays one of `MAPS` over the picture; `{target}` in the title is the class explained."""

    def draw(scene: Scene) -> Figures:
        words = title.format(target=scene.target_label) if "{target}" in title else title
        if name == "rollout":
            words += rollout_options(scene)
        values = heat.heat(name, scene).numpy()
        return {"": maps.draw_map(scene.backdrop, values, title=words, label=label, diverging=diverging)}

    return draw


def rollout_options(scene: Scene) -> str:
    """What was chosen for rollout, where it is not the usual."""
    choice, usual = scene.choice, Choice()
    said = [] if choice.query is None else [f"of the {scene.query_name}"]
    said += [f"{choice.fusion} over heads"] if choice.fusion != usual.fusion else []
    said += [f"{choice.discard:.0%} dropped"] if choice.discard else []
    said += [f"shortcut's share {choice.residual:g}"] if choice.residual != usual.residual else []
    return f" ({', '.join(said)})" if said else ""


def _by_layer(scene: Scene, measure: Callable[[Tensor], Tensor]) -> Tensor:
    """Something of every block's whole attention `[heads t t]`, one block at a time: `[layers heads]`."""
    with torch.inference_mode(), capture(scene.vit, "norm1") as captured:
        scene.vit(scene.x)
    depth = scene.vit.config.depth
    each = (attention_of(scene.vit, i, captured[f"blocks.{i}.norm1"])[0].float() for i in range(depth))
    return torch.stack([measure(one).cpu() for one in each])


def distance(scene: Scene) -> Figures:
    """How far every head of every block looks."""
    layout, patch = scene.vit.layout, scene.vit.config.patch
    values = _by_layer(scene, lambda a: attention.mean_distance(a, layout, patch))
    return {"": curves.draw_distance(values.numpy(), title="How far heads look")}


def entropy(scene: Scene) -> Figures:
    """How widely every head of every block looks."""
    values = _by_layer(scene, attention.entropy)
    return {
        "": curves.draw_entropy(values.numpy(), ceiling=log(scene.vit.layout.tokens), title="How sharply heads look")
    }


def head_importance(scene: Scene) -> Figures:
    """The slope of the logit for every head."""
    values = importance.head_importance(scene.vit, scene.x, scene.target).float().cpu().numpy()
    title = f"How much the logit of {scene.target_label} hangs on each head"
    return {"": matrix.draw_layers_heads(values, title=title, label="|slope of the logit|")}


def ablation(scene: Scene) -> Figures:
    """The sixteen heads that do most when they are switched off, and all of them as a matrix."""
    effect = intervene.ablate_heads(scene.vit, scene.x, scene.target)
    order = effect.abs().flatten().argsort(descending=True)[:16].tolist()
    heads = effect.shape[1]
    names = [f"block {i // heads}, head {i % heads}" for i in order]
    title = f"Switched off, a head changes the logit of {scene.target_label}"
    return {
        "": bars.draw_ranking(names, effect.flatten()[order].tolist(), title=title, label="change of the logit"),
        "heads": matrix.draw_layers_heads(effect.numpy(), title=title, label="change of the logit", diverging=True),
    }


def logit_lens(scene: Scene) -> Figures:
    """The best class after each block, and how the final one grows."""
    probabilities = lens.lens(scene.vit, scene.x)[:, 0].float().softmax(dim=-1).cpu()  # [layers+1 classes]
    best, index = probabilities.max(dim=-1)
    labels = [scene.model.card.label(i) for i in index.tolist()]
    curve = probabilities[:, scene.target].tolist()
    steps = ["embedding", *(f"block {i}" for i in range(len(curve) - 1))]
    title = "What the model would answer after each block"
    return {
        "": bars.draw_lens(labels, best.tolist(), curve, target_label=scene.target_label, layers=steps, title=title)
    }


def token_colours(scene: Scene) -> Figures:
    """The tokens' three main directions as colours."""
    normed = scene.vit.norm(scene.outputs[scene.layer])  # else a few very long tokens would decide the colours
    colours = inside_tokens.principal_colours(normed[None].float(), scene.vit.layout)[0]
    title = f"Tokens after block {scene.layer}: three principal components as colours"
    return {"": maps.draw_colours(scene.backdrop, colours.cpu().numpy(), title=title)}


def token_norms(scene: Scene) -> Figures:
    """The length of each token."""
    lengths = inside_tokens.norms(scene.outputs[scene.layer].float(), scene.vit.layout).cpu().numpy()
    return {
        "": maps.draw_map(
            scene.backdrop, lengths, title=f"Length of the tokens after block {scene.layer}", label="norm"
        )
    }


def layers(scene: Scene) -> Figures:
    """How alike what any two blocks read is."""
    with torch.inference_mode(), capture(scene.vit, "norm1") as captured:  # normed, as above
        scene.vit(scene.x)
    values = inside_tokens.similarity_of_layers(captured.stack("norm1").float()).cpu().numpy()
    labels = [str(i) for i in range(len(values))]
    return {"": matrix.draw_similarity(values, labels, title="Similarity of what blocks read (CKA)")}


def trust(scene: Scene) -> Figures:
    """Deletion and insertion curves of all maps, and how alike they stay with fresh weights."""
    found = heat.comparable(scene)
    deletion, insertion = heat.curves(found, scene)
    missing = "blurred"
    if deletion[0, -1] > deletion[0, 0] / 2:  # a blur that the model still sees through takes nothing away
        deletion, insertion = heat.curves(found, scene, baseline="mean")
        missing = "in the mean colour"
    pairs = list(zip(found, deletion, insertion, strict=True))
    alike = heat.survives(found, scene)
    return {
        "": curves.draw_faithfulness(
            {name: (d.numpy(), i.numpy()) for name, d, i in pairs},
            {name: (faithfulness.area(d).item(), faithfulness.area(i).item()) for name, d, i in pairs},
            title=f"Which map finds what makes it {scene.target_label}? Missing patches are shown {missing}",
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
