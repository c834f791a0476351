"""Forward passes for inference with fused operations: `fused_forward` for a GPU, `packed_forward` (oneDNN) for a CPU.

Half of the time of a compiled ViT goes into its matrix products, the rest into reading and writing tokens between them.
`fused_forward` computes GELU inside the product before it and adds the residual inside the product after it. The biases
of those products are carried along as one vector `[d]` that each layer norm adds to its input.

On a CPU torch's linear layers pass fp32 to MKL, which packs weights at every call; oneDNN keeps them packed, and fuses
exact GELU and the residual's addition. These are the operations that torch's compiler inserts for frozen weights,
called directly (`onednn.py`).
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.models.last_block import OutputKind, read_last_block, rows_read
from vitreous.models.rope import rotate
from vitreous.models.vit import MLP, TransformerBlock, ViT
from vitreous.speed.fused_ops import add_dense, attend, dense_gelu, split_heads
from vitreous.speed.gelu import gelu
from vitreous.speed.onednn import PackedLinear, fused_attention, onednn_available, onednn_products
from vitreous.speed.weight_folding import fold

LARGEST_COPY = 100_000_000
"""Parameters up to which `pack` copies a model: 400 MB."""
Kernel = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Attention from queries, keys and values, three `[b h t k]`, to what each token receives, `[b h t k]`."""
SMALL_BATCH = 1024
"""Tokens of a batch up to which our own attention kernel is worth trying."""


def fused_forward(
    network: ViT, x: Tensor, *, output: OutputKind = "logits", fused_gelu: bool = True, own_attention: bool = False
) -> Tensor:
    """Compute logits or features of a folded network on a GPU with few memory accesses: images `[b c H W]`.

    `fused_gelu` computes GELU inside the product before it, by its tanh form, which differs by up to 5e-4: about the
    rounding of bf16. Without it GELU is a separate kernel, exact to 2e-7 (or the tanh form, if the network has that).
    `own_attention` uses our attention kernel, for small batches such as one image (`fits_own_attention`).
    """
    x = network.embed(x)
    b, t, d = x.shape
    x = x.reshape(b * t, d).clone()  # [r d], changed in place below
    carried = torch.zeros(d, device=x.device, dtype=torch.float32)
    for block in network.blocks[:-1]:
        assert isinstance(block, TransformerBlock)
        attention, mlp = block.attn, block.mlp
        qkv = F.linear(norm(x, carried, block.norm1), attention.qkv.weight, attention.qkv.bias)
        mixed = attend(qkv, b, attention.heads) if own_attention else mix(attention, qkv, b)
        add_dense(x, mixed, attention.proj.weight)
        carried = carried + attention.proj.bias
        y = norm(x, carried, block.norm2)
        add_dense(x, _hidden(mlp, y, fused_gelu), mlp.fc2.weight)
        carried = carried + mlp.fc2.bias
    x = (x + carried).to(x.dtype).view(b, t, d)
    return read_last_block(network, x, output)


def _hidden(mlp: MLP, x: Tensor, fused_gelu: bool) -> Tensor:
    """Compute the hidden layer of a fused MLP, GELU included."""
    weight, bias = mlp.fc1.weight, mlp.fc1.bias
    if fused_gelu:
        result: Tensor = dense_gelu(x, weight, bias)
        return result
    hidden = F.linear(x, weight, bias)
    return F.gelu(hidden, approximate="tanh") if mlp.activation == "gelu_tanh" else gelu(hidden)


def fits(network: nn.Module) -> bool:
    """Return whether `fused_forward` supports a folded network: GELU, biases, a head that reads the class token."""
    return rows_read(network) is not None and all(_fits(block) for block in network.blocks)  # type: ignore[union-attr]


def _fits(block: Any) -> bool:
    """Return whether the fused forward pass supports a block."""
    layers = (block.attn.qkv, block.attn.proj, block.mlp.fc1, block.mlp.fc2)
    return (
        block.mlp.activation in ("gelu", "gelu_tanh")
        and all(type(layer) is nn.Linear and layer.bias is not None for layer in layers)
        and all(isinstance(each, nn.LayerNorm) and each.weight is None for each in (block.norm1, block.norm2))
        and isinstance(block.ls1, nn.Identity)
        and all(isinstance(each, nn.Identity) for each in (block.ls2, block.attn.norm, block.mlp.norm))
    )


def fits_own_attention(network: Any) -> bool:
    """Return whether the fused forward pass may use our attention kernel: known head width, no query and key norms."""
    attention = network.blocks[0].attn
    plain = isinstance(attention.q_norm, nn.Identity) and not attention.rotary
    return plain and network.config.width // attention.heads in (16, 32, 64, 128)


def norm(x: Tensor, carried: Tensor, layer: nn.LayerNorm, dtype: torch.dtype | None = None) -> Tensor:
    """Apply a layer norm of the fused forward pass to tokens and carried biases: in fp32, without scale and shift."""
    return F.layer_norm(x.float() + carried, layer.normalized_shape, eps=layer.eps).to(dtype or x.dtype)


def mix(attention: Any, qkv: Tensor, b: int, kernel: Kernel = F.scaled_dot_product_attention) -> Tensor:
    """Run attention as a step of the fused forward pass: queries, keys and values side by side, `[r 3d]` → `[r d]`."""
    q, k, v = split_heads(qkv, b, attention.heads)
    q, k = rotate(attention, attention.q_norm(q)), rotate(attention, attention.k_norm(k))
    return kernel(q, k, v).transpose(1, 2).reshape(len(qkv), -1)


# --- on a CPU, by oneDNN ----------------------------------------------------------------------------------------------


@torch.no_grad()
def packed_forward(network: ViT, batch_size: int, output: OutputKind = "logits") -> Callable[[Tensor], Tensor]:
    """Build a CPU's fused forward pass of a folded network, weights packed: `[b c H W]` → logits or features."""
    run = packed_blocks(network, batch_size, output)

    @torch.no_grad()
    def compute(x: Tensor) -> Tensor:
        with onednn_products(x.device):
            tokens = network.embed(x)
        return run(tokens)

    return compute


def pack(model: nn.Module, batch_size: int) -> Callable[[Tensor], Tensor] | None:
    """Copy a model as a CPU's fused forward pass with packed weights, tokens to logits; None if it cannot run that way.

    Logits differ by rounding alone. A large model is not copied: its copy would take as much memory again.
    """
    parameters = list(model.parameters())
    plain = all(each.device.type == "cpu" and each.dtype == torch.float32 for each in parameters)
    if not isinstance(model, ViT) or not plain or sum(each.numel() for each in parameters) > LARGEST_COPY:
        return None
    if rows_read(model) is None or model.config.rope != "none":  # tokens may be left out: rotation needs all of them
        return None
    if not onednn_available() or not fits(network := fold(model)):
        return None
    return packed_blocks(network, batch_size)


@torch.no_grad()
def packed_blocks(network: ViT, batch_size: int, output: OutputKind = "logits") -> Callable[[Tensor], Tensor]:
    """Build a CPU's fused forward pass from embedded tokens on, weights packed: `[b t d]` → logits or features."""
    rows = batch_size * network.layout.tokens
    blocks: list[tuple[Any, list[PackedLinear]]] = []
    for block in network.blocks[:-1]:
        layers: Any = (block.attn.qkv, block.attn.proj, block.mlp.fc1, block.mlp.fc2)  # type: ignore[union-attr]
        blocks.append((block, [PackedLinear(layer, rows) for layer in layers]))
    weight, width = next(network.parameters()), network.config.width
    scale, shift = weight.new_ones(width), weight.new_zeros(width)  # torch's layer norm is slower without them

    @torch.no_grad()
    def compute(x: Tensor) -> Tensor:
        b, t, d = x.shape
        x = x.reshape(b * t, d)  # [r d]
        kernel = fused_attention if len(x) == rows else F.scaled_dot_product_attention  # other sizes are not compiled
        for block, (qkv, proj, fc1, fc2) in blocks:
            kind = "tanh" if block.mlp.activation == "gelu_tanh" else "none"
            y = F.layer_norm(x, (d,), scale, shift, block.norm1.eps)
            x = proj.add(mix(block.attn, qkv(y), b, kernel), x)
            y = F.layer_norm(x, (d,), scale, shift, block.norm2.eps)
            x = fc2.add(fc1(y, "gelu", kind), x)
        with onednn_products(x.device):
            return read_last_block(network, x.view(b, t, d), output)

    return compute
