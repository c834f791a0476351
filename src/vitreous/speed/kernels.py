"""Triton kernels: what torch's compiler does in several trips to memory, or with many more instructions, in one.

The two for the backward pass also add up the columns of what they write, for the bias's gradient: rows are summed
within a program, and the caller adds up the programs' sums. Triton comes with torch where there is CUDA; `fused.py`
says what to do elsewhere.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from vitreous.speed.gelu import HALVES, RATE

ROWS = 64  # that one program writes
COLUMNS = 128


@triton.jit
def _gelu_backward(  # type: ignore[no-untyped-def]
    x, dy, dx, y, sums, rows, columns,
    RATE: tl.constexpr, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    place = row.to(tl.int64)[:, None] * columns + column[None, :]
    inside = (row[:, None] < rows) & (column[None, :] < columns)
    value = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    slope = tl.load(dy + place, mask=inside, other=0.0).to(tl.float32)
    bell = tl.exp(-0.5 * value * value)
    t = 1 / (1 + RATE * tl.abs(value))
    tail = t * (A + t * (B + t * (C + t * (D + t * E)))) * bell
    share = tl.where(value >= 0, 1 - tail, tail)  # Φ, as in gelu.py
    back = slope * (share + value * bell * 0.3989422804014327)  # d(x Φ)/dx = Φ + x φ
    tl.store(dx + place, back.to(dx.dtype.element_ty), mask=inside)
    tl.store(y + place, (value * share).to(y.dtype.element_ty), mask=inside)
    tl.store(sums + tl.program_id(0) * columns + column, tl.sum(back, 0), mask=column < columns)


def gelu_backward(x: Tensor, dy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`x`, `dy` `[r c]` → the gradient for `x`, `gelu(x)` itself, and sums of the gradient's columns `[programs c]`."""
    rows, columns = x.shape
    programs = triton.cdiv(rows, ROWS)
    dx, y = torch.empty_like(x), torch.empty_like(x)
    sums = torch.empty(programs, columns, device=x.device, dtype=torch.float32)
    with _on(x):
        _gelu_backward[(programs, triton.cdiv(columns, COLUMNS))](
            x, dy, dx, y, sums, rows, columns, RATE, *HALVES, ROWS=ROWS, COLUMNS=COLUMNS, num_warps=8
        )
    return dx, y, sums


@triton.jit
def _pack(  # type: ignore[no-untyped-def]
    q, k, v, out, sums, rows, tokens,
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    which, head = tl.program_id(1) // HEADS, tl.program_id(1) % HEADS
    picture, token = (row // tokens).to(tl.int64), row % tokens
    if which == 0:
        source = q + picture * q_b + head * q_h + token * q_t
    elif which == 1:
        source = k + picture * k_b + head * k_h + token * k_t
    else:
        source = v + picture * v_b + head * v_h + token * v_t
    lane = tl.arange(0, PADDED)
    inside = (row[:, None] < rows) & (lane[None, :] < WIDTH)
    value = tl.load(source[:, None] + lane[None, :], mask=inside, other=0.0)
    columns: tl.constexpr = 3 * HEADS * WIDTH
    column = tl.program_id(1) * WIDTH + lane
    tl.store(out + row.to(tl.int64)[:, None] * columns + column[None, :], value, mask=inside)
    tl.store(sums + tl.program_id(0) * columns + column, tl.sum(value.to(tl.float32), 0), mask=lane < WIDTH)


def pack(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Three `[b h t k]` → side by side `[b t 3hk]`, and sums of columns `[programs 3hk]`."""
    b, h, t, width = q.shape
    q, k, v = (x if x.stride(3) == 1 else x.contiguous() for x in (q, k, v))
    programs = triton.cdiv(b * t, ROWS)
    out = torch.empty(b, t, 3 * h * width, device=q.device, dtype=q.dtype)
    sums = torch.empty(programs, 3 * h * width, device=q.device, dtype=torch.float32)
    strides = [stride for x in (q, k, v) for stride in x.stride()[:3]]
    with _on(q):
        _pack[(programs, 3 * h)](
            q, k, v, out, sums, b * t, t, *strides,
            HEADS=h, WIDTH=width, PADDED=triton.next_power_of_2(width), ROWS=ROWS, num_warps=4,
        )  # fmt: skip
    return out, sums


@triton.jit
def _gelu_eight(x, y, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + place, mask=place < count, other=0.0).to(tl.float32)
    # x (1 + tanh(z)) / 2 = x / (1 + exp(-2z)); 2 log₂e √(2/π) = 2.302208
    power = -2.302208198 * value * (1 + 0.044715 * value * value)
    out = tl.minimum(value / (1 + tl.exp2(power)), 448.0)
    tl.store(y + place, out.to(y.dtype.element_ty), mask=place < count)


def gelu_eight(x: Tensor, dtype: torch.dtype = torch.float8_e4m3fn) -> Tensor:
    """GELU by its tanh form, as fp8 numbers, cut at 448."""
    y = torch.empty_like(x, dtype=dtype)
    block = 2048
    with _on(x):
        _gelu_eight[(triton.cdiv(x.numel(), block),)](x, y, x.numel(), BLOCK=block, num_warps=4)
    return y


@triton.jit
def _norm_dense(  # type: ignore[no-untyped-def]
    x, carried, weight, column_sums, shift, bias, out, rows, columns, inner, eps,
    GELU: tl.constexpr, EVEN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    lane = tl.arange(0, INNER)
    # rows and columns beyond the end are worked out from the last one, and not stored
    x_place = x + tl.minimum(row, rows - 1)[:, None] * inner + lane[None, :]
    weight_place = weight + tl.minimum(column, columns - 1)[None, :].to(tl.int64) * inner + lane[:, None]
    product = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    sums = tl.zeros((ROWS,), dtype=tl.float32)
    squares = tl.zeros((ROWS,), dtype=tl.float32)
    for start in range(0, inner, INNER):
        if EVEN:
            value = tl.load(x_place + start)
            factor = tl.load(weight_place + start)
            extra = tl.load(carried + start + lane)
        else:
            inside = start + lane < inner
            value = tl.load(x_place + start, mask=inside[None, :], other=0.0)
            factor = tl.load(weight_place + start, mask=inside[:, None], other=0.0)
            extra = tl.load(carried + start + lane, mask=inside, other=0.0)
        product = tl.dot(value, factor, product)
        wide = value.to(tl.float32) + extra[None, :]
        sums += tl.sum(wide, 1)
        squares += tl.sum(wide * wide, 1)
    mean = sums / inner
    rate = tl.rsqrt(tl.maximum(squares / inner - mean * mean, 0.0) + eps)
    within = column < columns
    of_mean = tl.load(column_sums + column, mask=within, other=0.0)
    of_carried = tl.load(shift + column, mask=within, other=0.0)
    y = (product + of_carried[None, :] - mean[:, None] * of_mean[None, :]) * rate[:, None]
    y += tl.load(bias + column, mask=within, other=0.0).to(tl.float32)[None, :]
    if GELU:  # as in _gelu_eight
        y = y / (1 + tl.exp2(-2.302208198 * y * (1 + 0.044715 * y * y)))
    place = row.to(tl.int64)[:, None] * columns + column[None, :]
    tl.store(out + place, y.to(out.dtype.element_ty), mask=(row[:, None] < rows) & within[None, :])


def norm_dense(
    x: Tensor,
    carried: Tensor,
    weight: Tensor,
    column_sums: Tensor,
    shift: Tensor,
    bias: Tensor,
    eps: float,
    then_gelu: bool,
) -> Tensor:
    """`norm(x + carried) Wᵀ + b` for `[r d]` → `[r m]`, and its GELU by the tanh form if asked for.

    The product is of `x` as it is; mean and deviation of each row are found on the way, and put right at the end:
    `norm(x + c) Wᵀ = (x Wᵀ + c Wᵀ - mean · (sums of W's rows)) / deviation`.
    """
    (rows, inner), columns = x.shape, weight.shape[0]
    out = torch.empty(rows, columns, device=x.device, dtype=x.dtype)
    block = {"ROWS": 64, "COLUMNS": 64, "INNER": 64}
    with _on(x):
        _norm_dense[(triton.cdiv(rows, block["ROWS"]), triton.cdiv(columns, block["COLUMNS"]))](
            x, carried, weight, column_sums, shift, bias, out, rows, columns, inner, eps,
            GELU=then_gelu, EVEN=inner % block["INNER"] == 0, **block, num_warps=4, num_stages=4,
        )  # fmt: skip
    return out


def _on(x: Tensor) -> Any:
    """Triton launches on the current device, which need not be the tensor's."""
    from contextlib import nullcontext

    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()
