"""Triton kernels: GELU, attention and their gradients; gradients of queries, keys and values side by side; GELU to fp8.

Each needs fewer memory accesses or fewer instructions than what torch's compiler writes.
Those for the backward pass also sum the columns of their output, for the bias's gradient: rows are summed within a
program, and the caller adds the programs' sums. Triton comes with torch on CUDA; elsewhere `fused_ops.py` uses plain
torch. This module imports Triton, so import it only after `fused_ops.has_triton`.
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
LOG2_E = 1.4426950408889634  # exp(x) = exp2(x log₂e)


@triton.jit  # type: ignore[untyped-decorator]
def _cdf_and_density(  # type: ignore[no-untyped-def]
    x, RATE: tl.constexpr, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    APPROXIMATE: tl.constexpr,
):  # fmt: skip
    """Compute Φ(x), as in gelu.py, and exp(-x²/2) in Triton; a GPU's own instructions are exact to 2e-7 here.

    Triton's division and exponential function also serve numbers that do not occur here, for twice the instructions.
    """
    power, below = x * x * -0.7213475204444817, 1 + RATE * tl.abs(x)
    if APPROXIMATE:
        density = tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [power], tl.float32, True, 1)
        t = tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [below], tl.float32, True, 1)
    else:
        density, t = tl.exp2(power), 1 / below
    tail = t * (A + t * (B + t * (C + t * (D + t * E)))) * density
    return tl.where(x >= 0, 1 - tail, tail), density


@triton.jit  # type: ignore[untyped-decorator]
def _gelu(  # type: ignore[no-untyped-def]
    x, y, count,
    RATE: tl.constexpr, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    APPROXIMATE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute GELU in Triton."""
    offset = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + offset, mask=offset < count, other=0.0).to(tl.float32)
    cdf, _ = _cdf_and_density(value, RATE, A, B, C, D, E, APPROXIMATE)
    tl.store(y + offset, (value * cdf).to(y.dtype.element_ty), mask=offset < count)


def gelu(x: Tensor) -> Tensor:
    """Launch the Triton kernel of GELU."""
    y, block = torch.empty_like(x), 2048
    with _on(x):
        _gelu[(triton.cdiv(x.numel(), block),)](
            x, y, x.numel(), RATE, *HALVES, APPROXIMATE=_has_ptx(x), BLOCK=block, num_warps=4
        )
    return y


@triton.jit  # type: ignore[untyped-decorator]
def _gelu_backward(  # type: ignore[no-untyped-def]
    x, dy, dx, y, sums, rows, columns,
    RATE: tl.constexpr, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    APPROXIMATE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Compute GELU's gradient in Triton, with column sums."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    offset = row.to(tl.int64)[:, None] * columns + column[None, :]
    inside = (row[:, None] < rows) & (column[None, :] < columns)
    value = tl.load(x + offset, mask=inside, other=0.0).to(tl.float32)
    gradient = tl.load(dy + offset, mask=inside, other=0.0).to(tl.float32)
    cdf, density = _cdf_and_density(value, RATE, A, B, C, D, E, APPROXIMATE)
    back = gradient * (cdf + value * density * 0.3989422804014327)  # d(x Φ)/dx = Φ + x φ
    tl.store(dx + offset, back.to(dx.dtype.element_ty), mask=inside)
    tl.store(y + offset, (value * cdf).to(y.dtype.element_ty), mask=inside)
    tl.store(sums + tl.program_id(0) * columns + column, tl.sum(back, 0), mask=column < columns)


def gelu_backward(x: Tensor, dy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Launch the Triton kernel of GELU's gradient: `x`, `dy` `[r c]` → gradient, `gelu(x)`, sums `[programs c]`."""
    rows, columns = x.shape
    programs = triton.cdiv(rows, ROWS)
    dx, y = torch.empty_like(x), torch.empty_like(x)
    sums = torch.empty(programs, columns, device=x.device, dtype=torch.float32)
    with _on(x):
        _gelu_backward[(programs, triton.cdiv(columns, COLUMNS))](
            x, dy, dx, y, sums, rows, columns, RATE, *HALVES,
            APPROXIMATE=_has_ptx(x), ROWS=ROWS, COLUMNS=COLUMNS, num_warps=8,
        )  # fmt: skip
    return dx, y, sums


@triton.jit  # type: ignore[untyped-decorator]
def _pack(  # type: ignore[no-untyped-def]
    q, k, v, out, sums, rows, tokens,
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Concatenate gradients of queries, keys and values in Triton, with column sums."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    which, head = tl.program_id(1) // HEADS, tl.program_id(1) % HEADS
    image, token = (row // tokens).to(tl.int64), row % tokens
    if which == 0:
        source = q + image * q_b + head * q_h + token * q_t
    elif which == 1:
        source = k + image * k_b + head * k_h + token * k_t
    else:
        source = v + image * v_b + head * v_h + token * v_t
    lane = tl.arange(0, PADDED)
    inside = (row[:, None] < rows) & (lane[None, :] < WIDTH)
    value = tl.load(source[:, None] + lane[None, :], mask=inside, other=0.0)
    columns: tl.constexpr = 3 * HEADS * WIDTH
    column = tl.program_id(1) * WIDTH + lane
    tl.store(out + row.to(tl.int64)[:, None] * columns + column[None, :], value, mask=inside)
    tl.store(sums + tl.program_id(0) * columns + column, tl.sum(value.to(tl.float32), 0), mask=lane < WIDTH)


def pack(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Launch the Triton kernel that concatenates three `[b h t k]` to `[b t 3hk]`, with sums `[programs 3hk]`."""
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


@triton.jit  # type: ignore[untyped-decorator]
def _gelu_fp8(x, y, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Compute GELU to fp8 in Triton."""
    offset = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + offset, mask=offset < count, other=0.0).to(tl.float32)
    # x (1 + tanh(z)) / 2 = x / (1 + exp(-2z)); 2 log₂e √(2/π) = 2.302208
    power = -2.302208198 * value * (1 + 0.044715 * value * value)
    out = tl.minimum(value / (1 + tl.exp2(power)), 448.0)
    tl.store(y + offset, out.to(y.dtype.element_ty), mask=offset < count)


def gelu_fp8(x: Tensor, dtype: torch.dtype = torch.float8_e4m3fn) -> Tensor:
    """Launch the Triton kernel of GELU as fp8 numbers, by its tanh form, clamped at 448."""
    y = torch.empty_like(x, dtype=dtype)
    block = 2048
    with _on(x):
        _gelu_fp8[(triton.cdiv(x.numel(), block),)](x, y, x.numel(), BLOCK=block, num_warps=4)
    return y


@triton.jit  # type: ignore[untyped-decorator]
def _load_turned(  # type: ignore[no-untyped-def]
    source, turns, token, tokens, STEP: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """Load queries or keys in Triton as their two halves, rotated by position; sines stand before cosines."""
    lane = tl.arange(0, HALF)[None, :]
    sine = tl.load(turns + token[:, None] * HALF + lane)
    cosine = tl.load(turns + (tokens + token)[:, None] * HALF + lane)
    a, b = tl.load(source + token[:, None] * STEP + lane), tl.load(source + token[:, None] * STEP + HALF + lane)
    return (a * cosine - b * sine).to(a.dtype), (b * cosine + a * sine).to(a.dtype), sine, cosine


@triton.jit  # type: ignore[untyped-decorator]
def _attend(  # type: ignore[no-untyped-def]
    qkv, turns, out, tokens, scale,
    TURNED: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Compute attention of one image and head in Triton, with an online softmax."""
    parts = tl.cdiv(tokens, ROWS)  # of a head's rows; one axis of the grid for all, as the others are short
    row = tl.program_id(0) % parts * ROWS + tl.arange(0, ROWS)
    image, head = (tl.program_id(0) // (parts * HEADS)).to(tl.int64), tl.program_id(0) // parts % HEADS
    lane = tl.arange(0, WIDTH)
    step: tl.constexpr = 3 * HEADS * WIDTH  # from a token to the next
    half: tl.constexpr = WIDTH // 2
    begin = qkv + image * tokens * step + head * WIDTH
    source = begin + lane[None, :]
    # tokens beyond the end are computed from the last one, and not stored
    held = tl.minimum(row, tokens - 1)
    if TURNED:
        query, query2, _, _ = _load_turned(begin, turns, held, tokens, step, half)
    else:
        query = tl.load(source + held[:, None] * step)
    largest = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    mixed = tl.zeros((ROWS, WIDTH), tl.float32)
    for start in range(0, tokens, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        at = tl.minimum(column, tokens - 1)
        if TURNED:
            key, key2, _, _ = _load_turned(begin + HEADS * WIDTH, turns, at, tokens, step, half)
            product = tl.dot(query2, tl.trans(key2), tl.dot(query, tl.trans(key)))
        else:
            key = tl.load(source + at[:, None] * step + HEADS * WIDTH)
            product = tl.dot(query, tl.trans(key))
        value = tl.load(source + at[:, None] * step + 2 * HEADS * WIDTH)
        score = tl.where(column[None, :] < tokens, product * scale, float("-inf"))
        now = tl.maximum(largest, tl.max(score, 1))
        weight, shrink = tl.exp2(score - now[:, None]), tl.exp2(largest - now)
        total = total * shrink + tl.sum(weight, 1)
        mixed = tl.dot(weight.to(value.dtype), value, mixed * shrink[:, None])
        largest = now
    offset = out + (image * tokens + row[:, None]) * (HEADS * WIDTH) + head * WIDTH + lane[None, :]
    tl.store(offset, (mixed / total[:, None]).to(out.dtype.element_ty), mask=row[:, None] < tokens)


def attend(qkv: Tensor, images: int, heads: int, turns: Tensor | None = None) -> Tensor:
    """Launch the Triton kernel of attention: concatenated queries, keys and values, `[r 3d]` → `[r d]`, read once.

    The softmax is computed online: the sums so far are rescaled whenever a larger score appears. `turns`, sines and
    cosines `[2 t k/2]`, rotate queries and keys whose halves are pairs.
    """
    rows, d = qkv.shape[0], qkv.shape[1] // 3
    tokens, width = rows // images, d // heads
    out = torch.empty(rows, d, device=qkv.device, dtype=qkv.dtype)
    tile = max(16, triton.next_power_of_2(tokens))
    with _on(qkv):
        _attend[(triton.cdiv(tokens, min(ROWS, tile)) * images * heads,)](
            qkv, turns, out, tokens, width**-0.5 * LOG2_E, TURNED=turns is not None,
            HEADS=heads, WIDTH=width, ROWS=min(ROWS, tile), COLUMNS=min(COLUMNS, tile), num_warps=4, num_stages=2,
        )  # fmt: skip
    return out


@triton.jit  # type: ignore[untyped-decorator]
def _attend_backward(  # type: ignore[no-untyped-def]
    qkv, turns, dy, out, sums, tokens, scale, LOG2_E: tl.constexpr, TURNED: tl.constexpr,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """Compute attention's gradient for one image and head in Triton, all tokens at once, with column sums."""
    image, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    row, lane = tl.arange(0, TOKENS), tl.arange(0, WIDTH)
    d: tl.constexpr = HEADS * WIDTH
    half: tl.constexpr = WIDTH // 2
    inside = row[:, None] < tokens
    held = tl.minimum(row, tokens - 1)  # tokens beyond the end are the last one again, without weight or slope
    begin = (image * tokens).to(tl.int64) * (3 * d) + head * WIDTH
    value = tl.load(qkv + begin + 2 * d + held[:, None] * (3 * d) + lane[None, :])
    after = dy + (image * tokens).to(tl.int64) * d + head * WIDTH
    slope = tl.load(after + row[:, None] * d + lane[None, :], mask=inside, other=0.0)
    if TURNED:
        query, query2, sine, cosine = _load_turned(qkv + begin, turns, held, tokens, 3 * d, half)
        key, key2, _, _ = _load_turned(qkv + begin + d, turns, held, tokens, 3 * d, half)
        product = tl.dot(query2, tl.trans(key2), tl.dot(query, tl.trans(key)))
    else:
        query = tl.load(qkv + begin + held[:, None] * (3 * d) + lane[None, :])
        key = tl.load(qkv + begin + d + held[:, None] * (3 * d) + lane[None, :])
        product = tl.dot(query, tl.trans(key))
    # the softmax is computed again: its matrix was never stored
    score = tl.where(row[None, :] < tokens, product * (scale * LOG2_E), float("-inf"))
    weight = tl.exp2(score - tl.max(score, 1)[:, None])
    weight = weight / tl.sum(weight, 1)[:, None]
    dweight = tl.dot(slope, tl.trans(value))
    dscore = weight * (dweight - tl.sum(weight * dweight, 1)[:, None]) * scale
    dscore = dscore.to(value.dtype)
    result, total = out + begin + row[:, None] * (3 * d), sums + image * 3 * d + head * WIDTH
    dvalue = tl.dot(tl.trans(weight.to(slope.dtype)), slope)
    tl.store(result + 2 * d + lane[None, :], dvalue.to(out.dtype.element_ty), mask=inside)
    tl.store(total + 2 * d + lane, tl.sum(dvalue, 0))
    if TURNED:
        part = tl.arange(0, half)
        a, b = tl.dot(dscore, key), tl.dot(dscore, key2)
        dquery, dquery2 = a * cosine + b * sine, b * cosine - a * sine  # rotated back
        tl.store(result + part[None, :], dquery.to(out.dtype.element_ty), mask=inside)
        tl.store(result + half + part[None, :], dquery2.to(out.dtype.element_ty), mask=inside)
        tl.store(total + part, tl.sum(dquery, 0))
        tl.store(total + half + part, tl.sum(dquery2, 0))
        a, b = tl.dot(tl.trans(dscore), query), tl.dot(tl.trans(dscore), query2)
        dkey, dkey2 = a * cosine + b * sine, b * cosine - a * sine
        tl.store(result + d + part[None, :], dkey.to(out.dtype.element_ty), mask=inside)
        tl.store(result + d + half + part[None, :], dkey2.to(out.dtype.element_ty), mask=inside)
        tl.store(total + d + part, tl.sum(dkey, 0))
        tl.store(total + d + half + part, tl.sum(dkey2, 0))
    else:
        dquery, dkey = tl.dot(dscore, key), tl.dot(tl.trans(dscore), query)
        tl.store(result + lane[None, :], dquery.to(out.dtype.element_ty), mask=inside)
        tl.store(result + d + lane[None, :], dkey.to(out.dtype.element_ty), mask=inside)
        tl.store(total + lane, tl.sum(dquery, 0))
        tl.store(total + d + lane, tl.sum(dkey, 0))


def attend_backward(
    qkv: Tensor, dy: Tensor, images: int, heads: int, turns: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Launch the Triton kernel of attention's gradient: `[r 3d]`, `[r d]` → `[r 3d]`, sums `[images 3d]`.

    One program holds a whole matrix of attention: for few tokens.
    """
    rows, d = qkv.shape[0], qkv.shape[1] // 3
    tokens, width = rows // images, d // heads
    out, sums = torch.empty_like(qkv), torch.empty(images, 3 * d, device=qkv.device, dtype=torch.float32)
    with _on(qkv):
        _attend_backward[(images * heads,)](
            qkv, turns, dy, out, sums, tokens, width**-0.5, LOG2_E, TURNED=turns is not None,
            HEADS=heads, WIDTH=width, TOKENS=max(16, triton.next_power_of_2(tokens)), num_warps=4,
        )  # fmt: skip
    return out, sums


def _has_ptx(x: Tensor) -> bool:
    """Return whether Triton kernels for a tensor may have NVIDIA's instructions; ROCm calls its devices CUDA too."""
    return x.is_cuda and torch.version.hip is None


def _on(x: Tensor) -> Any:
    """Make a tensor's device the current one, on which Triton launches."""
    from contextlib import nullcontext

    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()
