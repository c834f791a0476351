"""The forward pass for a GPU and few tokens, such as one picture: as few kernels as can be.

With 197 rows a GPU finishes each kernel in a few millionths of a second, and beginning the next takes as long. So the
layer norms go into the products behind them (`fused.norm_dense`), GELU and the residual's sum into the products before
them (as in `lean.py`): five kernels a block.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vitreous.models.vit import ViT
from vitreous.speed.fused import add_dense, norm_dense
from vitreous.speed.lean import mix
from vitreous.speed.shortcut import block_rows, tokens_of_heads

MOST_ROWS = 1024
"""Tokens of a batch up to which this is worth trying: beyond, the products are what takes time."""


class Behind(NamedTuple):
    """A layer norm and the linear layer behind it; what tokens lack by then of the biases before is a constant."""

    carried: Tensor  # [d]
    weight: Tensor  # [m d]
    column_sums: Tensor  # [m]
    shift: Tensor  # [m]
    bias: Tensor  # [m]
    eps: float


@torch.no_grad()
def few(network: ViT) -> Callable[[Tensor], Tensor]:
    """Pictures `[b c H W]` to logits; `network` is folded, and fits (`lean.fits`)."""
    blocks, carried = constants(network)

    def run(x: Tensor) -> Tensor:
        x = network.embed(x)
        b, t, d = x.shape
        x = x.reshape(b * t, d).clone()  # [r d], added to in place from here on
        for block, queries, hidden in blocks:
            mixed = mix(block.attn, norm_dense(x, *queries, then_gelu=False), b)
            add_dense(x, mixed, block.attn.proj.weight)
            add_dense(x, norm_dense(x, *hidden, then_gelu=True), block.mlp.fc2.weight)
        x = (x + carried).to(x.dtype).view(b, t, d)
        return network.forward_head(network.norm(block_rows(network.blocks[-1], x, tokens_of_heads(network))))

    return run


def constants(network: ViT) -> tuple[list[tuple[Any, Behind, Behind]], Tensor]:
    """Each block but the last with its two norms and what is behind them; and what tokens lack at the end, `[d]`."""
    carried = torch.zeros(network.config.width, device=next(network.parameters()).device)
    blocks: list[tuple[Any, Behind, Behind]] = []
    block: Any
    for block in network.blocks[:-1]:
        queries = _behind(block.norm1, block.attn.qkv, carried)
        carried = carried + block.attn.proj.bias.detach().float()
        blocks.append((block, queries, _behind(block.norm2, block.mlp.fc1, carried)))
        carried = carried + block.mlp.fc2.bias.detach().float()
    return blocks, carried


def _behind(norm: Any, layer: nn.Linear, carried: Tensor) -> Behind:
    weight = layer.weight.detach().contiguous()
    wide = weight.float()
    return Behind(carried, weight, wide.sum(dim=1), wide @ carried, layer.bias.detach(), norm.eps)
