"""int8: matrix products of whole numbers, for CPUs and GPUs that have them.

Weights are scaled for each output, once; what goes into a product for each token, as it comes: its range, from its own
smallest to its own largest number, is spread over 256 whole numbers. With the offset that this takes, numbers that are
mostly positive (GELU's) use the whole range; it costs one number for each token and one for each output. What attention
multiplies, two sets of tokens, is bf16 on CPUs that multiply such numbers, fp32 elsewhere.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.models.vit import Attention
from vitreous.speed.int8_cpu import available, whole_product

FEWEST = 32
"""Rows of a product on a GPU at the least: its kernel wants more than 16."""
MULTIPLE = 8
"""What a GPU's kernel wants the sides of a weight to be multiples of."""
LARGE = 50_000_000
"""Multiplications of a product on a CPU from which a weight laid out before saves more than the longer call costs."""
MOST_TOKENS = 512
"""Tokens of an image up to which attention's matrix `[h t t]` is worked out whole: beyond, it would fill memory."""
SMALLEST = 1e-12
"""Range of a token at the least: one that is all the same has none."""


def supports(device: torch.device) -> str | None:
    """None where the device multiplies int8 numbers, else why not."""
    if device.type not in ("cpu", "cuda"):
        return f"int8 runs on CPUs and NVIDIA GPUs, this is {device.type}: try bf16"
    if not hasattr(torch, "_int_mm"):
        return f"torch {torch.__version__} has no product of int8 numbers: try bf16, or another torch"
    return None


class Integer(nn.Module):
    """A linear layer whose product is of int8 numbers, summed exactly in int32."""

    weight: Tensor
    scale: Tensor
    column: Tensor
    bias: Tensor

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        weight = layer.weight.detach().float()  # [out in]
        scale = weight.abs().amax(dim=1).clamp(min=SMALLEST) / 127  # [out]
        whole = (weight / scale[:, None]).round().clamp(-127, 127)
        bias = torch.zeros(layer.out_features) if layer.bias is None else layer.bias.detach().float()
        self.register_buffer("weight", whole.to(torch.int8).t().contiguous())  # [in out]
        self.register_buffer("scale", scale)
        self.register_buffer("column", scale * whole.sum(dim=1))  # what an offset of one would add to each output
        self.register_buffer("bias", bias.to(scale.device))
        self.laid_out = scale.device.type == "cpu" and available()

    def forward(self, x: Tensor) -> Tensor:
        """`[… in]` → `[… out]`, in the format of `x`."""
        rows = x.reshape(-1, self.in_features).float()
        low, high = rows.amin(dim=1, keepdim=True), rows.amax(dim=1, keepdim=True)  # [r 1]
        step = (high - low).clamp(min=SMALLEST) / 255
        laid_out = self.laid_out and rows.shape[0] * self.weight.numel() >= LARGE
        first = 0 if laid_out else -128  # of uint8, of int8
        offset = (first - low / step).round()
        whole = (rows / step + offset).round().clamp(first, first + 255)
        out = self.product(whole, laid_out) * step - (offset * step) * self.column + self.bias
        return out.to(x.dtype).view(*x.shape[:-1], self.out_features)

    def product(self, whole: Tensor, laid_out: bool) -> Tensor:
        """Whole numbers `[r in]` → `[r out]`, in units of the tokens' steps."""
        if laid_out:
            return whole_product(whole.to(torch.uint8), self.weight, self.scale)
        fewest = FEWEST if whole.is_cuda else 0
        sums = torch._int_mm(filled(whole.to(torch.int8), fewest), self.weight)
        return sums[: len(whole)].float() * self.scale


class Attention16(Attention):
    """Attention whose products of tokens are bf16: rounded less than its int8 ones."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """`[b t d]` → `[b t d]`."""
        b, t, d = x.shape
        if mask is not None or t > MOST_TOKENS:
            return super().forward(x, mask)
        width = d // self.heads
        q, k, v = self.qkv(x).reshape(b, t, 3, self.heads, width).permute(2, 0, 3, 1, 4).unbind(0)  # [b h t k]
        q, k, v = (each.to(torch.bfloat16) for each in (self.q_norm(q) * width**-0.5, self.k_norm(k), v))
        mixed = (q @ k.transpose(2, 3)).softmax(dim=3) @ v  # [b h t t] is kept: it is small
        return self.proj(mixed.transpose(1, 2).reshape(b, t, d).to(x.dtype))


def filled(rows: Tensor, fewest: int) -> Tensor:
    """Rows `[r n]` and so many of zeros that there are `fewest`.

    >>> filled(torch.ones(1, 2), 3).tolist()
    [[1.0, 1.0], [0.0, 0.0], [0.0, 0.0]]
    """
    missing = fewest - len(rows)
    return F.pad(rows, (0, 0, 0, missing)) if missing > 0 else rows


def fits(layer: nn.Linear) -> bool:
    """Whether the device that holds a layer has a kernel for its sides."""
    return not layer.weight.is_cuda or not (layer.in_features % MULTIPLE or layer.out_features % MULTIPLE)


def to_integers(network: nn.Module) -> None:
    """The linear layers of the blocks, in place. The last block's queries are read from a weight, and so stay."""
    blocks = network.get_submodule("blocks")
    last = str(len(list(blocks.children())) - 1)
    for name, module in list(blocks.named_modules()):
        if type(module) is nn.Linear and name != f"{last}.attn.qkv" and fits(module):
            parent, _, own = name.rpartition(".")
            setattr(blocks.get_submodule(parent), own, Integer(module))
    if multiplies_bf16(next(network.parameters()).device):
        for block in list(blocks.children())[:-1]:
            block.get_submodule("attn").__class__ = Attention16  # the same layer, computed otherwise


def multiplies_bf16(device: torch.device) -> bool:
    """Whether this is a CPU with instructions for bf16 products."""
    return device.type == "cpu" and bool(getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)())
