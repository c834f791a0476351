"""The forward pass for a CPU: weights laid out once as oneDNN's kernels read them, GELU and residuals inside.

torch's own linear layers hand fp32 to MKL, which lays weights out anew at each call; oneDNN keeps them laid out, and
works out GELU, exactly, and the residual's sum on what it has just computed. These are the operations that torch's
compiler puts in for frozen weights, called directly: there is nothing to compile.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.models.last_block import block_rows, tokens_of_heads
from vitreous.models.vit import ViT
from vitreous.speed.gpu import mix


def available() -> bool:
    """Whether this torch has oneDNN and its fused products."""
    operations = torch.ops.mkldnn
    wanted = ("_linear_pointwise", "_reorder_linear_weight")
    return torch.backends.mkldnn.is_available() and all(hasattr(operations, name) for name in wanted)


class Product:
    """A linear layer whose weight is laid out for oneDNN, for so many rows at once."""

    def __init__(self, layer: nn.Linear, rows: int) -> None:
        self.weight = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), rows)
        self.bias = layer.bias.detach()

    def __call__(self, x: Tensor, then: str = "none", kind: str | None = None) -> Tensor:
        """`x Wᵀ + b`, and what comes `then`: nothing, or "gelu" of a `kind` ("none" is the exact one, or "tanh")."""
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, then, [], kind)

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """`residual + x Wᵀ + b`."""
        return torch.ops.mkldnn._linear_pointwise.binary(x, residual, self.weight, self.bias, "add")


@torch.no_grad()
def packed(network: ViT, batch: int) -> Callable[[Tensor], Tensor]:
    """Images `[b c H W]` to logits; `network` is folded, and fits (`lean.fits`)."""
    rows = batch * network.layout.tokens
    blocks: list[tuple[Any, list[Product]]] = []
    for block in network.blocks[:-1]:
        layers: Any = (block.attn.qkv, block.attn.proj, block.mlp.fc1, block.mlp.fc2)  # type: ignore[union-attr]
        blocks.append((block, [Product(layer, rows) for layer in layers]))

    @torch.no_grad()
    def run(x: Tensor) -> Tensor:
        x = network.embed(x)
        b, t, d = x.shape
        x = x.reshape(b * t, d)  # [r d]
        for block, (qkv, proj, fc1, fc2) in blocks:
            kind = "tanh" if block.mlp.activation == "gelu_tanh" else "none"
            x = proj.add(mix(block.attn, qkv(block.norm1(x)), b), x)
            x = fc2.add(fc1(block.norm2(x), "gelu", kind), x)
        x = x.view(b, t, d)
        return network.forward_head(network.norm(block_rows(network.blocks[-1], x, tokens_of_heads(network))))

    return run
