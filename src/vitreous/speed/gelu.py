"""GELU and the normal distribution by a formula that a compiler can fuse: exact to 1.5e-7, without the branches of erf.

Abramowitz and Stegun, "Handbook of Mathematical Functions", 7.1.26, for erf; Φ(x) = (1 + erf(x / √2)) / 2 follows.
In bf16, whose numbers are 4e-3 apart, this is equal to GELU.
"""

import math

import torch
from torch import Tensor

RATE = 0.3275911 / math.sqrt(2)
HALVES = tuple(a / 2 for a in (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429))
"""a₁ to a₅, halved: Φ goes from 0 to 1, erf from -1 to 1."""


def normal_cdf(x: Tensor) -> Tensor:
    """Compute Φ(x), the cumulative normal distribution, for GELU.

    >>> x = torch.linspace(-6, 6, 1001)
    >>> bool((normal_cdf(x) - torch.special.ndtr(x)).abs().max() < 2e-7)
    True
    """
    t = 1 / (1 + RATE * x.abs())
    a, b, c, d, e = HALVES
    tail = t * (a + t * (b + t * (c + t * (d + t * e)))) * torch.exp(-0.5 * x * x)
    return torch.where(x >= 0, 1 - tail, tail)


def gelu(x: Tensor) -> Tensor:
    """Compute GELU, x Φ(x), in fp32, returned in the format of `x`."""
    wide = x.float()
    return (wide * normal_cdf(wide)).to(x.dtype)
