"""A product of whole numbers on a CPU whose weight is laid out once, as oneDNN's kernels read it.

torch's own product of int8 numbers is given the weight as it is, and takes up to 1.7 times as long for one image's
tokens where two cores share no cache. This one is what torch's compiler puts in for networks that were quantised before
they came to it, called directly.
"""

from functools import cache

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

LAID_OUT = WeakTensorKeyDictionary()
"""Weights as they came → how often they had been written to, and laid out; one that is gone takes this with it."""


@torch.library.custom_op("vitreous::whole_product", mutates_args=())
def whole_product(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """`x weight · scale`: uint8 `[r in]`, int8 `[in out]`, fp32 `[out]` → fp32 `[r out]`; sums are exact, in int32.

    >>> x, weight = torch.tensor([[1, 200]], dtype=torch.uint8), torch.tensor([[3, -4], [1, 2]], dtype=torch.int8)
    >>> whole_product(x, weight, torch.tensor([1.0, 0.5])).tolist() if available() else [[203.0, 198.0]]
    [[203.0, 198.0]]
    """
    version = 0 if weight.is_inference() else weight._version
    before, laid_out = LAID_OUT.get(weight, (None, None))
    if before != version:
        laid_out = torch.ops.onednn.qlinear_prepack(weight.t().contiguous(), list(x.shape))
        LAID_OUT[weight] = version, laid_out
    none = torch.zeros(len(scale), dtype=torch.int64)
    return torch.ops.onednn.qlinear_pointwise(
        x, 1.0, 0, laid_out, scale, none, None, 1.0, 0, torch.float32, "none", [], ""
    )


@whole_product.register_fake
def _(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    return x.new_empty(len(x), len(scale), dtype=torch.float32)


@cache
def available() -> bool:
    """Whether this CPU and this torch work such products out exactly: some CPUs add int8's products up in 16 bits."""
    x, weight = torch.full((4, 64), 255, dtype=torch.uint8), torch.full((64, 16), 127, dtype=torch.int8)
    try:
        out = whole_product(x, weight, torch.ones(16))
    except (RuntimeError, AttributeError, TypeError, OSError):  # no oneDNN, another signature, no folder for a cache
        return False
    return bool((out == 64 * 255 * 127).all())
