"""The measured limit (ceiling, roofline): matrix products whose fastest rate on this device is the ceiling.

A ViT is mostly matrix products, so its products' time is a lower bound of its own. The ceiling is the highest rate
among large squares and the shapes of the ViT's layers, timed among the contenders in the same rounds.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from vitreous.benchmarking.timing import Call
from vitreous.models.vit_config import ViTConfig
from vitreous.speed.onednn import PackedLinear, onednn_available

SQUARES = {"cpu": (1024, 2048), "cuda": (4096, 8192), "mps": (2048, 4096)}
MAX_ROWS = {"cpu": 4096, "cuda": 65536, "mps": 8192}
"""Limit on the rows of a layer's product: more take longer and give no higher rate."""
CEILING = "product "
"""Prefix of the names of the ceiling's products among the contenders'."""


@dataclass(frozen=True)
class MatrixProduct:
    """A matrix product that is timed for the ceiling: `[rows inner] × [inner columns]`."""

    rows: int
    inner: int
    columns: int

    @property
    def flops(self) -> int:
        """Count the product's FLOPs: two for each multiply-add.

        >>> MatrixProduct(2, 3, 4).flops
        48
        """
        return 2 * self.rows * self.inner * self.columns

    def __str__(self) -> str:
        return f"{self.rows}×{self.inner}×{self.columns}"


def products(config: ViTConfig, batch: int, device_type: str) -> list[MatrixProduct]:
    """List the products timed for the ceiling: large squares, and the four of a transformer block for `batch` images.

    >>> [str(product) for product in products(ViTConfig(), 8, "cpu")][2:]
    ['1576×768×2304', '1576×768×768', '1576×768×3072', '1576×3072×768']
    """
    rows = min(batch * config.layout.tokens, MAX_ROWS[device_type])
    width, hidden = config.width, config.mlp_width
    layers = [(width, 3 * width), (width, width), (width, hidden), (hidden, width)]
    return [
        *(MatrixProduct(side, side, side) for side in SQUARES[device_type]),
        *(MatrixProduct(rows, inner, columns) for inner, columns in layers),
    ]


def multiply(product: MatrixProduct, device: torch.device, dtype: torch.dtype, packed: bool = False) -> Call:
    """Make a call that computes a matrix product once, as a linear layer does, or with a packed weight."""
    x = torch.randn(product.rows, product.inner, device=device, dtype=dtype)
    weight = torch.randn(product.columns, product.inner, device=device, dtype=dtype)

    if packed:
        layer = nn.Linear(product.inner, product.columns, dtype=dtype)
        held = PackedLinear(layer, product.rows)

    def call() -> object:
        with torch.inference_mode():
            return held(x) if packed else F.linear(x, weight)

    return call


def ceiling_calls(
    config: ViTConfig, batch: int, device: torch.device, dtype: torch.dtype
) -> dict[str, tuple[MatrixProduct, Call]]:
    """List the products whose fastest is the ceiling, and calls that time them; a CPU multiplies in two ways."""
    two = device.type == "cpu" and onednn_available(dtype)
    kinds = {"": False, ", packed": True} if two else {"": False}
    return {
        f"{CEILING}{each}{name}": (each, multiply(each, device, dtype, packed))
        for each in products(config, batch, device.type)
        for name, packed in kinds.items()
    }
