"""int8: matrix products of whole numbers, for CPUs and GPUs that have them.

Weights are scaled for each output, once; what goes into a product for each token, as it comes: its range, from its own
smallest to its own largest number, is spread over -128 … 127. With the offset that this takes, numbers that are mostly
positive (GELU's) use the whole range; it costs one number for each token and one for each output.
"""

import torch
from torch import Tensor, nn

SMALLEST = 1e-12
"""Range of a token at the least: one that is all the same has none."""


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

    def forward(self, x: Tensor) -> Tensor:
        """`[… in]` → `[… out]`, in the format of `x`."""
        rows = x.reshape(-1, self.in_features).float()
        low, high = rows.amin(dim=1, keepdim=True), rows.amax(dim=1, keepdim=True)  # [r 1]
        step = (high - low).clamp(min=SMALLEST) / 255
        offset = (-128 - low / step).round()
        whole = (rows / step + offset).round().clamp(-128, 127).to(torch.int8)
        sums = torch._int_mm(whole, self.weight).float()  # [r out]
        out = sums * step * self.scale - (offset * step) * self.column + self.bias
        return out.to(x.dtype).view(*x.shape[:-1], self.out_features)


def to_integers(network: nn.Module) -> None:
    """The linear layers of the blocks, in place. The last block's queries are read from a weight, and so stay."""
    blocks = network.get_submodule("blocks")
    last = str(len(list(blocks.children())) - 1)
    for name, module in list(blocks.named_modules()):
        if type(module) is nn.Linear and name != f"{last}.attn.qkv":
            parent, _, own = name.rpartition(".")
            setattr(blocks.get_submodule(parent), own, Integer(module))
