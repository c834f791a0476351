"""Logits and nothing else: the last block worked out for the tokens that the head reads.

All tokens still speak in the last block (keys and values), but only the class token has to listen (queries), and only
it goes through the last MLP. On ViT-B/16 that is 7 % of the work; the logits are the same but for rounding, and so
are the gradients: what cannot reach the logits has none.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.models.hooks import WATCHERS
from vitreous.models.vit import Attention, ViT


def logits_only(model: nn.Module, x: Tensor) -> Tensor:
    """`model(x)`, without the work that cannot reach the logits; any other model just runs.

    >>> from vitreous.models.variants import variant
    >>> import torch
    >>> model = ViT(variant("vit_femto_patch4_32")).eval()
    >>> x = torch.randn(2, 3, 32, 32)
    >>> torch.allclose(logits_only(model, x), model(x), atol=1e-5)
    True
    """
    read = rows_read(model)
    if read is None:
        return model(x)
    assert isinstance(model, ViT)
    x = model.embed(x)
    for block in model.blocks[:-1]:
        x = block(x)
    return model.forward_head(model.norm(block_rows(model.blocks[-1], x, read)))


def rows_read(model: nn.Module) -> int | None:
    """How many tokens the head reads, from the first on; None where the whole network has to run."""
    if not isinstance(model, ViT) or model.config.pool != "token":
        return None
    if watched():
        return None
    if type(model.blocks[-1].attn.qkv) is not nn.Linear:  # type: ignore[union-attr]  # LoRA's is more than its weight
        return None
    return tokens_of_heads(model)


def watched() -> bool:
    """Whether somebody looks or steps in here: they are owed the whole network. A compiled graph has no one to call."""
    return not torch.compiler.is_compiling() and bool(WATCHERS.get())


def tokens_of_heads(model: ViT) -> int:
    """How many tokens are read where a head reads tokens: the class token, and for DeiT's other head the one after."""
    return 2 if model.head_dist is not None else 1


def block_rows(block: Any, x: Tensor, rows: int) -> Tensor:
    """The block's first `rows` output tokens: `[b t d]` → `[b rows d]`."""
    kept = x[:, :rows]
    kept = kept + block.skip(block.ls1(_attention_rows(block.attn, block.norm1(x), rows)))
    return kept + block.skip(block.ls2(block.mlp(block.norm2(kept))))


def _attention_rows(attention: Attention, x: Tensor, rows: int) -> Tensor:
    b, t, d = x.shape
    heads, weight, bias = attention.heads, attention.qkv.weight, attention.qkv.bias
    q = F.linear(x[:, :rows], weight[:d], None if bias is None else bias[:d])
    kv = F.linear(x, weight[d:], None if bias is None else bias[d:])
    q = q.reshape(b, rows, heads, d // heads).transpose(1, 2)  # [b h rows k]
    k, v = kv.reshape(b, t, 2, heads, d // heads).permute(2, 0, 3, 1, 4).unbind(0)  # [b h t k]
    dropout = attention.dropout if attention.training else 0.0
    out = F.scaled_dot_product_attention(attention.q_norm(q), attention.k_norm(k), v, dropout_p=dropout)
    return attention.proj_drop(attention.proj(out.transpose(1, 2).reshape(b, rows, d)))
