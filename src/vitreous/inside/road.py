"""ROAD: removed pixels are imputed from their neighbours, so that their outline tells nothing (Rong et al., 2022).

"A Consistent and Efficient Evaluation Strategy for Attribution Methods": each removed pixel is the weighted mean of its
eight neighbours (1/6 for direct ones, 1/12 for diagonal ones), plus a little noise. That is a linear system; here it is
solved from coarse to fine, by conjugate gradients, for all masks at once.

Shapes:  m maps · k masks · c colours · H W pixels
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.inside.faithfulness import BATCH, ranks
from vitreous.inside.gradients import Target, chosen_classes
from vitreous.models.token_layout import to_pixels

SHARES = (0.2, 0.4, 0.6, 0.8)
"""Shares of the patches that are removed."""
NOISE = 0.01
"""Standard deviation of the noise on imputed pixels, after preprocessing; the authors' value."""
ITERATIONS = 50
"""Steps of conjugate gradients on each level; removed pixels are then within 0.01 of the exact solution, on average."""
TINY = 1e-20


@torch.no_grad()
def road(
    model: nn.Module,
    x: Tensor,
    maps: Tensor,
    target: Target = None,
    *,
    shares: Sequence[float] = SHARES,
    noise: float = NOISE,
    seed: int = 0,
    batch_size: int = BATCH,
) -> Tensor:
    """Compute ROAD of one image's maps, `[m rows columns]` → `[m]`; higher is better, and 0 is a random map's.

    It is the class's probability with the lowest patches of the map removed, less that with the highest removed, in
    the mean over `shares`.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(48, 2))
    >>> road(model, torch.randn(1, 3, 4, 4), torch.rand(5, 2, 2), target=1).shape
    torch.Size([5])
    """
    chosen = chosen_classes(model(x), target)
    rank = ranks(maps.to(x.device))  # [m rows columns]
    patches = rank[0].numel()
    counts = torch.tensor([round(share * patches) for share in shares], device=x.device)[:, None, None]
    kept = torch.stack([rank[:, None] < patches - counts, rank[:, None] >= counts])  # least, most relevant removed
    known = to_pixels(kept.flatten(0, 2), x.shape[-2:], model)  # [k 1 H W]
    drawn = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed)).to(x)
    found = []
    for part in known.split(4 * batch_size):
        shown = impute(x, part) + noise * drawn * ~part
        found += [model(images).float().softmax(dim=-1)[:, chosen[0]] for images in shown.split(batch_size)]
    least, most = torch.cat(found).view(2, len(maps), len(shares)).mean(dim=-1)
    result: Tensor = least - most
    return result


def impute(x: Tensor, known: Tensor) -> Tensor:
    """Impute for ROAD unknown pixels of an image `[1 c H W]`, by means of neighbours: `[k 1 H W]` → `[k c H W]`.

    >>> ramp = torch.arange(8.0).expand(1, 1, 8, 8)
    >>> known = torch.ones(1, 1, 8, 8, dtype=torch.bool)
    >>> known[..., 2:6, 2:6] = False
    >>> torch.allclose(impute(ramp, known), ramp, atol=0.01)
    True
    """
    return torch.where(known, x, _solve(x * known, known.to(x)))


def _solve(values: Tensor, known: Tensor) -> Tensor:
    """Solve for ROAD's imputed pixels on half the resolution first, `[k c H W]` and `[k 1 H W]` → `[k c H W]`."""
    height, width = values.shape[-2:]
    if min(height, width) <= 2:
        guess = values.sum(dim=(-2, -1), keepdim=True) / known.sum(dim=(-2, -1), keepdim=True).clamp_min(1)
    else:
        share = F.avg_pool2d(known, 2, ceil_mode=True)
        coarse = F.avg_pool2d(values, 2, ceil_mode=True) / share.clamp_min(1e-6)  # the mean of the known pixels
        guess = F.interpolate(_solve(coarse, (share > 0).to(known)), size=(height, width), mode="bilinear")
    return _conjugate_gradients(values, 1 - known, guess)


def _conjugate_gradients(values: Tensor, unknown: Tensor, guess: Tensor) -> Tensor:
    """Improve a guess of ROAD's imputed pixels; the system is symmetric and positive."""
    weights = values.new_tensor([[1, 2, 1], [2, 0, 2], [1, 2, 1]])[None, None] / 12
    total = F.conv2d(torch.ones_like(values[:1, :1]), weights, padding=1)  # less than 1 at the edges

    def residual(found: Tensor) -> Tensor:
        """Sum of the weighted neighbours less the weighted value, at pixels that ROAD imputes."""
        around = F.conv2d(found.flatten(0, 1)[:, None], weights, padding=1).view_as(found)
        return (around - total * found) * unknown

    def dot(a: Tensor, b: Tensor) -> Tensor:
        return (a * b).sum(dim=(-2, -1), keepdim=True)

    found = values * (1 - unknown) + guess * unknown
    rest = direction = residual(found)
    size = dot(rest, rest)
    for _ in range(ITERATIONS):
        change = -residual(direction)
        length = size / dot(direction, change).clamp_min(TINY)  # 0 where nothing is left to improve
        found, rest = found + length * direction, rest - length * change
        before, size = size, dot(rest, rest)
        direction = rest + size / before.clamp_min(TINY) * direction
    return found
