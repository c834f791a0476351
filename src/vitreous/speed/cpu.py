"""The forward pass for a CPU: weights packed once in oneDNN's layout, with GELU and residuals fused into the products.

torch's linear layers pass fp32 to MKL, which packs weights at every call; oneDNN keeps them packed, and fuses exact
GELU and the residual's addition. These are the operations that torch's compiler inserts for frozen weights, called
directly: nothing has to be compiled.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.models.last_block import OutputKind, read_last_block
from vitreous.models.vit import ViT
from vitreous.speed.gpu import mix


def available() -> bool:
    """Whether this torch has oneDNN and its fused linear layers."""
    operations = torch.ops.mkldnn
    wanted = ("_linear_pointwise", "_reorder_linear_weight")
    return torch.backends.mkldnn.is_available() and all(hasattr(operations, name) for name in wanted)


class PackedLinear:
    """A linear layer whose weight is packed for oneDNN, for a number of rows at once."""

    def __init__(self, layer: nn.Linear, rows: int) -> None:
        self.weight = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), rows)
        self.bias = layer.bias.detach()

    def __call__(self, x: Tensor, then: str = "none", kind: str | None = None) -> Tensor:
        """Compute `x Wᵀ + b`, and with `then="gelu"` its GELU of a `kind` ("none" is exact, or "tanh")."""
        result: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, then, [], kind)
        return result

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """Compute `residual + x Wᵀ + b`."""
        result: Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, residual, self.weight, self.bias, "add")
        return result


@torch.no_grad()
def packed_forward(network: ViT, batch_size: int, output: OutputKind = "logits") -> Callable[[Tensor], Tensor]:
    """Build a callable from images `[b c H W]` to logits or features, of a folded network that `gpu.fits` supports."""
    rows = batch_size * network.layout.tokens
    blocks: list[tuple[Any, list[PackedLinear]]] = []
    for block in network.blocks[:-1]:
        layers: Any = (block.attn.qkv, block.attn.proj, block.mlp.fc1, block.mlp.fc2)  # type: ignore[union-attr]
        blocks.append((block, [PackedLinear(layer, rows) for layer in layers]))

    @torch.no_grad()
    def compute(x: Tensor) -> Tensor:
        x = network.embed(x)
        b, t, d = x.shape
        x = x.reshape(b * t, d)  # [r d]
        for block, (qkv, proj, fc1, fc2) in blocks:
            kind = "tanh" if block.mlp.activation == "gelu_tanh" else "none"
            x = proj.add(mix(block.attn, qkv(block.norm1(x)), b), x)
            x = fc2.add(fc1(block.norm2(x), "gelu", kind), x)
        x = x.view(b, t, d)
        return read_last_block(network, x, output)

    return compute
