"""What ViTs after the paper do to a residual branch: `LayerScale` and `StochasticDepth`."""

import torch
from torch import Tensor, nn


class LayerScale(nn.Module):
    """A learned factor for each channel of a branch (CaiT; used by DeiT-III and DINOv2)."""

    def __init__(self, width: int, value: float) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((width,), value))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class StochasticDepth(nn.Module):
    """Drop an image's whole branch with probability `p` in training (Huang et al., 2016), and divide others by 1 - `p`.

    It draws as torchvision's `StochasticDepth(p, "row")`, whose import would take longer than loading a small model.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def draw(self, x: Tensor) -> Tensor | None:
        """Draw stochastic depth's factor of each image's branch, `[b 1 …]`; None if none is dropped."""
        if not self.training or self.p == 0:
            return None
        kept = torch.empty([len(x)] + [1] * (x.dim() - 1), dtype=x.dtype, device=x.device).bernoulli_(1 - self.p)
        return kept.div_(1 - self.p)

    def forward(self, x: Tensor) -> Tensor:
        factor = self.draw(x)
        return x if factor is None else x * factor
