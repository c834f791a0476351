"""GELU by a formula that a compiler can fuse: exact to 1.5e-7, without the branches of a library's erf.

Abramowitz and Stegun, "Handbook of Mathematical Functions", 7.1.26, for erf; Φ(x) = (1 + erf(x / √2)) / 2 follows.
Between bf16 numbers, which are 4e-3 apart, this is GELU itself.
"""

import math

import torch
from torch import Tensor

RATE = 0.3275911 / math.sqrt(2)
HALVES = tuple(a / 2 for a in (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429))
"""a₁ to a₅, halved: Φ counts from 0 to 1 where erf counts from -1 to 1."""


def normal_share(x: Tensor) -> Tensor:
    """Φ(x): the share of a normal distribution below x.

    >>> x = torch.linspace(-6, 6, 1001)
    >>> bool((normal_share(x) - torch.special.ndtr(x)).abs().max() < 2e-7)
    True
    """
    t = 1 / (1 + RATE * x.abs())
    a, b, c, d, e = HALVES
    tail = t * (a + t * (b + t * (c + t * (d + t * e)))) * torch.exp(-0.5 * x * x)
    return torch.where(x >= 0, 1 - tail, tail)


def gelu(x: Tensor) -> Tensor:
    """x Φ(x), worked out in fp32 and given in the format of `x`."""
    wide = x.float()
    return (wide * normal_share(wide)).to(x.dtype)
