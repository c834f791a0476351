"""The forward pass for a GPU: as few trips to memory as torch's own kernels allow.

Half of the time of a compiled ViT goes into its matrix products, the rest into reading and writing tokens between them.
So: GELU inside the product before it, the residual added inside the product, and the biases of those products, which
then have no place there, carried along as one vector `[d]` that each layer norm adds to what it reads.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.models.last_block import block_rows, rows_read, tokens_of_heads
from vitreous.models.vit import MLP, TransformerBlock, ViT
from vitreous.speed.fused import add_dense, attend, dense_gelu
from vitreous.speed.gelu import gelu

FEW = 1024
"""Tokens of a batch up to which an attention kernel of our own is worth trying."""


def lean(network: ViT, x: Tensor, *, inside: bool = True, few: bool = False) -> Tensor:
    """Logits of a folded network (`fold.py`) for images `[b c H W]`.

    `inside` works GELU out inside the product before it, by its tanh form, which lies up to 5e-4 beside: about what
    bf16 rounds away. Else it is a kernel of its own, exact to 2e-7 (and the tanh form where that is the network's own).
    `few` is for few tokens, such as one image's (`fits_few`): attention by `fused.attend`.
    """
    x = network.embed(x)
    b, t, d = x.shape
    x = x.reshape(b * t, d).clone()  # [r d], added to in place from here on
    carried = torch.zeros(d, device=x.device, dtype=torch.float32)
    for block in network.blocks[:-1]:
        assert isinstance(block, TransformerBlock)
        attention, mlp = block.attn, block.mlp
        qkv = F.linear(norm(x, carried, block.norm1), attention.qkv.weight, attention.qkv.bias)
        mixed = attend(qkv, b, attention.heads) if few else mix(attention, qkv, b)
        add_dense(x, mixed, attention.proj.weight)
        carried = carried + attention.proj.bias
        y = norm(x, carried, block.norm2)
        add_dense(x, _hidden(mlp, y, inside), mlp.fc2.weight)
        carried = carried + mlp.fc2.bias
    x = (x + carried).to(x.dtype).view(b, t, d)
    return network.forward_head(network.norm(block_rows(network.blocks[-1], x, tokens_of_heads(network))))


def _hidden(mlp: MLP, x: Tensor, inside: bool) -> Tensor:
    weight, bias = mlp.fc1.weight, mlp.fc1.bias
    if inside:
        return dense_gelu(x, weight, bias)
    hidden = F.linear(x, weight, bias)
    return F.gelu(hidden, approximate="tanh") if mlp.activation == "gelu_tanh" else gelu(hidden)


def fits(network: nn.Module) -> bool:
    """Whether a folded network is one that `lean` computes: GELU, biases everywhere, the head reads tokens."""
    return rows_read(network) is not None and all(_fits(block) for block in network.blocks)  # type: ignore[union-attr]


def _fits(block: Any) -> bool:
    layers = (block.attn.qkv, block.attn.proj, block.mlp.fc1, block.mlp.fc2)
    return (
        block.mlp.activation in ("gelu", "gelu_tanh")
        and all(type(layer) is nn.Linear and layer.bias is not None for layer in layers)
        and all(isinstance(each, nn.LayerNorm) and each.weight is None for each in (block.norm1, block.norm2))
        and isinstance(block.ls1, nn.Identity)
        and isinstance(block.ls2, nn.Identity)
    )


def fits_few(network: Any) -> bool:
    """Whether `few` is for it: heads of a width that the kernel takes, and nothing between queries and their use."""
    attention = network.blocks[0].attn
    return network.config.width // attention.heads in (16, 32, 64, 128) and isinstance(attention.q_norm, nn.Identity)


def norm(x: Tensor, carried: Tensor, layer: nn.LayerNorm, dtype: torch.dtype | None = None) -> Tensor:
    """A layer norm without scale and shift over `x + carried`, in fp32 within."""
    return F.layer_norm(x.float() + carried, layer.normalized_shape, eps=layer.eps).to(dtype or x.dtype)


def mix(attention: Any, qkv: Tensor, b: int) -> Tensor:
    """Attention from queries, keys and values side by side: `[r 3d]` → `[r d]`."""
    r, heads = qkv.shape[0], attention.heads
    q, k, v = qkv.view(b, r // b, 3, heads, -1).permute(2, 0, 3, 1, 4).unbind(0)  # [b h t k]
    mixed = F.scaled_dot_product_attention(attention.q_norm(q), attention.k_norm(k), v)
    return mixed.transpose(1, 2).reshape(r, -1)
