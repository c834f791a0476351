"""Fused operations for a GPU, registered with torch: products with GELU or residual, attention, gradients, fp8.

Compiled graphs call each as one kernel. On a CPU, or without Triton, plain torch computes the same results: the kernels
(`triton_kernels.py`) are tested against it.
"""

from importlib.util import find_spec

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.speed.gelu import gelu, normal_cdf

PROGRAMS = 64
"""Rows that the plain version sums at once, as the kernels do."""


TRITON = find_spec("triton") is not None  # found here, as a compiler that traces a step cannot look for it


def has_triton(device: torch.device) -> bool:
    """Return whether fused operations are available on a device: as Triton kernels."""
    return device.type == "cuda" and TRITON


def split_heads(qkv: Tensor, images: int, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Split the input of an attention operation into heads: queries, keys and values, three `[b h t k]`.

    They lie side by side in `qkv`, `[bt 3hk]` or `[b t 3hk]`.
    """
    q, k, v = qkv.reshape(images, -1, 3, heads, qkv.shape[-1] // (3 * heads)).permute(2, 0, 3, 1, 4).unbind(0)
    return q, k, v


def turn(x: Tensor, turns: Tensor) -> Tensor:
    """Compute a fused operation's rotation in plain torch: queries or keys `[b h t k]`, sines, cosines `[2 t k/2]`."""
    (a, b), (sine, cosine) = x.chunk(2, dim=-1), turns
    return torch.cat([a * cosine - b * sine, b * cosine + a * sine], dim=-1)


@torch.library.custom_op("vitreous::dense_gelu", mutates_args=())
def dense_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Fused operation: compute `gelu(x Wᵀ + b)`, `[r d]` → `[r m]`; on CUDA inside the product, by its tanh form."""
    if x.is_cuda and hasattr(torch, "_addmm_activation"):
        return torch._addmm_activation(bias, x, weight.t(), use_gelu=True)
    return F.gelu(F.linear(x, weight, bias), approximate="tanh")


@dense_gelu.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[0])


@torch.library.custom_op("vitreous::add_dense", mutates_args=("x",))
def add_dense(x: Tensor, y: Tensor, weight: Tensor) -> None:
    """Fused operation: add a product to a residual, `x += y Wᵀ`, while it is in registers, before it is rounded."""
    x.addmm_(y, weight.t())


@add_dense.register_fake
def _(x: Tensor, y: Tensor, weight: Tensor) -> None:
    return None


@torch.library.custom_op("vitreous::attend", mutates_args=())
def attend(qkv: Tensor, images: int, heads: int, turns: Tensor | None = None) -> Tensor:
    """Fused operation: compute attention from concatenated queries, keys and values of `images` images.

    cuDNN's kernel is faster for many images of many tokens; for one image this takes three quarters of its time.
    `turns`, sines and cosines `[2 t k/2]`, rotate queries and keys whose halves are pairs.
    """
    if has_triton(qkv.device):
        from vitreous.speed.triton_kernels import attend as kernel

        return kernel(qkv.contiguous(), images, heads, turns)
    q, k, v = split_heads(qkv, images, heads)  # [b h t k]
    if turns is not None:
        q, k = turn(q, turns).to(q.dtype), turn(k, turns).to(k.dtype)
    mixed = F.scaled_dot_product_attention(q, k, v)
    return mixed.transpose(1, 2).reshape(len(qkv), -1)


@attend.register_fake
def _(qkv: Tensor, images: int, heads: int, turns: Tensor | None = None) -> Tensor:
    return qkv.new_empty(qkv.shape[0], qkv.shape[1] // 3)


@torch.library.custom_op("vitreous::attend_backward", mutates_args=())
def attend_backward(
    qkv: Tensor, dy: Tensor, images: int, heads: int, turns: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Fused operation: compute the gradient of `attend`, of concatenated queries, keys and values, with column sums.

    `qkv` `[r 3d]`, `dy` `[r d]` → `[r 3d]`, `[images 3d]` in fp32.
    """
    if has_triton(qkv.device):
        from vitreous.speed.triton_kernels import attend_backward as kernel

        return kernel(qkv.contiguous(), dy.contiguous(), images, heads, turns)
    q, k, v = split_heads(qkv.float(), images, heads)  # [b h t k]
    if turns is not None:
        q, k = turn(q, turns), turn(k, turns)
    slope = dy.float().view(images, -1, heads, q.shape[-1]).transpose(1, 2)
    scale = q.shape[-1] ** -0.5
    weight = (q @ k.mT * scale).softmax(dim=-1)  # [b h t t]
    dweight = slope @ v.mT
    dscore = weight * (dweight - (weight * dweight).sum(dim=-1, keepdim=True)) * scale
    dq, dk = dscore @ k, dscore.mT @ q
    if turns is not None:
        back = torch.stack([-turns[0], turns[1]])
        dq, dk = turn(dq, back), turn(dk, back)
    found = torch.stack([dq, dk, weight.mT @ slope])  # [3 b h t k]
    out = found.permute(1, 3, 0, 2, 4).reshape(images, -1, qkv.shape[1])  # [b t 3d]
    return out.flatten(0, 1).to(qkv.dtype), out.sum(dim=1)


@attend_backward.register_fake
def _(qkv: Tensor, dy: Tensor, images: int, heads: int, turns: Tensor | None = None) -> tuple[Tensor, Tensor]:
    return torch.empty_like(qkv), qkv.new_empty(images, qkv.shape[1], dtype=torch.float32)


@torch.library.custom_op("vitreous::gelu", mutates_args=())
def fused_gelu(x: Tensor) -> Tensor:
    """Fused operation: compute GELU, in as few instructions as memory accesses take."""
    if has_triton(x.device):
        from vitreous.speed.triton_kernels import gelu as kernel

        return kernel(x.contiguous())
    return gelu(x)


@fused_gelu.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@torch.library.custom_op("vitreous::gelu_backward", mutates_args=())
def gelu_backward(x: Tensor, dy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Fused operation: compute GELU's gradient, GELU itself (so that it need not be kept), and column sums.

    `x`, `dy` `[r c]` → `[r c]`, `[r c]`, `[parts c]` in fp32.
    """
    if has_triton(x.device):
        from vitreous.speed.triton_kernels import gelu_backward as kernel

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
    """Fused operation: concatenate gradients of queries, keys and values `[b h t k]` to `[b t 3hk]`, with sums."""
    if has_triton(q.device):
        from vitreous.speed.triton_kernels import pack as kernel

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
    """Fused operation: compute GELU by its tanh form as fp8 numbers, clamped at their largest, 448."""
    if has_triton(x.device):
        from vitreous.speed.triton_kernels import gelu_fp8 as kernel

        return kernel(x.contiguous())
    y = F.gelu(x.float(), approximate="tanh")
    return y.clamp(max=448.0).to(torch.float8_e4m3fn)


@gelu_fp8.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x, dtype=torch.float8_e4m3fn)


def _sums(x: Tensor) -> Tensor:
    """Sum columns by parts where a fused operation runs without its Triton kernel: `[r c]` → `[parts c]`."""
    return torch.stack([part.sum(0) for part in x.split(PROGRAMS)])
