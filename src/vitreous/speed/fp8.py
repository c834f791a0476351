"""fp8: linear layers whose products are of 8-bit floating-point numbers (e4m3), for GPUs that have them.

e4m3 numbers keep four binary digits between 2⁻⁹ and 448, so the input of a product only needs to be scaled into that
range. A layer norm's output is within ±√d for any image: times 8 it uses the range well, and no calibration images are
needed. GELU's output is used unscaled and clamped at 448. Weights are scaled by their largest. Everything between the
products is bf16. So are products that gain nothing: attention's output projection, which is small and would need a
separate rounding; the last block, of which only the class token is needed; and layers that read fewer than 256 numbers,
which are limited by memory.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.models.last_block import OutputKind, read_last_block
from vitreous.models.vit import ViT
from vitreous.speed.fused_forward import mix, norm
from vitreous.speed.fused_ops import add_dense, gelu_fp8

E4M3 = torch.float8_e4m3fn
LARGEST = 448.0
MULTIPLE = 16
"""Both sides of a weight must be multiples of this for a GPU's kernel."""
NARROW = 256
"""Layers that read fewer numbers than this stay in bf16."""
SPREAD = 8.0
"""Factor on a layer norm's output: √d times this must stay below 448, which it does up to d = 3136."""


def supports(device: torch.device) -> str | None:
    """Return None if the device multiplies fp8 numbers, else the reason."""
    if device.type != "cuda":
        return f"fp8 needs an NVIDIA GPU, this is {device.type}: try bf16"
    if not hasattr(torch, "_scaled_mm"):
        return f"torch {torch.__version__} has no fp8 product: try bf16, or another torch"
    major, minor = torch.cuda.get_device_capability(device)
    if (major, minor) < (8, 9):
        return (
            f"fp8 needs a GPU of compute capability 8.9 (Ada, Hopper) or newer, this one has {major}.{minor}: try bf16"
        )
    return None


class Fp8ViT(nn.Module):
    """A folded network whose blocks multiply in fp8: images `[b c H W]` → logits or features."""

    def __init__(self, network: ViT, output: OutputKind = "logits") -> None:
        super().__init__()
        self.output = output
        self.network, self.config = network, network.config
        if network.config.width * SPREAD**2 >= LARGEST**2:
            raise ValueError(f"fp8 supports widths below {int((LARGEST / SPREAD) ** 2)}, got {network.config.width}")
        if uneven := [side for side in (network.config.width, network.config.mlp_width) if side % MULTIPLE]:
            raise ValueError(f"fp8 supports widths that {MULTIPLE} divides, got {uneven[0]}: try bf16")
        layers = ("attn.qkv", "mlp.fc1", "mlp.fc2")
        self.layers = nn.ModuleList(
            nn.ModuleList(_converted(block.get_submodule(name)) for name in layers) for block in network.blocks[:-1]
        )

    def forward(self, x: Tensor) -> Tensor:
        network = self.network
        x = network.embed(x)
        b, t, d = x.shape
        x = x.reshape(b * t, d).clone()
        carried = torch.zeros(d, device=x.device, dtype=torch.float32)  # biases not added yet, as in `fused_forward`
        pairs: Any = zip(network.blocks[:-1], self.layers, strict=True)
        for block, (qkv, fc1, fc2) in pairs:
            attention = block.attn
            mixed = mix(attention, qkv(norm(x, carried, block.norm1, torch.float32)), b)
            add_dense(x, mixed, attention.proj.weight)
            carried = carried + attention.proj.bias
            x = x + fc2.after_gelu(fc1(norm(x, carried, block.norm2, torch.float32)))
        x = (x + carried).to(x.dtype).view(b, t, d)
        return read_last_block(network, x, self.output)


def _converted(layer: Any) -> nn.Module:
    """Convert a linear layer of an fp8 network to the faster of the two formats."""
    return (Fp8Linear if layer.in_features >= NARROW else Bf16Linear)(layer)


class Bf16Linear(nn.Module):
    """A linear layer of an fp8 network that stays in bf16."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """Multiply a layer norm's output in a layer of an fp8 network that stays bf16: fp32 `[r in]` → `[r out]`."""
        result: Tensor = self.layer(x.to(torch.bfloat16))
        return result

    def after_gelu(self, x: Tensor) -> Tensor:
        """Apply GELU in a layer of an fp8 network that stays bf16, then multiply: bf16 `[r in]` → `[r out]`."""
        result: Tensor = self.layer(F.gelu(x, approximate="tanh"))
        return result


class Fp8Linear(nn.Module):
    """A linear layer with its weight in fp8."""

    weight: Tensor
    scale: Tensor
    bias: Tensor

    def __init__(self, layer: Any) -> None:
        super().__init__()
        weight = layer.weight.detach().float()
        scale = weight.abs().amax().clamp(min=1e-12) / LARGEST
        self.register_buffer("weight", (weight / scale).to(E4M3))  # [out in]
        self.register_buffer("scale", scale)
        self.register_buffer("bias", layer.bias.detach().to(torch.bfloat16))

    def forward(self, x: Tensor) -> Tensor:
        """Multiply a layer norm's output in fp8: fp32 `[r in]` → bf16 `[r out]`."""
        return self.multiply((x * SPREAD).to(E4M3), SPREAD)

    def after_gelu(self, x: Tensor) -> Tensor:
        """Apply GELU to the input, then multiply in fp8: bf16 `[r in]` → `[r out]`."""
        return self.multiply(gelu_fp8(x), 1.0)

    def multiply(self, x: Tensor, spread: float) -> Tensor:
        """Multiply `x` in fp8, scaled by `spread`: `[r in]` → bf16 `[r out]`."""
        if not x.is_cuda:  # the same numbers multiplied in fp32: slow, for tests
            return (x.float() @ self.weight.float().t() * (self.scale / spread) + self.bias).to(torch.bfloat16)
        unscale = torch.full((), 1 / spread, device=x.device)
        return torch._scaled_mm(
            x, self.weight.t(), unscale, self.scale, bias=self.bias, out_dtype=torch.bfloat16, use_fast_accum=True
        )
