"""Does a heat map lie on the object? Pixel accuracy, average precision, IoU and pointing against a mask.

As Chefer, Gur & Wolf (2021) measure it: a map is enlarged to the mask, scaled to 0 … 1 and cut at its mean; average
precision takes object and background pixels together.

Shapes:  m maps · H W pixels
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class SegmentationScores:
    """Scores of one image's maps, `[m]` each; the IoU of many images is that of their sums."""

    accuracy: Tensor
    """Share of pixels that are on the right side of the map's mean."""
    precision: Tensor
    """Average precision."""
    intersections: Tensor
    """Pixels of background and object on which map and mask agree: `[m 2]`."""
    unions: Tensor
    """Pixels that either of them calls background, or object: `[m 2]`."""
    pointing: Tensor
    """1 where the map's highest pixel is on the object, else 0."""


def segmentation_scores(maps: Tensor, mask: Tensor) -> SegmentationScores:
    """Score whether maps `[m rows columns]` lie on a mask's object `[H W]`: 1 object, 0 background, -1 left out.

    >>> mask = torch.tensor([[1, 1], [0, 0]])
    >>> found = segmentation_scores(mask[None].float(), mask)
    >>> found.accuracy, found.precision, found.intersections / found.unions
    (tensor([1.]), tensor([1.]), tensor([[1., 1.]]))
    """
    counted, object_ = mask.flatten() >= 0, mask.flatten() == 1
    heat = F.interpolate(maps[:, None].float(), size=mask.shape, mode="bilinear").flatten(1)  # [m HW]
    low, high = heat.amin(dim=1, keepdim=True), heat.amax(dim=1, keepdim=True)
    heat = (heat - low) / (high - low).clamp_min(1e-12)
    above = heat > heat.mean(dim=1, keepdim=True)
    highest = heat.masked_fill(~counted, -1.0).argmax(dim=1)
    heat, above, object_ = heat[:, counted], above[:, counted], object_[counted]
    both, either = [], []
    for marked, real in ((~above, ~object_), (above, object_)):
        both.append((marked & real).sum(dim=1))
        either.append((marked | real).sum(dim=1))
    scores = torch.cat([1 - heat, heat], dim=1)
    truth = torch.cat([~object_, object_]).expand_as(scores)
    return SegmentationScores(
        (above == object_).float().mean(dim=1),
        average_precision(scores, truth),
        torch.stack(both, dim=1),
        torch.stack(either, dim=1),
        (mask.flatten()[highest] == 1).float(),
    )


def average_precision(scores: Tensor, truth: Tensor) -> Tensor:
    """Compute the area under precision over recall, by steps; equal scores count together: `[m n]` twice → `[m]`.

    >>> average_precision(torch.tensor([[0.1, 0.4, 0.35, 0.8]]), torch.tensor([[0, 0, 1, 1]]))
    tensor([0.8333])
    """
    scores, order = scores.sort(dim=1, descending=True)
    hits = truth.gather(1, order).double().cumsum(dim=1)
    last = torch.searchsorted(-scores.contiguous(), -scores.contiguous(), right=True) - 1  # of those with equal scores
    hits, ranks = hits.gather(1, last), last + 1
    gained = hits.diff(dim=1, prepend=hits.new_zeros(len(hits), 1))  # 0 inside a group of equal scores
    return ((hits / ranks * gained).sum(dim=1) / hits[:, -1].clamp_min(1)).float()
