"""`logits_only`, the short forward pass: logits or features without the last block's work that cannot reach them.

In the last block all tokens are needed as keys and values, but only the tokens that the head reads (the class token,
and DeiT's distillation token) are needed as queries and in the MLP. On ViT-B/16 that saves 7 % of the work; logits,
features and gradients are equal to the whole network's but for rounding.
"""

from collections.abc import Callable
from typing import Any, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.models.hooks import hooks_active
from vitreous.models.rope import rotate
from vitreous.models.vit import Attention, ViT

OutputKind = Literal["logits", "features"]
"""What a forward pass returns: logits `[b classes]`, or the pooled features below the head `[b d]`."""
Compute = Callable[[Tensor], Tensor]
"""Images `[b c H W]` → logits or features, one row for each image. The attribute `lanes`, if any, is how many batches
may be computed at the same time."""


def logits_only(model: nn.Module, x: Tensor) -> Tensor:
    """Compute `model(x)` without the work that cannot reach the logits; models that do not allow it run whole.

    >>> from vitreous.models.variants import variant
    >>> import torch
    >>> model = ViT(variant("vit_femto_patch4_32")).eval()
    >>> x = torch.randn(2, 3, 32, 32)
    >>> torch.allclose(logits_only(model, x), model(x), atol=1e-5)
    True
    """
    return model(x) if rows_read(model) is None else read_last_block(model, _run_other_blocks(model, x))


def features_only(model: Any, x: Tensor) -> Tensor:
    """Compute `model.features(x)` without the work that cannot reach the features."""
    if rows_read(model) is not None:
        return read_last_block(model, _run_other_blocks(model, x), "features")
    features: Tensor = model.features(x)
    return features


def _run_other_blocks(model: Any, x: Tensor) -> Tensor:
    """Compute the tokens that enter the last block: `[b c H W]` → `[b t d]`."""
    x = model.embed(x)
    for block in model.blocks[:-1]:
        x = block(x)
    return x


def read_last_block(model: Any, x: Tensor, output: OutputKind = "logits") -> Tensor:
    """Compute the last block's rows that are read, the norm and the head: `[b t d]` → `[b classes]`, or `[b d]`."""
    tokens = model.norm(block_rows(model.blocks[-1], x, tokens_of_heads(model)))
    out: Tensor = model.pool(tokens) if output == "features" else model.forward_head(tokens)
    return out


def rows_read(model: nn.Module) -> int | None:
    """Count the last block's tokens that the head reads, from the first on; None if the whole network has to run."""
    if not isinstance(model, ViT) or model.config.pool != "token" or not model.config.plain:
        return None
    if model.config.dense != "none" or hooks_active():
        return None
    if type(model.blocks[-1].attn.qkv) is not nn.Linear:  # type: ignore[union-attr]  # LoRA adds to the weight
        return None
    return tokens_of_heads(model)


def tokens_of_heads(model: ViT) -> int:
    """Count the last block's tokens that heads read: the class token, and the next one for DeiT's distillation head."""
    return 2 if model.head_dist is not None else 1


def block_rows(block: Any, x: Tensor, rows: int) -> Tensor:
    """Compute the last block's first `rows` output tokens alone: `[b t d]` → `[b rows d]`."""
    kept = x[:, :rows]
    kept = kept + block.skip(block.ls1(_attention_rows(block.attn, block.norm1(x), rows)))
    out: Tensor = kept + block.skip(block.ls2(block.mlp(block.norm2(kept))))
    return out


def _attention_rows(attention: Attention, x: Tensor, rows: int) -> Tensor:
    """Compute the attention of the last block's first rows alone: `[b t d]` → `[b rows d]`."""
    b, t, d = x.shape
    heads, weight, bias = attention.heads, attention.qkv.weight, attention.qkv.bias
    q = F.linear(x[:, :rows], weight[:d], None if bias is None else bias[:d])
    kv = F.linear(x, weight[d:], None if bias is None else bias[d:])
    q = q.reshape(b, rows, heads, d // heads).transpose(1, 2)  # [b h rows k]
    k, v = kv.reshape(b, t, 2, heads, d // heads).permute(2, 0, 3, 1, 4).unbind(0)  # [b h t k]
    dropout = attention.dropout if attention.training else 0.0
    q, k = rotate(attention, attention.q_norm(q)), rotate(attention, attention.k_norm(k))
    out = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)
    projected: Tensor = attention.proj_drop(attention.proj(attention.norm(out.transpose(1, 2).reshape(b, rows, d))))
    return projected
