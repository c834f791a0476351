"""Token merging: fewer tokens in every block, which is faster and changes the output a little.

ToMe (Bolya et al., "Token Merging: Your ViT But Faster", 2022): in each block, between attention and MLP, patches are
split alternately into two sets; each token of the first finds the token of the second with the most similar key, and
the `r` most similar pairs become one token each, their mean weighted by the number of patches they stand for (their
size). Attention adds the log of the size to a key's scores, so that a merged token counts as often as its patches.
Class, distillation and register tokens are never merged. No training is needed; `results/speed_folder.md` has the
accuracy.

Shapes:  b images · t tokens · d width · h heads · k width of one head · m, n tokens of the two sets
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.models.last_block import OutputKind, tokens_of_heads
from vitreous.models.rope import rotate
from vitreous.models.vit import Attention, TransformerBlock, ViT
from vitreous.speed.fused_ops import split_heads


def merging(tokens_per_block: int, output: OutputKind = "logits") -> Callable[[Any, Tensor], Tensor]:
    """Build a function of model and images `[b c H W]` that merges tokens in each block: logits, or pooled features.

    >>> from vitreous.models.variants import variant
    >>> model = ViT(variant("vit_femto_patch4_32")).eval()
    >>> x = torch.randn(2, 3, 32, 32)
    >>> merging(8)(model, x).shape == model(x).shape, torch.equal(merging(0)(model, x), model(x))
    (True, True)
    """
    if tokens_per_block < 0:
        raise ValueError(f"tokens to merge in each block: 0 or more, got {tokens_per_block}")

    def compute(model: nn.Module, x: Tensor) -> Tensor:
        check_merging(model, tokens_per_block, output)
        assert isinstance(model, ViT)
        read = tokens_of_heads(model) if tokens_per_block and model.config.pool == "token" else None
        tokens, size = merged_tokens(model, x, tokens_per_block, read)
        if output == "features":
            return _pooled(model, tokens, size)
        if model.config.dense != "none":  # nothing is merged
            logits: Tensor = model(x)
            return logits
        if size is None or model.config.pool == "token":
            return model.forward_head(tokens)
        result: Tensor = model.head(_pooled(model, tokens, size))
        return result

    return compute


def check_merging(model: nn.Module, tokens_per_block: int, output: OutputKind = "logits") -> None:
    """Raise an error that says why a model's tokens cannot be merged, if they cannot."""
    if not isinstance(model, ViT):
        raise ValueError("only a Vision Transformer has tokens to merge: leave --merge out for a ResNet")
    if tokens_per_block and not model.config.plain:
        raise ValueError("tokens are merged in a plain ViT alone: leave --merge out for this model")
    if tokens_per_block and model.config.rope != "none":
        raise ValueError("a merged token has no single position to rotate by: leave --merge out for rotary models")
    if tokens_per_block and model.config.dense != "none" and output == "logits":
        raise ValueError("a class for each pixel needs every patch's token: leave --merge out for a dense head")


def merged_tokens(
    model: ViT, x: Tensor, tokens_per_block: int, read: int | None = None
) -> tuple[Tensor, Tensor | None]:
    """Merge tokens in each block; return the last normalised ones `[b t d]` and their sizes `[b t 1]`.

    Sizes are None if nothing was merged. With `read` only that many of the first tokens, which are not patches: the
    last block skips the others.
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
    """Compute attention over merged tokens, each key counted `size` times: `[b t d]` or first rows; mean keys."""
    b, t, _ = x.shape
    q, k, v = split_heads(attention.qkv(x), b, attention.heads)
    q, k = rotate(attention, attention.q_norm(q[:, :, :rows])), rotate(attention, attention.k_norm(k))
    counts = None if size is None else size.log().view(b, 1, 1, t).to(q.dtype)
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=counts)
    mixed = attention.norm(mixed.transpose(1, 2).flatten(2))
    return attention.proj_drop(attention.proj(mixed)), k.mean(dim=1)  # keys [b t k]


def merge(
    x: Tensor, size: Tensor | None, keys: Tensor, tokens_per_block: int, prefix: int
) -> tuple[Tensor, Tensor | None]:
    """Merge the most similar pairs of tokens `[b t d]`: `[b t-r d]`, and sizes `[b t-r 1]`; the prefix stays."""
    t = x.shape[1]
    r = min(tokens_per_block, (t - prefix) // 2)
    if r == 0:
        return x, size
    if size is None:
        size = x.new_ones(*x.shape[:2], 1, dtype=torch.float32)
    first = prefix + prefix % 2  # even indices find a partner among odd ones; the prefix takes no part
    second = prefix + 1 - prefix % 2
    keys = F.normalize(keys.float(), dim=-1)
    scores = keys[:, first::2] @ keys[:, second::2].transpose(1, 2)  # [b m n]
    best, partner = scores.max(dim=-1)  # [b m]
    order = best.argsort(dim=-1, descending=True, stable=True)
    goes, stays = order[:, :r], order[:, r:].sort(dim=-1).values  # indices merged, and indices kept in order
    # a row for each receiver, a column for each giver: a matrix product sums in the same order every time
    receives = (partner.gather(1, goes)[:, None] == torch.arange(scores.shape[2], device=x.device)[:, None]).float()

    def merged_sum(values: Tensor) -> Tensor:  # [b t e] → [b t-r e], sums
        givers = values[:, first::2]
        kept, given = (givers.gather(1, i[..., None].expand(-1, -1, values.shape[2])) for i in (stays, goes))
        return torch.cat([values[:, :prefix], kept, values[:, second::2] + receives @ given], dim=1)

    sums, sizes = merged_sum(x.float() * size), merged_sum(size)
    return (sums / sizes).to(x.dtype), sizes


def _pooled(model: ViT, tokens: Tensor, size: Tensor | None) -> Tensor:
    """Pool merged tokens as `ViT.pool` does, each counted in a mean as often as the patches it stands for."""
    prefix = model.layout.prefix
    if size is not None and model.attn_pool is not None:
        first = 0 if model.config.pool_prefix else prefix
        counts = size[:, first:].log().transpose(1, 2)[:, None].to(tokens.dtype)  # [b 1 1 t]
        pooled: Tensor = model.fc_norm(model.attn_pool(tokens[:, first:], counts))
        return pooled
    if size is None or "mean" not in model.config.pool:
        return model.pool(tokens)
    weight = size[:, prefix:] / size[:, prefix:].sum(dim=1, keepdim=True)
    mean = (tokens[:, prefix:].float() * weight).sum(dim=1).to(tokens.dtype)
    parts = [tokens[:, 0]] if "token" in model.config.pool else []
    result: Tensor = model.fc_norm(torch.cat([*parts, mean], dim=-1))
    return result
