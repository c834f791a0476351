"""The forward pass for training (`--fused`, `--recompute`): logits and gradients with fewer memory accesses.

If the head reads the class token alone, the last block computes only that (`models/last_block.py`), which changes
logits and gradients by rounding. On a GPU, matrix products take half of a training step and memory the other half: with
`fused` the MLP's backward pass computes GELU's gradient, GELU itself (which is not kept) and the bias's gradient in one
kernel, and another concatenates the gradients of queries, keys and values. Attention of few tokens, and its gradient,
are a kernel each. With `residual=torch.bfloat16` the tokens
between blocks are bf16 too.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from typing import Any

import torch
import torch._functorch.config
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from vitreous.models.hooks import hooks_active
from vitreous.models.last_block import block_rows, rows_read
from vitreous.models.rope import rotate
from vitreous.models.vit import MLP, Attention, TransformerBlock, ViT
from vitreous.speed.fused_ops import attend, attend_backward, fused_gelu, gelu_backward, has_triton, pack, split_heads
from vitreous.speed.onednn import onednn_products

FEW_TOKENS = 64  # whose whole matrix of attention one program of a kernel holds
HEAD_WIDTHS = (16, 32, 64, 128)  # that Triton multiplies
KERNEL_TYPES = (torch.bfloat16, torch.float16)
NARROW = 16  # channels of a head below which torch's fused attention is slower on a CPU than plain products


def training_logits(
    model: nn.Module,
    x: Tensor,
    residual: torch.dtype | None = None,
    *,
    fused: bool = True,
    recompute: bool = False,
    in_parts: bool = False,
) -> Tensor:
    """Compute a model's logits for training; other networks than ViTs, and those with active hooks, run unchanged.

    The last block computes only the tokens that the head reads. `fused` uses the kernels above if the blocks support
    them. `recompute` keeps only the input of each block and computes the rest again in the backward pass, for a third
    more work. `in_parts` compiles embedding, block and head, each by itself, instead of the whole network: a graph then
    serves all blocks (`shares_graph`).
    """
    if not isinstance(model, ViT) or hooks_active():
        result: Tensor = model(x)
        return result
    read = rows_read(model)  # None: the head reads all tokens, and the last block runs whole
    blocks = list(model.blocks) if read is None else list(model.blocks)[:-1]
    fused = fused and model.config.plain and all(_plain(block) for block in blocks)
    change = _compile if in_parts else _keep
    embed, run_fused, answer = change(_embed), change(_block), change(_answer)
    x = embed(model, residual, x)
    again = partial(checkpoint, use_reentrant=False, preserve_rng_state=_is_random(model))
    kernel = fused and takes_kernel(model, x.device, _product_type(x))
    turns = _turns(model) if kernel else None
    others = []  # outputs of other blocks that a dense head reads
    for number, block in enumerate(blocks):
        if number - 1 in model.config.dense_blocks:
            others.append(x)
        if fused:
            step = partial(run_fused, block, kernel, turns, _draw(block, x), _draw(block, x))
        else:
            step = partial(_whole, block)
        if recompute and x.device.type == "cpu" and not in_parts and not torch.compiler.is_compiling():
            step = partial(on_cpu, step, has_narrow_heads(model))  # also in the backward pass
        x = again(step, x) if recompute else step(x)
    return answer(model, read, others, x)


def _embed(model: ViT, residual: torch.dtype | None, x: Tensor) -> Tensor:
    """Turn images into the first block's input in training, in the residual's precision: `[b c H W]` → `[b t d]`."""
    x = model.embed(x)
    return x if residual is None else x.to(residual)


def _answer(model: ViT, read: int | None, others: list[Tensor], x: Tensor) -> Tensor:
    """End the training forward pass: run the final block for `read` tokens, if it has not run, and compute logits."""
    x = _wide(x)
    tokens = x if read is None else block_rows(model.blocks[-1], x, read)
    return model.forward_head(*others, model.norm(tokens))


def _wide(x: Tensor) -> Tensor:
    """Return the input of a layer norm in training as fp32 on a CPU: torch sums a norm's gradients in its format there.

    Tokens in bf16 would put them off by a tenth to a half. On a GPU autocast computes norms in fp32.
    """
    return x.float() if x.device.type == "cpu" else x


def _draw(block: Any, x: Tensor) -> Tensor:
    """Draw the factor of each image's branch in training, 1 without stochastic depth: all blocks are called alike."""
    factor: Tensor | None = block.skip.draw(x)
    return x.new_ones(len(x), 1, 1) if factor is None else factor


def has_narrow_heads(model: nn.Module) -> bool:
    """Return whether a network's heads are so narrow that plain products are the fastest training forward on a CPU."""
    return isinstance(model, ViT) and model.config.width // model.config.heads < NARROW


def on_cpu(step: Callable[[Tensor], Tensor], narrow: bool, x: Tensor) -> Tensor:
    """Run one step of the training forward pass in the way that is fastest on a CPU.

    Products are oneDNN's; attention of `narrow` heads is plain products.
    """
    with onednn_products(x.device):
        if not narrow:
            return step(x)
        with sdpa_kernel(SDPBackend.MATH):
            return step(x)


def _whole(block: Any, x: Tensor) -> Tensor:
    """Run a block as it is, for training."""
    result: Tensor = block(_wide(x)).to(x.dtype)
    return result


def _is_random(model: ViT) -> bool:
    """Return whether a forward pass for training draws random numbers, which must be the same if it is recomputed."""
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
        and not any(part._forward_hooks or part._forward_pre_hooks for part in (block, mlp, attention, *layers))
    )


def shares_graph(model: nn.Module, dtype: torch.dtype) -> bool:
    """Return whether one compiled graph serves all fused blocks of a network in training: they differ in weights alone.

    Compiling it takes a few seconds, and the whole network half a minute. `dtype` is that of the products.
    """
    if not isinstance(model, ViT) or not model.config.plain or not all(_plain(block) for block in model.blocks):
        return False
    # elsewhere than in our kernel of attention, a rotation knows the number of its block
    return model.rope is None or takes_kernel(model, next(model.parameters()).device, dtype)


def _keep(part: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Leave a part of the training forward pass uncompiled."""
    return part


@cache
def _compile(part: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Compile a part of a network in training."""
    return torch.compile(part, fullgraph=True, dynamic=False)


def caching_gradients() -> AbstractContextManager[object]:
    """Return a context in which torch keeps the compiled forward pass for training on disk, our own gradients too.

    The next run then starts some seconds earlier. torch hashes the traced code of such gradients with the rest.
    """
    name, config = "autograd_cache_allow_custom_autograd_functions", torch._functorch.config
    return config.patch(name, True) if hasattr(config, name) else nullcontext()


def _block(block: Any, kernel: bool, turns: Tensor | None, first: Tensor, second: Tensor, x: Tensor) -> Tensor:
    """Run a block for training with fused attention and MLP; `first` and `second` are stochastic depth's factors."""
    x = x + (block.ls1(_attention(block.attn, block.norm1(_wide(x)), kernel, turns)) * first).to(x.dtype)
    result: Tensor = x + (block.ls2(_mlp(block.mlp, block.norm2(_wide(x)))) * second).to(x.dtype)
    return result


def _attention(attention: Attention, x: Tensor, kernel: bool, turns: Tensor | None) -> Tensor:
    """Compute a block's attention for training with fused gradients, by our `kernel` with the rotation `turns`."""
    b, t, d = x.shape
    weight, bias, x = _narrow(attention.qkv, x)
    dropout = attention.dropout if attention.training else 0.0
    if kernel:
        short: Tensor = attention.proj_drop(attention.proj(_Attend.apply(x, weight, bias, attention.heads, turns)))
        return short
    q, k, v = _Queries.apply(x, weight, bias, attention.heads)  # [b h t k]
    q, k = rotate(attention, attention.q_norm(q)), rotate(attention, attention.k_norm(k))
    mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)
    result: Tensor = attention.proj_drop(attention.proj(mixed.transpose(1, 2).reshape(b, t, d)))
    return result


def takes_kernel(model: ViT, device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether kernels of ours compute a network's attention in training: of few tokens, in half precision.

    Queries and keys are at most rotated there. Triton multiplies fp32 with fewer digits than torch.
    """
    config, width = model.config, model.config.width // model.config.heads
    if model.layout.tokens > FEW_TOKENS or dtype not in KERNEL_TYPES or not has_triton(device):
        return False
    if config.attention_dropout or config.qk_norm:
        return False
    if model.rope is not None:  # halves are multiplied separately; four of a wide head are too much for a GPU's caches
        return _turns(model) is not None and width // 2 in HEAD_WIDTHS[:-1] and _multiplies_bf16(device)
    return width in HEAD_WIDTHS and _multiplies_bf16(device)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _multiplies_bf16(device: torch.device) -> bool:
    """Return whether the training forward pass may use Triton's bf16 products on this GPU: NVIDIA's from Ampere on."""
    return torch.version.hip is None and torch.cuda.get_device_capability(device) >= (8, 0)


def _turns(model: ViT) -> Tensor | None:
    """Return sines and cosines of a network's rotary positions for the training kernels, `[2 t k/2]`.

    None if it has none, or others than fixed ones in two halves.
    """
    rope = model.rope
    if rope is None or not rope.halves or rope.rotation is None:
        return None
    turns = rope.rotation[..., : rope.rotation.shape[-1] // 2]  # [2 n k/2]
    ones = turns.new_ones(rope.prefix, turns.shape[-1])  # made on the device, as a graph records this
    still = torch.stack([torch.zeros_like(ones), ones])
    return torch.cat([still, turns], dim=1)


def _mlp(mlp: MLP, x: Tensor) -> Tensor:
    """Compute a block's MLP for training; only the input of GELU is kept."""
    weight1, bias1, x = _narrow(mlp.fc1, x)
    weight2, bias2, _ = _narrow(mlp.fc2, x)
    result: Tensor = _Dense2.apply(x, weight1, bias1, weight2, bias2)
    return result


def _product_type(x: Tensor) -> torch.dtype:
    """Return the format of products with `x` in training: autocast's, if it is on."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def _narrow(layer: nn.Linear, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Cast weight, bias and input of a layer in training as autocast does."""
    if torch.is_autocast_enabled(x.device.type):
        dtype = _product_type(x)
        return layer.weight.to(dtype), layer.bias.to(dtype), x.to(dtype)
    return layer.weight, layer.bias, x


class _Dense2(torch.autograd.Function):
    """Compute `gelu(x W₁ᵀ + b₁) W₂ᵀ + b₂` in training; keeps only `x` and the input of GELU."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight1: Tensor, bias1: Tensor, weight2: Tensor, bias2: Tensor) -> Tensor:
        hidden = F.linear(x, weight1, bias1)  # [b t m]
        ctx.save_for_backward(x, hidden, weight1, weight2)
        return F.linear(fused_gelu(hidden), weight2, bias2)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        x, hidden, weight1, weight2 = ctx.saved_tensors
        dy = gradients[0].reshape(-1, weight2.shape[0])  # [r d]
        into, after, sums = gelu_backward(hidden.reshape(-1, hidden.shape[-1]), dy @ weight2)  # [r m], [r m], [parts m]
        rows = x.reshape(-1, x.shape[-1])
        dx = (into @ weight1).view_as(x)
        return dx, into.t() @ rows, sums.sum(0).to(dy.dtype), dy.t() @ after, dy.float().sum(0).to(dy.dtype)


class _Attend(torch.autograd.Function):
    """Compute a whole attention layer of few tokens in training, up to its output projection; keeps `x`, `x Wᵀ + b`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, heads: int, turns: Tensor | None) -> Tensor:
        qkv = F.linear(x.flatten(0, 1), weight, bias)  # [r 3d]
        ctx.save_for_backward(x, weight, qkv, turns)
        ctx.heads = heads
        mixed: Tensor = attend(qkv, len(x), heads, turns)
        return mixed.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        x, weight, qkv, turns = ctx.saved_tensors
        packed, sums = attend_backward(qkv, gradients[0].flatten(0, 1), len(x), ctx.heads, turns)  # [r 3d], [b 3d]
        rows = x.flatten(0, 1)
        return (packed @ weight).view_as(x), packed.t() @ rows, sums.sum(0).to(packed.dtype), None, None


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
