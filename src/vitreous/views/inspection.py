"""An image in front of a model, and what one wants to know of it: worked out when first asked for, and kept."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from PIL.Image import Image
from torch import Tensor

from vitreous.data.preprocess import square
from vitreous.inside.capture import capture
from vitreous.models.vit import ViT
from vitreous.weights.load import Model

SHARP = 256
"""Pixels of a side that let a photograph be recognised under a heat map; a model may see as few as 32."""


@dataclass(frozen=True)
class Choice:
    """What to look at."""

    layer: int = -1
    """The block, for views of one block; -1 is the last."""
    head: int | None = None
    """The head, for views of one head; without it, the mean over heads."""
    heads: tuple[int, ...] | None = None
    """Several heads, for views that show them side by side; without it, all."""
    query: int | None = None
    """The token that looks: its row of the attention matrix. 0 is the class token; without it, what the head reads."""
    target: int | None = None
    """The class to explain; without it, the predicted one."""
    scale: Literal["raw", "log", "layer-norm"] | None = None
    """How the attention matrix is shown; without it, all three ways."""
    fusion: Literal["mean", "max", "min"] = "mean"
    """How rollout joins heads."""
    discard: float = 0.0
    """The share of smallest attention that rollout drops."""
    residual: float = 0.5
    """The shortcut's share in rollout."""


class Inspection:
    """One model, at most one image, one choice of what to look at."""

    def __init__(self, model: Model, image: Image | None = None, choice: Choice | None = None, name: str = "") -> None:
        self.model, self.name, self.choice = model.eval(), name, choice or Choice()
        self.image = image
        self._check()

    def _check(self) -> None:
        config, choice = self.model.config, self.choice
        if choice.target is not None and not config.classes:
            raise ValueError("this model has no classes to explain: leave the target out")
        counts = {"target": config.classes}
        if isinstance(self.model, ViT):
            layout = self.model.layout
            counts |= {"layer": self.model.config.depth, "head": self.model.config.heads, "query": layout.tokens}
        for what, count in counts.items():
            values = [getattr(choice, what), *((choice.heads or ()) if what == "head" else ())]
            for value in values:
                if value is not None and not -count <= value < count:
                    raise ValueError(f"{what} {value} does not exist: this model has {what} 0 to {count - 1}")

    def asked(self, choice: Choice, model: Model | None = None) -> "Inspection":
        """The same image with another choice, or before another model: it is not resized once more for that."""
        other = Inspection(model or self.model, self.image, choice, self.name)
        if self.image is not None and other.model.card.preprocess == self.model.card.preprocess:
            other.view = self.view
        return other

    @property
    def vit(self) -> ViT:
        """The model, where it is a ViT; views of a ViT's inside are not asked of anything else."""
        assert isinstance(self.model, ViT)
        return self.model

    @cached_property
    def view(self) -> Image:
        """The part of the image that the model sees, at the size it sees it: RGB, or L for a grey model."""
        if self.image is None:
            raise ValueError("this view needs an image: name one")
        return self.model.card.preprocess.view(self.image)

    @cached_property
    def seen(self) -> Image:
        """The same as RGB, to be shown."""
        return self.view.convert("RGB")

    @cached_property
    def pixels(self) -> np.ndarray:
        """What the model sees, as uint8 `[H W 3]`."""
        return np.asarray(self.seen)

    @cached_property
    def backdrop(self) -> np.ndarray:
        """What heat is laid over, uint8 `[H W 3]`: what the model sees, in more pixels where it sees few of many."""
        pixels, preprocess = self.pixels, self.model.card.preprocess
        if self.image is None or preprocess.resize is None:
            return pixels
        times = min(SHARP, *self.image.size) // max(*preprocess.size, *square("resize", preprocess.resize))
        if times < 2:
            return pixels
        height, width = preprocess.size
        return np.asarray(preprocess.with_size((times * height, times * width)).view(self.image).convert("RGB"))

    @cached_property
    def x(self) -> Tensor:
        """What the model gets: `[1 c H W]`."""
        like, preprocess = next(self.model.parameters()), self.model.card.preprocess
        return preprocess.normalise(preprocess.pixels_of(self.view))[None].to(device=like.device, dtype=like.dtype)

    @cached_property
    def logits(self) -> Tensor:
        """`[classes]`, on the CPU."""
        with torch.inference_mode():
            return self.model(self.x)[0].float().cpu()

    @cached_property
    def target(self) -> int:
        """The class to explain."""
        count = self.model.config.classes
        return int(self.logits.argmax()) if self.choice.target is None else self.choice.target % count

    @property
    def target_label(self) -> str:
        label: str = self.model.card.label(self.target)
        return label

    @cached_property
    def layer(self) -> int:
        return self.choice.layer % self.vit.config.depth

    @cached_property
    def heads(self) -> list[int]:
        chosen = self.choice.heads
        return list(range(self.vit.config.heads)) if chosen is None else [h % self.vit.config.heads for h in chosen]

    @cached_property
    def query(self) -> int | None:
        """The token that looks, or None for a model without class token: then the mean over patches looks."""
        layout = self.vit.layout
        return layout.class_index if self.choice.query is None else self.choice.query % layout.tokens

    @property
    def query_name(self) -> str:
        """What the looking token is called in titles."""
        if self.query is None:
            return "average patch"
        name = self.vit.layout.name(self.query)
        return f"{name} token" if self.query_place is None else name

    @property
    def query_place(self) -> tuple[int, int] | None:
        """Row and column of the looking token, where it is a patch."""
        return None if self.query is None else self.vit.layout.patch(self.query)

    @cached_property
    def rows(self) -> Tensor:
        """The looking token's attention in every block and head: `[layers heads t]`, on the CPU."""
        queries = None if self.query is None else [self.query]
        with torch.inference_mode(), capture(self.vit, "attention", queries=queries, to="cpu") as captured:
            self.vit(self.x)
        attention = captured.stack("attention")[:, 0].float()  # [layers heads q t]
        layout = self.vit.layout
        return attention[:, :, 0] if queries else attention[:, :, layout.prefix :].mean(dim=2)

    def matrix(self, layer: int) -> Tensor:
        """One block's attention, all heads: `[heads t t]`, on the CPU."""
        with torch.inference_mode(), capture(self.vit, "attention", layers=[layer], to="cpu") as captured:
            self.vit(self.x)
        return captured[f"blocks.{layer}.attention"][0].float()

    @cached_property
    def outputs(self) -> Tensor:
        """The tokens that leave each block: `[layers t d]`."""
        with torch.inference_mode(), capture(self.vit, "output") as captured:
            self.vit(self.x)
        return captured.stack("output")[:, 0]
