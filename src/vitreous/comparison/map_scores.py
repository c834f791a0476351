"""Scores of every method's heat map on one image: what removing patches shows, and whether it lies on the object.

Whether it lies on the object is measured as Chefer, Gur & Wolf (2021) do: a map is enlarged to the mask, scaled to
0 … 1 and cut at its mean; average precision takes object and background pixels together.

Shapes:  m maps, one of each method · s steps · H W pixels
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.inside.artifacts import filled, find_artifacts
from vitreous.inside.capture import capture
from vitreous.inside.faithfulness import area, check_finite, curves, is_flat, reinitialised, saco
from vitreous.inside.methods import Method, patch_grid
from vitreous.inside.occlusion import greedy_order
from vitreous.inside.road import road
from vitreous.models.token_layout import covered
from vitreous.models.vit import ViT
from vitreous.runtime.device import synchronize
from vitreous.weights.load import Model

OPERATORS = ("blur", "mean", "removed")
"""Ways to remove a patch: it is blurred, it takes the image's mean colour, or its token is left out."""


@dataclass
class Scorer:
    """Computes the maps of one model, and their scores."""

    model: Model
    methods: Mapping[str, Method]
    steps: int = 28

    @property
    def operators(self) -> tuple[str, ...]:
        """The operators for which each heat map gets scores; without a class token there must be a patch to read.

        They are ways to remove patches.
        """
        return OPERATORS if getattr(self.model.config, "class_token", False) else OPERATORS[:-1]

    def maps(self, x: Tensor, target: int, model: nn.Module | None = None) -> tuple[Tensor, list[float]]:
        """Return the maps of an image `[1 c H W]` that get scores, `[m rows columns]`, and the seconds each took."""
        found, seconds = [], []
        for method in self.methods.values():
            synchronize(x.device)
            begun = time.perf_counter()
            found.append(method(model or self.model, x, target))
            synchronize(x.device)
            seconds.append(time.perf_counter() - begun)
        return torch.stack(found), seconds

    def faithfulness(self, x: Tensor, maps: Tensor, target: int) -> dict[str, list[float]]:
        """Compute the scores of all compared maps of an image: deletion, insertion, ROAD, SaCo; `[m]` each.

        Deletion and insertion are areas under curves, one of each for each way to remove patches.
        """
        found: dict[str, Tensor] = {}
        for operator in self.operators:
            lines = curves(self.model, x, maps, target, steps=self.steps, baseline=operator)
            found |= {
                f"{name}_{operator}": area(line) for name, line in zip(("deletion", "insertion"), lines, strict=True)
            }
        found["road"] = road(self.model, x, maps, target)
        found["saco"] = saco(self.model, x, maps, target)
        return {name: values.tolist() for name, values in found.items()}

    def fresh(self, x: Tensor, target: int) -> Tensor:
        """Compute maps of a model with fresh weights, which scored maps are compared with: `[m rows columns]`."""
        return self.maps(x, target, self._fresh)[0]

    @cached_property
    def _fresh(self) -> Model:
        return reinitialised(cast(ViT, self.model))  # or a ResNet

    def bound(self, x: Tensor, target: int) -> list[float]:
        """Compute the bound of the compared maps' scores: insertion less deletion of a nearly best order of patches.

        Such an order is searched for each way to remove patches.
        """
        found, grid = [], patch_grid(self.model, x)
        for operator in self.operators:
            best = greedy_order(self.model, x, grid, target, steps=self.steps, baseline=operator)
            deletion, insertion = curves(self.model, x, best, target, steps=self.steps, baseline=operator)
            found.append((area(insertion) - area(deletion)).item())
        return found

    def reached(self, mask: Tensor) -> Tensor:
        """Cut a mask `[H W]` to the pixels that compared maps reach: those that fill a patch of a ViT."""
        height, width = covered(self.model, mask.shape)
        return mask[:height, :width]

    def segmentation(self, x: Tensor, maps: Tensor, mask: Tensor) -> dict[str, list[float]]:
        """Score maps against a mask `[H W]`, as they are and with artifacts filled in: `[m]` each.

        Pixels that fill no patch of a ViT are not counted: its maps do not reach them.
        """
        mask = self.reached(mask)
        found: dict[str, Tensor] = {}
        for end, shown in (("", maps), ("_filled", self.without_artifacts(x, maps))):
            scores = segmentation_scores(shown, mask.to(x.device))
            found |= {name + end: value.flatten().float() for name, value in vars(scores).items()}
        return {name: values.tolist() for name, values in found.items()}

    def without_artifacts(self, x: Tensor, maps: Tensor) -> Tensor:
        """Fill in compared maps for their second scores: outlying tokens' patches get the mean of their neighbours."""
        if not isinstance(self.model, ViT):
            return maps
        with torch.no_grad(), capture(self.model, "output") as internals:
            self.model(x)
        artifacts = find_artifacts(internals.stack("output")[:, 0], self.model.layout)
        return filled(maps, artifacts.patches)


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
    check_finite(maps)
    counted, object_ = mask.flatten() >= 0, mask.flatten() == 1
    if not counted.any():
        raise ValueError("all pixels of the mask are ignored: maps cannot be scored by it")
    heat = F.interpolate(maps[:, None].float(), size=mask.shape, mode="bilinear").flatten(1)  # [m HW]
    low, high = heat.amin(dim=1, keepdim=True), heat.amax(dim=1, keepdim=True)
    heat = torch.where(is_flat(heat)[:, None], 0.0, (heat - low) / (high - low))
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
    """Score maps by average precision, the area under precision over recall, by steps: `[m n]` twice → `[m]`.

    >>> average_precision(torch.tensor([[0.1, 0.4, 0.35, 0.8]]), torch.tensor([[0, 0, 1, 1]]))
    tensor([0.8333])
    """
    scores, order = scores.sort(dim=1, descending=True)
    hits = truth.gather(1, order).double().cumsum(dim=1)
    last = torch.searchsorted(-scores.contiguous(), -scores.contiguous(), right=True) - 1  # of those with equal scores
    hits, ranks = hits.gather(1, last), last + 1
    gained = hits.diff(dim=1, prepend=hits.new_zeros(len(hits), 1))  # 0 inside a group of equal scores
    return ((hits / ranks * gained).sum(dim=1) / hits[:, -1].clamp_min(1)).float()
