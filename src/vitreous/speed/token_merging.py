"""Token merging: fewer tokens in every block, so less to compute; the answers change a little.

ToMe (Bolya et al., "Token Merging: Your ViT But Faster", 2022): in each block, between attention and MLP, patches are
dealt into two sets in turn, each of the first finds the one of the second whose key is most like its own, and the `r`
closest pairs become one token each, their mean weighted by how many patches they stand for (their size). Attention adds
the log of the size to a key's scores, so that a merged token counts as often as its patches did. Class, distillation
and register tokens are never merged. Works on trained models as they are; `results/speed_folder.md` has what it costs.

Shapes:  b images · t tokens · d width · h heads · k width of one head · m, n tokens of the two sets
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.models.last_block import tokens_of_heads
from vitreous.models.vit import Attention, TransformerBlock, ViT

Compute = Callable[[Any, Tensor], Tensor]


def merged(model: ViT, tokens_per_block: int) -> Callable[[Tensor], Tensor]:
    """The model as a callable of images `[b c H W]` that merges so many tokens in each block: logits `[b classes]`.

    >>> from vitreous.models.variants import variant
    >>> model = ViT(variant("vit_femto_patch4_32")).eval()
    >>> x = torch.randn(2, 3, 32, 32)
    >>> merged(model, 8)(x).shape == model(x).shape, torch.equal(merged(model, 0)(x), model(x))
    (True, True)
    """
    compute = merging(tokens_per_block)
    return lambda x: compute(model, x)


def merging(tokens_per_block: int, *, features: bool = False) -> Compute:
    """What `optimize` and `run` take as `compute`: logits, or with `features` what stands for an image (`embed`)."""
    if tokens_per_block < 0:
        raise ValueError(f"tokens to merge in each block: 0 or more, got {tokens_per_block}")

    def compute(model: nn.Module, x: Tensor) -> Tensor:
        if not isinstance(model, ViT):
            raise ValueError("only a Vision Transformer has tokens to merge: leave --merge out for a ResNet")
        read = tokens_of_heads(model) if tokens_per_block and model.config.pool == "token" else None
        tokens, size = merged_tokens(model, x, tokens_per_block, read)
        if features and (model.card is None or model.card.head == "classifier"):
            return _pooled(model, tokens, size)
        if size is None or model.config.pool == "token":
            return model.forward_head(tokens)
        return model.head(_pooled(model, tokens, size))

    compute.__name__ = f"{'features' if features else 'logits'}_merging_{tokens_per_block}"  # a choice is kept by it
    return compute


def merged_tokens(
    model: ViT, x: Tensor, tokens_per_block: int, read: int | None = None
) -> tuple[Tensor, Tensor | None]:
    """The last block's normalised tokens `[b t d]` and their sizes `[b t 1]`, None where nothing was merged.

    With `read` only so many of the first, which are no patches: the last block need not work out the others.
    """
    x, size = model.embed(x), None
    for i, block in enumerate(model.blocks):
        assert isinstance(block, TransformerBlock)
        rows = read if i == len(model.blocks) - 1 else None
        branch, keys = attention_and_keys(block.attn, block.norm1(x), size, rows)
        x = x[:, :rows] + block.skip(block.ls1(branch))
        if rows is None:
            x, size = merge(x, size, keys, tokens_per_block, model.layout.prefix)
        x = x + block.skip(block.ls2(block.mlp(block.norm2(x))))
    return model.norm(x), size


def attention_and_keys(
    attention: Attention, x: Tensor, size: Tensor | None, rows: int | None = None
) -> tuple[Tensor, Tensor]:
    """Attention in which each key counts `size` times, `[b t d]` or its first rows, and the keys' mean over heads."""
    b, t, d = x.shape
    qkv = attention.qkv(x).reshape(b, t, 3, attention.heads, d // attention.heads)
    q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # [b h t k]
    q, k = attention.q_norm(q[:, :, :rows]), attention.k_norm(k)
    counts = None if size is None else size.log().view(b, 1, 1, t).to(q.dtype)
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=counts)
    return attention.proj_drop(attention.proj(mixed.transpose(1, 2).flatten(2))), k.mean(dim=1)  # keys [b t k]


def merge(
    x: Tensor, size: Tensor | None, keys: Tensor, tokens_per_block: int, prefix: int
) -> tuple[Tensor, Tensor | None]:
    """Tokens `[b t d]` with the closest pairs made one: `[b t-r d]`, and sizes `[b t-r 1]`; the prefix stays."""
    t = x.shape[1]
    r = min(tokens_per_block, (t - prefix) // 2)
    if r == 0:
        return x, size
    if size is None:
        size = x.new_ones(*x.shape[:2], 1, dtype=torch.float32)
    first = prefix + prefix % 2  # even places look for a partner among odd ones; the prefix takes no part
    second = prefix + 1 - prefix % 2
    keys = F.normalize(keys.float(), dim=-1)
    scores = keys[:, first::2] @ keys[:, second::2].transpose(1, 2)  # [b m n]
    best, partner = scores.max(dim=-1)  # [b m]
    order = best.argsort(dim=-1, descending=True, stable=True)
    goes, stays = order[:, :r], order[:, r:].sort(dim=-1).values  # who is merged, who remains, in its old order
    # one row a receiver and one column a giver: a matrix product adds up, in the same order every time
    receives = (partner.gather(1, goes)[:, None] == torch.arange(scores.shape[2], device=x.device)[:, None]).float()

    def together(values: Tensor) -> Tensor:  # [b t e] → [b t-r e], sums
        givers = values[:, first::2]
        kept, given = (givers.gather(1, i[..., None].expand(-1, -1, values.shape[2])) for i in (stays, goes))
        return torch.cat([values[:, :prefix], kept, values[:, second::2] + receives @ given], dim=1)

    sums, sizes = together(x.float() * size), together(size)
    return (sums / sizes).to(x.dtype), sizes


def _pooled(model: ViT, tokens: Tensor, size: Tensor | None) -> Tensor:
    """As `ViT.pool`, where a mean over patches counts each token as often as the patches it stands for."""
    if size is None or "mean" not in model.config.pool:
        return model.pool(tokens)
    prefix = model.layout.prefix
    weight = size[:, prefix:] / size[:, prefix:].sum(dim=1, keepdim=True)
    mean = (tokens[:, prefix:].float() * weight).sum(dim=1).to(tokens.dtype)
    parts = [tokens[:, 0]] if "token" in model.config.pool else []
    return model.fc_norm(torch.cat([*parts, mean], dim=-1))
