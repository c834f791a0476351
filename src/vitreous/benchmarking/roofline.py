"""The measured limit: how fast this device multiplies matrices in a number format, and nothing else.

A ViT is a stack of matrix products, so running it takes about as long as its products do, at the least. The ceiling is
the best rate among large squares and the shapes of the ViT's own layers; it is timed among the contenders, in the same
rounds.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from vitreous.models.vit import ViTConfig
from vitreous.speed import cpu as packed

SQUARES = {"cpu": (1024, 2048), "cuda": (4096, 8192), "mps": (2048, 4096)}
MOST_ROWS = {"cpu": 4096, "cuda": 65536, "mps": 8192}
"""Rows of a layer's product at the most: more of them take longer and are no faster."""


@dataclass(frozen=True)
class Product:
    """One matrix product to be timed: `[rows inner] × [inner columns]`."""

    rows: int
    inner: int
    columns: int

    @property
    def flops(self) -> int:
        """Two for each multiply-add.

        >>> Product(2, 3, 4).flops
        48
        """
        return 2 * self.rows * self.inner * self.columns

    def __str__(self) -> str:
        return f"{self.rows}×{self.inner}×{self.columns}"


def products(config: ViTConfig, batch: int, device_type: str) -> list[Product]:
    """Large squares, and the four products of a transformer block for `batch` images.

    >>> [str(product) for product in products(ViTConfig(), 8, "cpu")][2:]
    ['1576×768×2304', '1576×768×768', '1576×768×3072', '1576×3072×768']
    """
    rows = min(batch * config.layout.tokens, MOST_ROWS[device_type])
    width, hidden = config.width, config.mlp_width
    layers = [(width, 3 * width), (width, width), (width, hidden), (hidden, width)]
    return [
        *(Product(side, side, side) for side in SQUARES[device_type]),
        *(Product(rows, inner, columns) for inner, columns in layers),
    ]


def multiply(
    product: Product, device: torch.device, dtype: torch.dtype, laid_out: bool = False
) -> Callable[[], object]:
    """A call that works out the product once, as a linear layer does; on a CPU also with a weight `laid_out` for it."""
    x = torch.randn(product.rows, product.inner, device=device, dtype=dtype)
    weight = torch.randn(product.columns, product.inner, device=device, dtype=dtype)

    if laid_out:
        layer = nn.Linear(product.inner, product.columns, dtype=dtype)
        held = packed.Product(layer, product.rows)

    def call() -> object:
        with torch.inference_mode():
            return held(x) if laid_out else F.linear(x, weight)

    return call
