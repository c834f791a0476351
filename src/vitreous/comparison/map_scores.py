"""Scores of every method's heat map on one image: what removing patches shows, and whether it lies on the object.

Shapes:  m methods · s steps
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor, nn

from vitreous.inside.artifacts import find_artifacts
from vitreous.inside.capture import capture
from vitreous.inside.faithfulness import area, curves, reinitialised, saco
from vitreous.inside.methods import Method, patch_grid
from vitreous.inside.occlusion import greedy_order
from vitreous.inside.road import road
from vitreous.inside.segmentation_scores import segmentation_scores
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
    _fresh: list[Model] = field(default_factory=list)

    @property
    def operators(self) -> tuple[str, ...]:
        """Those that the model allows: without a class token there must be a patch to read."""
        return OPERATORS if getattr(self.model.config, "class_token", False) else OPERATORS[:-1]

    def maps(self, x: Tensor, target: int, model: nn.Module | None = None) -> tuple[Tensor, list[float]]:
        """Maps of one image `[1 c H W]`, `[m rows columns]`, and the seconds each of them took."""
        found, seconds = [], []
        for method in self.methods.values():
            synchronize(x.device)
            begun = time.perf_counter()
            found.append(method(model or self.model, x, target))
            synchronize(x.device)
            seconds.append(time.perf_counter() - begun)
        return torch.stack(found), seconds

    def faithfulness(self, x: Tensor, maps: Tensor, target: int) -> dict[str, list[float]]:
        """Deletion and insertion areas for each way to remove patches, ROAD and SaCo: `[m]` each."""
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
        """Maps of a model with fresh weights: `[m rows columns]`."""
        if not self._fresh:
            self._fresh.append(reinitialised(cast(ViT, self.model)))  # or a ResNet
        return self.maps(x, target, self._fresh[0])[0]

    def bound(self, x: Tensor, target: int) -> list[float]:
        """Insertion less deletion of a nearly best order of patches, found for each way to remove them."""
        found, grid = [], patch_grid(self.model, x)
        for operator in self.operators:
            best = greedy_order(self.model, x, grid, target, steps=self.steps, baseline=operator)
            deletion, insertion = curves(self.model, x, best, target, steps=self.steps, baseline=operator)
            found.append((area(insertion) - area(deletion)).item())
        return found

    def segmentation(self, x: Tensor, maps: Tensor, mask: Tensor) -> dict[str, list[float]]:
        """Scores against a mask `[H W]`, with the maps as they are and with artifacts filled in: `[m]` each."""
        found: dict[str, Tensor] = {}
        for end, shown in (("", maps), ("_filled", self.without_artifacts(x, maps))):
            scores = segmentation_scores(shown, mask.to(x.device))
            found |= {name + end: value.flatten().float() for name, value in vars(scores).items()}
        return {name: values.tolist() for name, values in found.items()}

    def without_artifacts(self, x: Tensor, maps: Tensor) -> Tensor:
        """Maps in which patches of outlying tokens have the mean of their neighbours."""
        if not isinstance(self.model, ViT):
            return maps
        with torch.no_grad(), capture(self.model, "output") as internals:
            self.model(x)
        artifacts = find_artifacts(internals.stack("output")[:, 0], self.model.layout)
        return filled(maps, artifacts.patches)


def filled(maps: Tensor, patches: tuple[int, ...]) -> Tensor:
    """Replace artifacts in maps that are scored, `[m rows columns]`, by the mean of their neighbours that stay.

    >>> filled(torch.tensor([[[9.0, 1.0], [2.0, 3.0]]]), (0,))
    tensor([[[2., 1.],
             [2., 3.]]])
    """
    if not patches:
        return maps
    kept = torch.ones_like(maps[:1])
    kept.view(-1)[list(patches)] = 0
    around = maps.new_ones(1, 1, 3, 3)
    near = torch.conv2d((maps * kept)[:, None], around, padding=1)[:, 0]
    count = torch.conv2d(kept[:, None], around, padding=1)[:, 0]
    return torch.where(kept > 0, maps, near / count.clamp_min(1))
