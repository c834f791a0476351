"""Triton's kernels against plain torch: on a GPU as they are, elsewhere in Triton's interpreter, in its own process."""

import os
import subprocess
import sys

import pytest
import torch

pytest.importorskip("triton")

CHECK = """
import torch
from vitreous.speed import fused_ops, triton_kernels as kernels
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.backends.cuda.matmul.allow_tf32 = False
torch.manual_seed(0)
plain = {name: getattr(fused_ops, name)._init_fn for name in ("gelu_backward", "pack", "attend", "attend_backward")}
fused_ops.has_triton = lambda device: False
x, slope = torch.randn(2, 130, 200, device=device).unbind(0)  # neither a multiple of what a program takes
for ours, theirs in zip(kernels.gelu_backward(x, slope), plain["gelu_backward"](x, slope), strict=True):
    assert ours.shape == theirs.shape and (ours - theirs).abs().max() < 1e-5, (ours - theirs).abs().max()
assert (kernels.gelu(x) - fused_ops.fused_gelu._init_fn(x)).abs().max() < 1e-6
q, k, v = torch.randn(2, 21, 3, 3, 24, device=device).permute(2, 0, 3, 1, 4).unbind(0)
packed, sums = kernels.pack(q, k.contiguous(), v)
expected, their_sums = plain["pack"](q, k, v)
assert torch.equal(packed, expected) and (sums - their_sums).abs().max() < 1e-5
x = torch.randn(3, 1000, device=device) * 4
x[0, 0] = 1000
theirs = torch.nn.functional.gelu(x, approximate="tanh").clamp(max=448)
wide = kernels.gelu_fp8(x, torch.float32)  # the interpreter's own rounding to fp8 drops a carry
assert wide.max() == 448 and (wide - theirs).abs().max() < 1e-5
if device == "cuda":
    assert ((kernels.gelu_fp8(x).float() - theirs).abs() <= 0.07 * theirs.abs() + 2**-10).all()
# the interpreter cannot multiply bf16, and a GPU rounds fp32 before it multiplies
formats = {torch.bfloat16: 3e-2} if device == "cuda" else {torch.float32: 2e-5, torch.float16: 4e-3}
for images, tokens, heads, width in ((2, 21, 3, 16), (1, 197, 2, 64)):  # no multiple of what a program takes
    qkv = 2 * torch.randn(images * tokens, 3 * heads * width, device=device)
    for dtype, near in formats.items():
        ours = kernels.attend(qkv.to(dtype), images, heads)
        theirs = plain["attend"](qkv.to(dtype).float(), images, heads)
        assert ours.dtype == dtype and (ours - theirs).abs().max() < near, (dtype, (ours - theirs).abs().max())
for images, tokens, heads, width in ((2, 21, 3, 16), (3, 64, 2, 64)):
    qkv = 2 * torch.randn(images * tokens, 3 * heads * width, device=device)
    slope = torch.randn(images * tokens, heads * width, device=device)
    for dtype, near in formats.items():
        ours = kernels.attend_backward(qkv.to(dtype), slope.to(dtype), images, heads)
        theirs = plain["attend_backward"](qkv.to(dtype).float(), slope.to(dtype).float(), images, heads)
        for one, other in zip(ours, theirs, strict=True):
            assert (one - other).abs().max() < near * other.abs().max(), (dtype, (one - other).abs().max())
angles = torch.randn(2, 64, 32, device=device)
turns = torch.stack([angles[0].sin(), angles[0].cos()])
for images, tokens, heads, width in ((2, 21, 3, 32), (3, 64, 2, 64)):
    qkv = 2 * torch.randn(images * tokens, 3 * heads * width, device=device)
    slope = torch.randn(images * tokens, heads * width, device=device)
    some = turns[:, :tokens, : width // 2].contiguous()
    for dtype, near in formats.items():
        ours = [kernels.attend(qkv.to(dtype), images, heads, some)]
        ours += kernels.attend_backward(qkv.to(dtype), slope.to(dtype), images, heads, some)
        theirs = [plain["attend"](qkv.to(dtype).float(), images, heads, some)]
        theirs += plain["attend_backward"](qkv.to(dtype).float(), slope.to(dtype).float(), images, heads, some)
        for one, other in zip(ours, theirs, strict=True):
            assert (one - other).abs().max() < near * other.abs().max(), (dtype, (one - other).abs().max())
print("equal")
"""


@pytest.mark.slow
def test_kernels_give_what_plain_torch_gives():
    environment = dict(os.environ) if torch.cuda.is_available() else {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", CHECK], capture_output=True, text=True, env=environment)
    assert done.stdout.strip() == "equal", done.stderr[-2000:]
