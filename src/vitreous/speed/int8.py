"""int8: linear layers whose products are of 8-bit integers, for CPUs and GPUs that have them.

Weights are scaled for each output, once. Inputs are scaled for each token when they arrive: the range from the token's
smallest to its largest number is mapped to 256 integers. With the zero point that this needs, numbers that are mostly
positive (GELU's) use the full range; it costs one number for each token and one for each output. Attention's own
products are bf16 on CPUs that multiply bf16, else fp32.

On a CPU, large products use oneDNN's with a weight that is packed once. torch's own int8 product gets the weight
unpacked, and takes up to 1.7 times as long for one image's tokens if two cores share no cache.
"""

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from vitreous.models.vit import Attention
from vitreous.speed.fused_ops import split_heads

MIN_ROWS = 32
"""Fewest rows of a product on a GPU: its kernel needs more than 16."""
MULTIPLE = 8
"""The sides of a weight must be multiples of this for a GPU's kernel."""
LARGE = 50_000_000
"""Multiplications of a product on a CPU from which a packed weight saves more than its longer call costs."""
MAX_TOKENS = 512
"""Tokens of an image up to which the attention matrix `[h t t]` is computed in full: larger ones would fill memory."""
MIN_RANGE = 1e-12
"""Smallest range of a token: one whose numbers are all equal has none."""
PACKED = WeakTensorKeyDictionary()
"""Weight → its version when it was packed, and the packed weight; entries are dropped with their weight."""


def supports(device: torch.device) -> str | None:
    """Return None if the device multiplies int8 numbers, else the reason."""
    if device.type not in ("cpu", "cuda"):
        return f"int8 runs on CPUs and NVIDIA GPUs, this is {device.type}: try bf16"
    if not hasattr(torch, "_int_mm"):
        return f"torch {torch.__version__} has no int8 product: try bf16, or another torch"
    return None


class Int8Linear(nn.Module):
    """A linear layer whose product is of int8 numbers, with exact sums in int32."""

    weight: Tensor
    scale: Tensor
    column: Tensor
    bias: Tensor

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        weight = layer.weight.detach().float()  # [out in]
        scale = weight.abs().amax(dim=1).clamp(min=MIN_RANGE) / 127  # [out]
        integers = (weight / scale[:, None]).round().clamp(-127, 127)
        bias = torch.zeros(layer.out_features) if layer.bias is None else layer.bias.detach().float()
        self.register_buffer("weight", integers.to(torch.int8).t().contiguous())  # [in out]
        self.register_buffer("scale", scale)
        self.register_buffer("column", scale * integers.sum(dim=1))  # what a zero point of one would add to each output
        self.register_buffer("bias", bias.to(scale.device))
        self.packs = scale.device.type == "cpu" and packed_available()

    def forward(self, x: Tensor) -> Tensor:
        """Compute a linear layer in int8: `[… in]` → `[… out]`, in the format of `x`."""
        rows = x.reshape(-1, self.in_features).float()
        low, high = rows.amin(dim=1, keepdim=True), rows.amax(dim=1, keepdim=True)  # [r 1]
        step = (high - low).clamp(min=MIN_RANGE) / 255
        packed = self.packs and rows.shape[0] * self.weight.numel() >= LARGE
        first = 0 if packed else -128  # of uint8, of int8
        offset = (first - low / step).round()
        integers = (rows / step + offset).round().clamp(first, first + 255)
        out = self.product(integers, packed) * step - (offset * step) * self.column + self.bias
        return out.to(x.dtype).view(*x.shape[:-1], self.out_features)

    def product(self, integers: Tensor, packed: bool) -> Tensor:
        """Multiply int8 numbers `[r in]` → `[r out]`, in units of the tokens' steps."""
        if packed:
            result: Tensor = packed_product(integers.to(torch.uint8), self.weight, self.scale)
            return result
        count = MIN_ROWS if integers.is_cuda else 0
        sums = torch._int_mm(padded(integers.to(torch.int8), count), self.weight)
        return sums[: len(integers)].float() * self.scale


class Bf16Attention(Attention):
    """Attention whose products of queries, keys and values are bf16, which is more exact than int8."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Compute attention in bf16 inside an int8 network: `[b t d]` → `[b t d]`."""
        b, t, d = x.shape
        if mask is not None or t > MAX_TOKENS:
            return super().forward(x, mask)
        q, k, v = split_heads(self.qkv(x), b, self.heads)
        q, k, v = (each.to(torch.bfloat16) for each in (self.q_norm(q) * q.shape[-1] ** -0.5, self.k_norm(k), v))
        mixed = (q @ k.transpose(2, 3)).softmax(dim=3) @ v  # [b h t t], which is small here
        result: Tensor = self.proj(mixed.transpose(1, 2).reshape(b, t, d).to(x.dtype))
        return result


def padded(rows: Tensor, count: int) -> Tensor:
    """Append rows of zeros to `[r n]` until there are `count`, the fewest that a GPU's int8 product takes.

    >>> padded(torch.ones(1, 2), 3).tolist()
    [[1.0, 1.0], [0.0, 0.0], [0.0, 0.0]]
    """
    missing = count - len(rows)
    return F.pad(rows, (0, 0, 0, missing)) if missing > 0 else rows


def fits(layer: nn.Linear) -> bool:
    """Return whether a linear layer's device has an int8 kernel for its sides."""
    return not layer.weight.is_cuda or not (layer.in_features % MULTIPLE or layer.out_features % MULTIPLE)


def to_int8(network: Any) -> None:
    """Replace the blocks' linear layers by int8 ones. The last block's qkv stays: its weight is read directly."""
    blocks = network.get_submodule("blocks")
    last = str(len(list(blocks.children())) - 1)
    for name, module in list(blocks.named_modules()):
        if type(module) is nn.Linear and name != f"{last}.attn.qkv" and fits(module):
            parent, _, own = name.rpartition(".")
            setattr(blocks.get_submodule(parent), own, Int8Linear(module))
    if network.config.plain and multiplies_bf16(next(network.parameters()).device):
        for block in list(blocks.children())[:-1]:
            block.get_submodule("attn").__class__ = Bf16Attention  # the same weights, another forward


def multiplies_bf16(device: torch.device) -> bool:
    """Return whether this is a CPU with instructions for bf16 products, which int8 networks use in attention."""
    return device.type == "cpu" and bool(getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)())


# --- a CPU's product with a packed weight -----------------------------------------------------------------------------


@torch.library.custom_op("vitreous::packed_int8_product", mutates_args=())
def packed_product(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """Compute the int8 product `x weight · scale`: uint8 `[r in]`, int8 `[in out]`, fp32 `[out]` → fp32 `[r out]`.

    >>> x, weight = torch.tensor([[1, 200]], dtype=torch.uint8), torch.tensor([[3, -4], [1, 2]], dtype=torch.int8)
    >>> packed_product(x, weight, torch.tensor([1.0, 0.5])).tolist() if packed_available() else [[203.0, 198.0]]
    [[203.0, 198.0]]
    """
    version = 0 if weight.is_inference() else weight._version
    before, packed = PACKED.get(weight, (None, None))
    if before != version:
        packed = torch.ops.onednn.qlinear_prepack(weight.t().contiguous(), list(x.shape))
        PACKED[weight] = version, packed
    none = torch.zeros(len(scale), dtype=torch.int64)
    result: Tensor = torch.ops.onednn.qlinear_pointwise(
        x, 1.0, 0, packed, scale, none, None, 1.0, 0, torch.float32, "none", [], ""
    )
    return result


@packed_product.register_fake
def _(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    return x.new_empty(len(x), len(scale), dtype=torch.float32)


@cache
def packed_available() -> bool:
    """Return whether this CPU and this torch compute int8 products exactly: some CPUs sum them in 16 bits."""
    x, weight = torch.full((4, 64), 255, dtype=torch.uint8), torch.full((64, 16), 127, dtype=torch.int8)
    try:
        out = packed_product(x, weight, torch.ones(16))
    except (RuntimeError, AttributeError, TypeError, OSError):  # no oneDNN, another signature, no folder for a cache
        return False
    return bool((out == 64 * 255 * 127).all())
