"""Attention maps, attention distance, attention entropy, and what the head reads.

The functions take attention as `capture` records it, of one layer or of several stacked, and return heat maps on the
grid of patches, distances in pixels, and entropies in nats.

Shapes:  l layers · b images · h heads · q query rows · t tokens · n patches
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.inside.capture import Internals, capture
from vitreous.inside.glossary import full_name
from vitreous.inside.intervene import tokens_left
from vitreous.models.dense_head import RegionHead
from vitreous.models.token_layout import TokenLayout
from vitreous.models.vit import TransformerBlock, ViT


def class_maps(attention: Tensor | Internals, layout: TokenLayout, *, query: int | None = None) -> Tensor:
    """Arrange one token's attention as a map on the grid of patches: `[… q t]` or internals → `[… rows columns]`.

    `query` is a token's index, `layout.index(row, column)` for a patch. The default is the class token, or in a model
    without one the mean over all patches' rows. Attention captured with `queries=[i]` has one row, which is used.

    >>> class_maps(torch.eye(5).expand(2, 3, 5, 5), TokenLayout(grid=(2, 2)), query=4)[0, 0]
    tensor([[0., 0.],
            [0., 1.]])
    """
    if isinstance(attention, Internals):
        attention = attention.stack("attention")  # [l b h q t]
    count = attention.shape[-2]
    if count not in (1, layout.tokens):
        raise ValueError(f"expected the rows of one token or of all {layout.tokens}, got {count}")
    query = layout.class_index if query is None else query
    if count == 1:
        row = attention[..., 0, :]
    elif query is None:
        row = layout.to_grid(attention, dim=-2).mean(dim=(-3, -2))  # [… t]
    else:
        layout.patch(query)  # raises for a token that does not exist
        row = attention[..., query, :]
    return layout.to_grid(row)


def mean_distance(attention: Tensor, layout: TokenLayout, patch_size: int | tuple[int, int]) -> Tensor:
    """Compute each head's mean attention distance in pixels (the paper's figure 7, right): `[… h t t]` → `[… h]`.

    Only attention between patches counts, scaled to sum to 1 for each query patch; the distance of two patches is that
    of their centres. A query patch that attends to no patch has no distance and is left out of the mean.

    >>> mean_distance(torch.eye(4)[None], TokenLayout((2, 2), class_token=False), patch_size=16)
    tensor([0.])
    """
    height, width = (patch_size, patch_size) if isinstance(patch_size, int) else patch_size
    rows, columns = (torch.arange(side) for side in layout.grid)
    centres = torch.cartesian_prod(rows * height, columns * width)  # [n 2]
    among = layout.to_grid(layout.to_grid(attention).flatten(-2), dim=-2).flatten(-3, -2)  # [… h n n]
    among = among.to(torch.promote_types(among.dtype, torch.float32))
    between = (centres[:, None] - centres).to(among).norm(dim=-1)  # [n n]
    result: Tensor = ((among * between).sum(dim=-1) / among.sum(dim=-1)).nanmean(dim=-1)
    return result


def entropy(attention: Tensor) -> Tensor:
    """Compute the entropy of attention in nats, averaged over query rows: `[… q t]` → `[…]`; uniform gives log t.

    >>> torch.allclose(entropy(torch.full((3, 8, 8), 1 / 8)).exp(), torch.tensor(8.0))
    True
    """
    attention = attention.to(torch.promote_types(attention.dtype, torch.float32))
    result: Tensor = torch.special.entr(attention).sum(dim=-1).mean(dim=-1)
    return result


@torch.no_grad()
def attention_of(model: ViT, layer: int, normed: Tensor) -> Tensor:
    """Recompute one block's attention map `[b h t t]` from its input `blocks.{layer}.norm1`, `[b t d]`.

    For callers that need every layer's whole matrix one at a time: keeping `norm1` of all layers is cheap.
    """
    block = model.blocks[layer]
    assert isinstance(block, TransformerBlock)
    with capture(model, "attention", layers=[layer]) as internals:
        block.attn(normed)
    return internals[full_name("attention", layer)]


def pooled_by(model: ViT) -> tuple[str, ...]:
    """Name the pool's attention and values that `readout` needs of a model whose head reads by attention."""
    pools = model.attn_pool is not None and model.config.dense == "none"
    return ("pool.attention", "pool.v", "pool.mixed") if pools else ()


def readout(model: ViT, pooled: Tensor | None = None) -> Tensor:
    """Compute which rows of attention the head reads: a weight for each token, `[t]`.

    Weights sum to 1, but for what CaiT's class token keeps of itself. The class token has all of it, or shares it with
    a distillation token that has a head, or it is spread over patches. Attention pooling decides it anew for each
    image: given its attention `pooled`, `[b h 1 t]`, the result is `[b t]`.
    A dense head reads all patches alike; at a pixel, those around it (`models/dense_head.py`). In the place of patches
    that an intervention removed, a head reads the mean of those that are left.
    """
    layout, weights = model.layout, []
    if model.config.dense != "none":
        patches = torch.full(layout.grid, 1 / layout.patches, device=next(model.parameters()).device)
        shares = model.head.patch_shares(layout.grid) if isinstance(model.head, RegionHead) else patches
        return _over_patches_left(F.pad(shares.flatten(), (layout.prefix, 0)), model)
    if model.attn_pool is not None:
        if pooled is None:
            raise ValueError("this model pools by attention: capture pool.attention, and pass it as `pooled`")
        row = pooled.mean(dim=1)[:, 0, model.attn_pool.own :]  # what a class token keeps of itself is no token's
        return F.pad(row, (layout.tokens - row.shape[1], 0))  # tokens that are not pooled stand in front
    rows = torch.eye(layout.tokens, device=next(model.parameters()).device)
    if "token" in model.config.pool:
        weights.append(rows[layout.class_index])
    if model.head_dist is not None:
        weights.append(rows[layout.distillation_index])
    if "mean" in model.config.pool:
        weights.append(layout.to_grid(rows, dim=0).mean(dim=(0, 1)))
    return _over_patches_left(torch.stack(weights).mean(dim=0), model)


def _over_patches_left(row: Tensor, model: ViT) -> Tensor:
    """Spread what the head reads of removed patches, of the row `[t]`, over those that are left."""
    if (left := tokens_left(model).to(row.device)).all():
        return row
    among = F.pad(left[model.layout.prefix :].to(row), (model.layout.prefix, 0))  # the patches that are left
    return torch.where(left, row, 0) + row[~left].sum() * among / among.sum()
