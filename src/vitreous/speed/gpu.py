"""The forward pass for a GPU with few memory accesses, and the fused operations that it and training use.

Half of the time of a compiled ViT goes into its matrix products, the rest into reading and writing tokens between them.
`fused_forward` computes GELU inside the product before it and adds the residual inside the product after it. The biases
of those products are carried along as one vector `[d]` that each layer norm adds to its input.

The operations are registered with torch, so that compiled graphs call them as one kernel each. On a CPU, or without
Triton, plain torch computes the same results: the kernels (`kernels.py`) are tested against it.
"""

from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.models.last_block import OutputKind, read_last_block, rows_read
from vitreous.models.vit import MLP, TransformerBlock, ViT
from vitreous.speed.gelu import gelu, normal_cdf

SMALL_BATCH = 1024
"""Tokens of a batch up to which our own attention kernel is worth trying."""
PROGRAMS = 64
"""Rows that the plain version sums at once, as the kernels do."""

# --- the forward pass -------------------------------------------------------------------------------------------------


def fused_forward(
    network: ViT, x: Tensor, *, output: OutputKind = "logits", fused_gelu: bool = True, own_attention: bool = False
) -> Tensor:
    """Compute logits or features of a folded network (`fold.py`) for images `[b c H W]`.

    `fused_gelu` computes GELU inside the product before it, by its tanh form, which differs by up to 5e-4: about the
    rounding of bf16. Without it GELU is a separate kernel, exact to 2e-7 (or the tanh form, if the network has that).
    `own_attention` uses our attention kernel, for small batches such as one image (`fits_own_attention`).
    """
    x = network.embed(x)
    b, t, d = x.shape
    x = x.reshape(b * t, d).clone()  # [r d], changed in place below
    carried = torch.zeros(d, device=x.device, dtype=torch.float32)
    for block in network.blocks[:-1]:
        assert isinstance(block, TransformerBlock)
        attention, mlp = block.attn, block.mlp
        qkv = F.linear(norm(x, carried, block.norm1), attention.qkv.weight, attention.qkv.bias)
        mixed = attend(qkv, b, attention.heads) if own_attention else mix(attention, qkv, b)
        add_dense(x, mixed, attention.proj.weight)
        carried = carried + attention.proj.bias
        y = norm(x, carried, block.norm2)
        add_dense(x, _hidden(mlp, y, fused_gelu), mlp.fc2.weight)
        carried = carried + mlp.fc2.bias
    x = (x + carried).to(x.dtype).view(b, t, d)
    return read_last_block(network, x, output)


def _hidden(mlp: MLP, x: Tensor, fused_gelu: bool) -> Tensor:
    weight, bias = mlp.fc1.weight, mlp.fc1.bias
    if fused_gelu:
        result: Tensor = dense_gelu(x, weight, bias)
        return result
    hidden = F.linear(x, weight, bias)
    return F.gelu(hidden, approximate="tanh") if mlp.activation == "gelu_tanh" else gelu(hidden)


def fits(network: nn.Module) -> bool:
    """Whether `fused_forward` supports a folded network: GELU, biases everywhere, a head that reads the class token."""
    return rows_read(network) is not None and all(_fits(block) for block in network.blocks)  # type: ignore[union-attr]


def _fits(block: Any) -> bool:
    layers = (block.attn.qkv, block.attn.proj, block.mlp.fc1, block.mlp.fc2)
    return (
        block.mlp.activation in ("gelu", "gelu_tanh")
        and all(type(layer) is nn.Linear and layer.bias is not None for layer in layers)
        and all(isinstance(each, nn.LayerNorm) and each.weight is None for each in (block.norm1, block.norm2))
        and isinstance(block.ls1, nn.Identity)
        and isinstance(block.ls2, nn.Identity)
    )


def fits_own_attention(network: Any) -> bool:
    """Whether our attention kernel supports a network: heads of a supported width, no norms of queries and keys."""
    attention = network.blocks[0].attn
    return network.config.width // attention.heads in (16, 32, 64, 128) and isinstance(attention.q_norm, nn.Identity)


def norm(x: Tensor, carried: Tensor, layer: nn.LayerNorm, dtype: torch.dtype | None = None) -> Tensor:
    """Layer-normalise `x + carried` without scale and shift, computed in fp32."""
    return F.layer_norm(x.float() + carried, layer.normalized_shape, eps=layer.eps).to(dtype or x.dtype)


def mix(attention: Any, qkv: Tensor, b: int) -> Tensor:
    """Compute attention from concatenated queries, keys and values: `[r 3d]` → `[r d]`."""
    r, heads = qkv.shape[0], attention.heads
    q, k, v = qkv.view(b, r // b, 3, heads, -1).permute(2, 0, 3, 1, 4).unbind(0)  # [b h t k]
    mixed = F.scaled_dot_product_attention(attention.q_norm(q), attention.k_norm(k), v)
    return mixed.transpose(1, 2).reshape(r, -1)


# --- operations -------------------------------------------------------------------------------------------------------


def has_triton(device: torch.device) -> bool:
    """Whether our Triton kernels run on a device."""
    return device.type == "cuda" and find_spec("triton") is not None


@torch.library.custom_op("vitreous::dense_gelu", mutates_args=())
def dense_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`gelu(x Wᵀ + b)` for `[r d]` → `[r m]`; on CUDA GELU is computed inside the product, by its tanh form."""
    if x.is_cuda and hasattr(torch, "_addmm_activation"):
        return torch._addmm_activation(bias, x, weight.t(), use_gelu=True)
    return F.gelu(F.linear(x, weight, bias), approximate="tanh")


@dense_gelu.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[0])


@torch.library.custom_op("vitreous::add_dense", mutates_args=("x",))
def add_dense(x: Tensor, y: Tensor, weight: Tensor) -> None:
    """`x += y Wᵀ`: the residual is added while the product is in registers, before it is rounded."""
    x.addmm_(y, weight.t())


@add_dense.register_fake
def _(x: Tensor, y: Tensor, weight: Tensor) -> None:
    return None


@torch.library.custom_op("vitreous::attend", mutates_args=())
def attend(qkv: Tensor, images: int, heads: int) -> Tensor:
    """Compute attention from concatenated queries, keys and values of `images` images: `[r 3d]` → `[r d]`.

    cuDNN's kernel is faster for many images; for one image this takes three quarters of its time.
    """
    if has_triton(qkv.device):
        from vitreous.speed.kernels import attend as kernel

        return kernel(qkv.contiguous(), images, heads)
    r = qkv.shape[0]
    q, k, v = qkv.view(images, r // images, 3, heads, -1).permute(2, 0, 3, 1, 4).unbind(0)  # [b h t k]
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(r, -1)


@attend.register_fake
def _(qkv: Tensor, images: int, heads: int) -> Tensor:
    return qkv.new_empty(qkv.shape[0], qkv.shape[1] // 3)


@torch.library.custom_op("vitreous::gelu_backward", mutates_args=())
def gelu_backward(x: Tensor, dy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute GELU's gradient, GELU itself (so that it need not be kept), and the gradient's column sums.

    `x`, `dy` `[r c]` → `[r c]`, `[r c]`, `[parts c]` in fp32.
    """
    if has_triton(x.device):
        from vitreous.speed.kernels import gelu_backward as kernel

        return kernel(x.contiguous(), dy.contiguous())
    wide = x.float()
    density = torch.exp(-0.5 * wide * wide) * 0.3989422804014327
    dx = dy.float() * (normal_cdf(wide) + wide * density)
    return dx.to(x.dtype), gelu(x), _sums(dx)


@gelu_backward.register_fake
def _(x: Tensor, dy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    parts = -(-x.shape[0] // PROGRAMS)
    return torch.empty_like(x), torch.empty_like(x), x.new_empty(parts, x.shape[1], dtype=torch.float32)


@torch.library.custom_op("vitreous::pack", mutates_args=())
def pack(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Concatenate gradients of queries, keys and values `[b h t k]` to `[b t 3hk]`, with their column sums."""
    if has_triton(q.device):
        from vitreous.speed.kernels import pack as kernel

        return kernel(q, k, v)
    b, h, t, width = q.shape
    out = torch.stack([q, k, v]).permute(1, 3, 0, 2, 4).reshape(b, t, 3 * h * width)
    return out, _sums(out.flatten(0, 1).float())


@pack.register_fake
def _(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    b, h, t, width = q.shape
    parts = -(-b * t // PROGRAMS)
    return q.new_empty(b, t, 3 * h * width), q.new_empty(parts, 3 * h * width, dtype=torch.float32)


@torch.library.custom_op("vitreous::gelu_fp8", mutates_args=())
def gelu_fp8(x: Tensor) -> Tensor:
    """Compute GELU by its tanh form as fp8 numbers, clamped at their largest, 448."""
    if has_triton(x.device):
        from vitreous.speed.kernels import gelu_fp8 as kernel

        return kernel(x.contiguous())
    y = F.gelu(x.float(), approximate="tanh")
    return y.clamp(max=448.0).to(torch.float8_e4m3fn)


@gelu_fp8.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x, dtype=torch.float8_e4m3fn)


def _sums(x: Tensor) -> Tensor:
    """`[r c]` → `[parts c]`."""
    return torch.stack([part.sum(0) for part in x.split(PROGRAMS)])
