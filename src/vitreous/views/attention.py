"""Views of attention: its maps, its matrix, how far and how widely heads attend, and rollout."""

from collections.abc import Callable
from math import log
from typing import Any

import torch
from torch import Tensor

from vitreous.figures.kinds import Dots, Map, Matrix, Results
from vitreous.figures.selection import Axis, MatrixScale
from vitreous.inside import attention, rollout
from vitreous.inside.intervene import tokens_left
from vitreous.views.inspection import Choice, Inspection
from vitreous.views.maps import heat_map
from vitreous.views.view import View

SCALES: dict[MatrixScale, str] = {
    "raw": "weights",
    "log": "decimal logarithm of the weights",
    "layer-norm": "weights, each row layer-normalised",
}
"""How an attention matrix is shown."""


def _map(inspection: Inspection, title: str, panels: tuple[Axis, ...], **options: object) -> Map:
    """Compute the view of every query's attention, or of the chosen one's where a model is too large to keep all."""
    axes: tuple[Axis, ...] = ("block", "head", "query") if inspection.keeps_attention else ("block", "head")
    return Map(
        inspection.attention,
        inspection.vit.layout.grid,
        title,
        axes=axes,
        at={"block": inspection.block, "head": inspection.choice.head, "query": inspection.query},
        names={"query": inspection.token_names},
        prefix=inspection.vit.layout.prefix,
        label="attention",
        panels=panels,
        **inspection.left_out,
        says="{block}, {head}: the {query} attends most to {peak} ({value} of its attention).",
        **options,  # type: ignore[arg-type]
    )


def rows(inspection: Inspection) -> Map:
    """Compute the view of one query's attention in one block, head by head."""
    return _map(inspection, "Attention of the {query}, {block}", ("head",), chosen=tuple(inspection.heads))


def maps(inspection: Inspection) -> Results:
    """Compute the view of one query's attention through all blocks, and in every head of each."""
    return {
        "": _map(inspection, "Attention of the {query} through the blocks, mean over heads", ("block",)),
        "heads": _map(inspection, "Attention of the {query}, every block and head", ("block", "head")),
    }


def matrix(inspection: Inspection) -> Results:
    """Compute the view of one block's attention matrix, of one head or their mean, on up to three scales."""
    if not inspection.keeps_attention:
        raise ValueError("the attention matrices of a model this large do not fit a page")
    head, scale = inspection.choice.head, inspection.choice.scale
    return {
        each: Matrix(
            inspection.attention,
            "Attention of {block}, {head}",
            rows="query token",
            columns="key token",
            axes=("block", "head"),
            at={"block": inspection.block, "head": head if head is None else head % inspection.vit.config.heads},
            label=SCALES[each],
            scale=each,
            prefix=inspection.vit.layout.prefix,
        )
        for each in SCALES
        if scale in (None, each)
    }


def _by_block(inspection: Inspection, measure: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply a measure to every block's attention for a view, `[heads t t]`: `[blocks heads]`."""
    return torch.stack([measure(one) for one in inspection.each_attention()])


def distance(inspection: Inspection) -> Dots:
    """Compute the view of how far each head of each block attends, in pixels."""
    layout, patch, left = inspection.vit.layout, inspection.vit.config.patch, tokens_left(inspection.vit)
    values = _by_block(inspection, lambda one: attention.mean_distance(one * left[:, None].to(one), layout, patch))
    return Dots(values.numpy(), "How far heads attend", label="mean attention distance (px)", unit=" px")


def entropy(inspection: Inspection) -> Dots:
    """Compute the view of how widely each head of each block attends, in nats."""
    left = tokens_left(inspection.vit)  # other rows are those of patches that an intervention removed
    values = _by_block(inspection, lambda one: attention.entropy(one[..., left, :]))
    ceiling = log(int(left.sum()))
    return Dots(values.numpy(), "How widely heads attend", label="entropy (nats)", ceiling=ceiling)


def rollout_map(inspection: Inspection) -> Map:
    """Compute the view of rollout, of every query or the chosen one where a model is too large to keep all."""
    choice, layout = inspection.choice, inspection.vit.layout
    axes: tuple[Axis, ...] = ("query",) if inspection.keeps_attention else ()
    if inspection.keeps_attention:
        blocks = torch.from_numpy(inspection.attention)[:, None]
        options: dict[str, Any] = {"fusion": choice.fusion, "discard": choice.discard, "residual": choice.residual}
        found = rollout.rollout(blocks, layout=layout, **options)[0]
    else:
        found = heat_map("rollout", inspection).flatten()
    return Map(
        found.numpy(),
        layout.grid,
        f"Attention rollout{describe_rollout(inspection)}",
        axes=axes,
        at={"query": inspection.query},
        names={"query": inspection.token_names},
        prefix=layout.prefix if axes else 0,
        label="share of the query token",
        from_zero=False,
        **inspection.left_out,
        says="{value} of the {query} can have come from {peak}.",
    )


def describe_rollout(inspection: Inspection) -> str:
    """Describe the options of attention rollout, for its view, where they are not the defaults."""
    choice, default = inspection.choice, Choice()
    words = [] if choice.query is None else [f"of the {inspection.query_name}"]
    words += [f"{choice.fusion} over heads"] if choice.fusion != default.fusion else []
    words += [f"{choice.discard:.0%} dropped"] if choice.discard else []
    words += [f"residual {choice.residual:g}"] if choice.residual != default.residual else []
    return f" ({', '.join(words)})" if words else ""


ROWS = View(
    "Attention, head by head",
    "One row of the attention matrix laid out as the image, for each head of a block. Different heads attend to different "
    "things.",
    "Each map has its own scale: compare where heads attend, not how strongly.",
    rows,
    group="Where",
)
MAPS = View(
    "Attention through the blocks",
    "The attention of what the head reads, the class token or the average patch, or of the query you choose, from the first "
    "block to the last; then of every head.",
    "Late tokens are mixtures: attention to a patch's token is no longer attention to that patch alone. Each map has its own "
    "scale.",
    maps,
    group="Where",
)
MATRIX = View(
    "Attention matrix",
    "Row q is the attention of query token q over all key tokens: each row sums to 1. Class and register tokens, if any, come "
    "first. A bright diagonal is a token that attends to itself; a bright column is a token that all others attend to. The scales: raw "
    "weights; their decimal logarithm; each row layer-normalised.",
    "Attention says what is mixed, not what follows from it: a token may be attended to and ignored later.",
    matrix,
)
DISTANCE = View(
    "How far heads attend",
    "Mean distance between a patch and the patches it attends to, for each head of each block. Early blocks have local and "
    "global heads side by side; late ones attend everywhere.",
    "An average over this image: a head may attend far from one patch and near to another.",
    distance,
)
ENTROPY = View(
    "How widely heads attend",
    "Entropy of attention for each head: at the dashed line a head attends to all tokens alike, at 0 to a single one.",
    "A narrow head is not an important one: what follows may ignore it.",
    entropy,
    more=True,
)
ROLLOUT = View(
    "Attention rollout",
    "Attention multiplied through all blocks, with a share of each token passing by the residual: how much of each patch can "
    "have reached the query token.",
    "It is the same for every class and knows neither values nor MLPs: it shows possible flow, not a reason.",
    rollout_map,
    group="Where",
)
