"""fp8: matrix products of 8-bit floating-point numbers (e4m3), for GPUs that have them.

e4m3 numbers keep four digits of a binary fraction whatever their size, between 2⁻⁹ and 448, so what goes into a product
needs only to be brought into that range. A layer norm's output lies within ±√d, whatever the image: times 8 it uses
the range well, and no image has to be looked at beforehand. GELU's output is taken as it is and cut at 448. Weights
are scaled by their largest. Between the products everything is bf16. So are the products that gain nothing: attention's
output, which is small and would have to be rounded in a trip of its own; the last block, whose class token alone is
needed; and whatever reads fewer than 256 numbers, where a product waits for memory and not for multiplications.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.models.last_block import block_rows, tokens_of_heads
from vitreous.models.vit import ViT
from vitreous.speed.fused import add_dense, gelu_eight
from vitreous.speed.gpu import mix, norm

EIGHT = torch.float8_e4m3fn
LARGEST = 448.0
MULTIPLE = 16
"""What a GPU's kernel wants both sides of a weight to be multiples of."""
NARROW = 256
"""Layers that read fewer numbers than this stay in bf16."""
SPREAD = 8.0
"""What a layer norm's output is multiplied by: √d times this must stay below 448, which it does up to d = 3136."""


def supports(device: torch.device) -> str | None:
    """None where the device multiplies fp8 numbers, else why not."""
    if device.type != "cuda":
        return f"fp8 needs an NVIDIA GPU, this is {device.type}: try bf16"
    if not hasattr(torch, "_scaled_mm"):
        return f"torch {torch.__version__} has no product of fp8 numbers: try bf16, or another torch"
    major, minor = torch.cuda.get_device_capability(device)
    if (major, minor) < (8, 9):
        return (
            f"fp8 needs a GPU of compute capability 8.9 (Ada, Hopper) or newer, this one has {major}.{minor}: try bf16"
        )
    return None


class Eight(nn.Module):
    """A folded network whose blocks multiply in fp8: images `[b c H W]` → logits."""

    def __init__(self, network: ViT) -> None:
        super().__init__()
        self.network, self.config = network, network.config
        if network.config.width * SPREAD**2 >= LARGEST**2:
            raise ValueError(f"fp8 is made for widths below {int((LARGEST / SPREAD) ** 2)}, got {network.config.width}")
        if uneven := [side for side in (network.config.width, network.config.mlp_width) if side % MULTIPLE]:
            raise ValueError(f"fp8 is made for widths that {MULTIPLE} divides, got {uneven[0]}: try bf16")
        layers = ("attn.qkv", "mlp.fc1", "mlp.fc2")
        self.layers = nn.ModuleList(
            nn.ModuleList(product(block.get_submodule(name)) for name in layers) for block in network.blocks[:-1]
        )

    def forward(self, x: Tensor) -> Tensor:
        network = self.network
        x = network.embed(x)
        b, t, d = x.shape
        x = x.reshape(b * t, d).clone()
        carried = torch.zeros(d, device=x.device, dtype=torch.float32)  # biases that are still owed, as in `lean`
        pairs: Any = zip(network.blocks[:-1], self.layers, strict=True)
        for block, (qkv, fc1, fc2) in pairs:
            attention = block.attn
            mixed = mix(attention, qkv(norm(x, carried, block.norm1, torch.float32)), b)
            add_dense(x, mixed, attention.proj.weight)
            carried = carried + attention.proj.bias
            x = x + fc2.after_gelu(fc1(norm(x, carried, block.norm2, torch.float32)))
        x = (x + carried).to(x.dtype).view(b, t, d)
        return network.forward_head(network.norm(block_rows(network.blocks[-1], x, tokens_of_heads(network))))


def product(layer: Any) -> nn.Module:
    """A linear layer as it is best multiplied."""
    return (Product8 if layer.in_features >= NARROW else Product16)(layer)


class Product16(nn.Module):
    """A linear layer that stays in bf16."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """A layer norm's output `[r in]`, fp32 → `[r out]`."""
        return self.layer(x.to(torch.bfloat16))

    def after_gelu(self, x: Tensor) -> Tensor:
        """What GELU is still to be taken of, bf16 `[r in]` → `[r out]`."""
        return self.layer(F.gelu(x, approximate="tanh"))


class Product8(nn.Module):
    """A linear layer with its weight in fp8."""

    weight: Tensor
    scale: Tensor
    bias: Tensor

    def __init__(self, layer: Any) -> None:
        super().__init__()
        weight = layer.weight.detach().float()
        scale = weight.abs().amax().clamp(min=1e-12) / LARGEST
        self.register_buffer("weight", (weight / scale).to(EIGHT))  # [out in]
        self.register_buffer("scale", scale)
        self.register_buffer("bias", layer.bias.detach().to(torch.bfloat16))

    def forward(self, x: Tensor) -> Tensor:
        """A layer norm's output `[r in]`, fp32 → `[r out]` in bf16."""
        return self.multiply((x * SPREAD).to(EIGHT), SPREAD)

    def after_gelu(self, x: Tensor) -> Tensor:
        """What GELU is still to be taken of, bf16 `[r in]` → `[r out]`."""
        return self.multiply(gelu_eight(x), 1.0)

    def multiply(self, x: Tensor, spread: float) -> Tensor:
        """`x` `[r in]` in fp8, `spread` times what is meant → `[r out]` in bf16."""
        if not x.is_cuda:  # the same numbers by a product in fp32: slow, for comparing
            return (x.float() @ self.weight.float().t() * (self.scale / spread) + self.bias).to(torch.bfloat16)
        meant = torch.full((), 1 / spread, device=x.device)
        return torch._scaled_mm(
            x, self.weight.t(), meant, self.scale, bias=self.bias, out_dtype=torch.bfloat16, use_fast_accum=True
        )
