"""DINOv2's way of resizing positions as two matrix products, so that an exported graph can do it for any grid.

The other conventions of `weights/positions.py` give `interpolate` a size, which exporters carry over. DINOv2 gives it
a scale, and tracing freezes that number. But resizing is linear and treats rows and columns apart: the new table is
`rows @ table @ columns.T`, and the two matrices are plain arithmetic on the new sizes. Nothing branches on them here,
so that they may be symbols.

Shapes:  r c old rows and columns · n one of the new sizes · d width
"""

import torch
from torch import Tensor

from vitreous.weights.positions import Grid

OFFSET = 0.1


def resample_offset(table: Tensor, size: Grid) -> Tensor:
    """Resize `[1 d r c]` to `size` as DINOv2 does; the same grid gives the same numbers.

    >>> resample_offset(torch.randn(1, 8, 37, 37), (24, 16)).shape
    torch.Size([1, 8, 24, 16])
    """
    r, c = table.shape[-2:]
    rows, columns = (torch.arange(new, device=table.device, dtype=table.dtype) for new in size)
    stays = (rows[-1:] == r - 1) & (columns[-1:] == c - 1)  # [1]; then DINOv2 leaves the table alone
    offset = torch.where(stays, 0.0, OFFSET)
    return axis_weights(rows, r, offset) @ table @ axis_weights(columns, c, offset).T


def axis_weights(places: Tensor, old: int, offset: Tensor) -> Tensor:
    """How much of each old sample goes to each new place: `[n]` → `[n old]`.

    Four samples around a place count, by Keys' cubic kernel with a = -0.75; beyond an edge its sample stands in.
    """
    step = old / (places[-1:] + 1 + offset)
    at = (places + 0.5) * step - 0.5  # [n]
    low, samples = at.floor(), torch.arange(old, device=places.device, dtype=places.dtype)
    weights = torch.zeros_like(at[:, None] - samples)  # [n old]
    for tap in (-1, 0, 1, 2):
        nearest = (low + tap).clamp(0, old - 1)
        weights = weights + _keys(at - low - tap)[:, None] * (nearest[:, None] == samples)
    return weights


def _keys(x: Tensor, a: float = -0.75) -> Tensor:
    x = x.abs()
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return torch.where(x < 1, near, torch.where(x < 2, far, 0.0))
