"""Stochastic depth (Huang et al., 2016): in training, a picture's branch is left out by chance."""

import torch
from torch import Tensor, nn


class StochasticDepth(nn.Module):
    """Each row of a branch `[b …]` is dropped with chance `p` and the others are divided by 1 - `p`; only in training.

    The same draws as torchvision's in mode "row", whose import would take longer than loading a small model.

    >>> StochasticDepth(0.5).eval()(torch.ones(2, 3)).tolist()
    [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        kept = torch.empty([len(x)] + [1] * (x.dim() - 1), dtype=x.dtype, device=x.device).bernoulli_(1 - self.p)
        return x * kept.div_(1 - self.p)
