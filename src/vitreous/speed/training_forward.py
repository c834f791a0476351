"""The forward pass for training (`--fused`, `--recompute`): logits and gradients with fewer memory accesses.

On every device the last block computes only the tokens that the head reads (`models/last_block.py`), which changes
logits and gradients by rounding. On a GPU, matrix products take half of a training step and memory the other half: with
`fused` the MLP's backward pass computes GELU's gradient, GELU itself (which is not kept) and the bias's gradient in one
kernel, and another concatenates the gradients of queries, keys and values. With `residual=torch.bfloat16` the tokens
between blocks are bf16 too.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitreous.models.hooks import hooks_active
from vitreous.models.last_block import block_rows, rows_read
from vitreous.models.rope import rotate
from vitreous.models.vit import MLP, Attention, TransformerBlock, ViT
from vitreous.speed.fused_ops import gelu_backward, pack, split_heads
from vitreous.speed.gelu import gelu
from vitreous.speed.onednn import onednn_products


def training_logits(
    model: nn.Module,
    x: Tensor,
    residual: torch.dtype | None = None,
    *,
    fused: bool = True,
    recompute: bool = False,
) -> Tensor:
    """Compute a model's logits for training; other networks than ViTs, and those with active hooks, run unchanged.

    The last block computes only the tokens that the head reads. `fused` uses the kernels above if the blocks support
    them. `recompute` keeps only the input of each block and computes the rest again in the backward pass, for a third
    more work.
    """
    if not isinstance(model, ViT) or hooks_active():
        result: Tensor = model(x)
        return result
    read = rows_read(model)  # None: the head reads all tokens, and the last block runs whole
    blocks = list(model.blocks) if read is None else list(model.blocks)[:-1]
    fused = fused and model.config.plain and all(_plain(block) for block in blocks)
    x = model.embed(x)
    if residual is not None:
        x = x.to(residual)
    again = partial(checkpoint, _by_onednn, use_reentrant=False, preserve_rng_state=_is_random(model))
    others = []  # outputs of other blocks that a dense head reads
    for number, block in enumerate(blocks):
        if number - 1 in model.config.dense_blocks:
            others.append(x)
        step = partial(_block if fused else _whole, block)
        x = again(step, x) if recompute else step(x)
    tokens = x if read is None else block_rows(model.blocks[-1], x, read)
    return model.forward_head(*others, model.norm(tokens))


def _by_onednn(step: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Run a block whose products the same library must compute when it is recomputed, in the backward pass."""
    with onednn_products(x.device):
        return step(x)


def _whole(block: Any, x: Tensor) -> Tensor:
    """Run a block as it is, for training."""
    result: Tensor = block(x).to(x.dtype)
    return result


def _is_random(model: ViT) -> bool:
    """Return whether blocks in training use random numbers, which must be the same when they are recomputed."""
    config = model.config
    return bool(config.dropout or config.attention_dropout or config.stochastic_depth)


def _plain(block: Any) -> bool:
    """Return whether the fused training functions support a block: GELU, linear layers with biases, no hooks."""
    if not isinstance(block, TransformerBlock):
        return False
    mlp, attention = block.mlp, block.attn
    layers = (attention.qkv, mlp.fc1, mlp.fc2)
    return (
        mlp.activation == "gelu"
        and mlp.drop.p == 0
        and isinstance(mlp.norm, nn.Identity)
        and isinstance(attention.norm, nn.Identity)
        and all(type(layer) is nn.Linear and layer.bias is not None for layer in layers)
        and not any(part._forward_hooks or part._forward_pre_hooks for part in (mlp, attention, *layers))
    )


def _block(block: Any, x: Tensor) -> Tensor:
    """Run a block for training with fused attention and MLP."""
    x = x + block.skip(block.ls1(_attention(block.attn, block.norm1(x)))).to(x.dtype)
    result: Tensor = x + block.skip(block.ls2(_mlp(block.mlp, block.norm2(x)))).to(x.dtype)
    return result


def _attention(attention: Attention, x: Tensor) -> Tensor:
    """Compute a block's attention for training with fused gradients."""
    b, t, d = x.shape
    weight, bias, x = _narrow(attention.qkv, x)
    q, k, v = _Queries.apply(x, weight, bias, attention.heads)  # [b h t k]
    dropout = attention.dropout if attention.training else 0.0
    q, k = rotate(attention, attention.q_norm(q)), rotate(attention, attention.k_norm(k))
    mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)
    result: Tensor = attention.proj_drop(attention.proj(mixed.transpose(1, 2).reshape(b, t, d)))
    return result


def _mlp(mlp: MLP, x: Tensor) -> Tensor:
    """Compute a block's MLP for training; only the input of GELU is kept."""
    weight1, bias1, x = _narrow(mlp.fc1, x)
    weight2, bias2, _ = _narrow(mlp.fc2, x)
    result: Tensor = _Dense2.apply(x, weight1, bias1, weight2, bias2)
    return result


def _narrow(layer: nn.Linear, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Cast weight, bias and input of a layer in training as autocast does."""
    if torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
        return layer.weight.to(dtype), layer.bias.to(dtype), x.to(dtype)
    return layer.weight, layer.bias, x


class _Dense2(torch.autograd.Function):
    """Compute `gelu(x W₁ᵀ + b₁) W₂ᵀ + b₂` in training; keeps only `x` and the input of GELU."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight1: Tensor, bias1: Tensor, weight2: Tensor, bias2: Tensor) -> Tensor:
        hidden = F.linear(x, weight1, bias1)  # [b t m]
        ctx.save_for_backward(x, hidden, weight1, weight2)
        return F.linear(gelu(hidden), weight2, bias2)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        x, hidden, weight1, weight2 = ctx.saved_tensors
        dy = gradients[0].reshape(-1, weight2.shape[0])  # [r d]
        into, after, sums = gelu_backward(hidden.reshape(-1, hidden.shape[-1]), dy @ weight2)  # [r m], [r m], [parts m]
        rows = x.reshape(-1, x.shape[-1])
        dx = (into @ weight1).view_as(x)
        return dx, into.t() @ rows, sums.sum(0).to(dy.dtype), dy.t() @ after, dy.float().sum(0).to(dy.dtype)


class _Queries(torch.autograd.Function):
    """Compute `x Wᵀ + b` in training as queries, keys and values, `[b t d]` → three `[b h t k]`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(x, weight)
        return split_heads(F.linear(x, weight, bias), len(x), heads)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        packed, sums = pack(*gradients)  # [b t 3d], [parts 3d]
        rows = packed.flatten(0, 1)
        return (rows @ weight).view_as(x), rows.t() @ x.flatten(0, 1), sums.sum(0).to(packed.dtype), None
