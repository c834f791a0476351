"""Operations that torch's compiler would take apart and should not: each is one kernel, or one product with a tail.

They are registered with torch, so that compiled graphs call them as they are. On a CPU, or without Triton, the same
results come from plain torch: that is what the kernels are tested against.
"""

from importlib.util import find_spec

import torch
from torch import Tensor

from vitreous.speed.gelu import gelu, normal_share

PROGRAMS = 64
"""Rows that the plain version sums at once, as the kernels do."""


def has_triton(device: torch.device) -> bool:
    """Whether the kernels run there."""
    return device.type == "cuda" and find_spec("triton") is not None


@torch.library.custom_op("vitreous::dense_gelu", mutates_args=())
def dense_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`gelu(x Wᵀ + b)` for `[r d]` → `[r m]`; on CUDA GELU is worked out inside the product, by its tanh form."""
    if x.is_cuda and hasattr(torch, "_addmm_activation"):
        return torch._addmm_activation(bias, x, weight.t(), use_gelu=True)
    return torch.nn.functional.gelu(torch.nn.functional.linear(x, weight, bias), approximate="tanh")


@dense_gelu.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[0])


@torch.library.custom_op("vitreous::add_dense", mutates_args=("x",))
def add_dense(x: Tensor, y: Tensor, weight: Tensor) -> None:
    """`x += y Wᵀ`: the residual is added where the product is still in registers, before it is rounded."""
    x.addmm_(y, weight.t())


@add_dense.register_fake
def _(x: Tensor, y: Tensor, weight: Tensor) -> None:
    return None


@torch.library.custom_op("vitreous::attend", mutates_args=())
def attend(qkv: Tensor, images: int, heads: int) -> Tensor:
    """Attention from queries, keys and values side by side, `[r 3d]` → `[r d]`, the rows of `images` images.

    cuDNN's kernel is the better one for many images; for a single one this takes three quarters of the time.
    """
    if has_triton(qkv.device):
        from vitreous.speed.kernels import attend as kernel

        return kernel(qkv.contiguous(), images, heads)
    r = qkv.shape[0]
    q, k, v = qkv.view(images, r // images, 3, heads, -1).permute(2, 0, 3, 1, 4).unbind(0)  # [b h t k]
    return torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(r, -1)


@attend.register_fake
def _(qkv: Tensor, images: int, heads: int) -> Tensor:
    return qkv.new_empty(qkv.shape[0], qkv.shape[1] // 3)


@torch.library.custom_op("vitreous::gelu_backward", mutates_args=())
def gelu_backward(x: Tensor, dy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """GELU's gradient, GELU itself once more (so that nobody has to keep it), and the gradient's sums by column.

    `x`, `dy` `[r c]` → `[r c]`, `[r c]`, `[parts c]` in fp32.
    """
    if has_triton(x.device):
        from vitreous.speed.kernels import gelu_backward as kernel

        return kernel(x.contiguous(), dy.contiguous())
    wide = x.float()
    bell = torch.exp(-0.5 * wide * wide) * 0.3989422804014327
    dx = dy.float() * (normal_share(wide) + wide * bell)
    return dx.to(x.dtype), gelu(x), _sums(dx)


@gelu_backward.register_fake
def _(x: Tensor, dy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    parts = -(-x.shape[0] // PROGRAMS)
    return torch.empty_like(x), torch.empty_like(x), x.new_empty(parts, x.shape[1], dtype=torch.float32)


@torch.library.custom_op("vitreous::pack", mutates_args=())
def pack(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of queries, keys and values `[b h t k]` side by side `[b t 3hk]`, and their sums by column."""
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


@torch.library.custom_op("vitreous::gelu_eight", mutates_args=())
def gelu_eight(x: Tensor) -> Tensor:
    """GELU by its tanh form, given as fp8 numbers and cut at their largest, 448."""
    if has_triton(x.device):
        from vitreous.speed.kernels import gelu_eight as kernel

        return kernel(x.contiguous())
    y = torch.nn.functional.gelu(x.float(), approximate="tanh")
    return y.clamp(max=448.0).to(torch.float8_e4m3fn)


@gelu_eight.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x, dtype=torch.float8_e4m3fn)


def _sums(x: Tensor) -> Tensor:
    """`[r c]` → `[parts c]`."""
    return torch.stack([part.sum(0) for part in x.split(PROGRAMS)])
