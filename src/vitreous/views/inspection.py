"""`Inspection`: a model in front of an image with a `Choice` of what to show; what views need, computed once."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
import torch
from PIL.Image import Image
from PIL.Image import fromarray as from_array
from torch import Tensor

from vitreous.data.preprocess import square
from vitreous.figures.selection import MatrixScale
from vitreous.inside.artifacts import Artifacts, find_artifacts
from vitreous.inside.attention import attention_of
from vitreous.inside.capture import capture
from vitreous.inside.grad_cam import grad_cam
from vitreous.inside.hiding import HiddenPatches, filled, log_odds
from vitreous.inside.intervene import tokens_left
from vitreous.inside.methods import patch_grid
from vitreous.inside.pruned_gradients import pruned_gradients
from vitreous.inside.relevance import ClassEvidence, class_evidence
from vitreous.inside.removal import RemovalMap, count_passes, removal
from vitreous.models.token_layout import covered
from vitreous.models.vit import ViT
from vitreous.predict.pipeline import check_finite
from vitreous.predict.questions import as_classifier
from vitreous.speed.fused_forward import pack
from vitreous.weights.load import Model

Fusion = Literal["mean", "max", "min"]
SHARP = 256
"""Pixels of a side that let a photograph be recognised under a heat map; a model may see as few as 32."""
LARGEST_ATTENTION = 40_000_000
"""Attention values that are kept whole; of a larger model's, the rows of one query are."""
PROBED = 256
"""Pixels of the longer side of the image that is preprocessed to find what the model sees."""
EXPLAINED = 5
"""Classes whose evidence is computed: the target, and the likeliest others."""


@dataclass(frozen=True)
class Choice:
    """What to show in an inspection: class, block, heads, query, options."""

    block: int = -1
    """The block, for views of one block; -1 is the last."""
    head: int | None = None
    """The head, for views of one head; without it, the mean over heads."""
    heads: tuple[int, ...] | None = None
    """Several heads, for views that show them side by side; without it, all."""
    query: int | None = None
    """The query token: its row of the attention matrix. 0 is the class token; without it, what the head reads."""
    target: int | None = None
    """The class to explain; without it, the predicted one."""
    scale: MatrixScale | None = None
    """How the attention matrix is shown; without it, on all three scales."""
    fusion: Fusion = "mean"
    """How rollout joins heads."""
    discard: float = 0.0
    """The share of smallest attention that rollout drops."""
    residual: float = 0.5
    """The shortcut's share in rollout."""
    passes: int | str = "quick"
    """Forward passes of the removal map: quick (64), middle (256), thorough (1,024) or a number."""
    pixel: tuple[int, int] | None = None
    """Row and column of the pixel to explain, as the model sees the image, of a model that gives masks."""


class Inspection:
    """One model, at most one image, one choice of what to show."""

    def __init__(self, model: Model, image: Image | None = None, choice: Choice | None = None, name: str = "") -> None:
        self.model, self.name, self.choice = model.eval(), name, choice or Choice()
        self.image, self.asked = image, self.model
        """The image, and the model itself where `model` answers a question about its labels, numbers or mask."""
        self.progress: Callable[[int, int], object] = lambda done, total: None
        """Gets how far a slow view has come, and of how much."""
        self._check()
        self.probability = ""
        """What the probability of a class is, in words, if it is not the model's own."""
        self.pixel = self.choice.pixel
        """Row and column of the pixel that is asked about, of a mask."""
        self.output: int | None = None
        """The label, number or class of pixels that is asked about, as `asked` counts."""
        self.spread: tuple[float, float] | None = None
        """Of a number: mean and standard deviation by which it is mean + deviation · log-odds."""
        if self.model.card.task != "classify":
            x = None if image is None else self.x
            question = as_classifier(self.model, x, self.choice.target, self.choice.pixel)
            self.model, self.probability = question.model, question.probability
            self.output, self.spread = question.output, question.spread
            self.choice = replace(self.choice, target=question.target, pixel=None)
        elif self.choice.pixel is not None:
            raise ValueError("a pixel can be asked about of a model that gives masks: leave it out")

    def _check(self) -> None:
        """Raise for a choice that the inspected model does not have."""
        config, choice = self.model.config, self.choice
        count_passes(choice.passes)
        if choice.scale not in (None, *get_args(MatrixScale)):
            raise ValueError(f"scale must be one of {', '.join(get_args(MatrixScale))}, got {choice.scale!r:.60}")
        if choice.target is not None and not config.classes:
            raise ValueError("this model has no classes to explain: leave the target out")
        counts = {"target": config.classes}
        if isinstance(self.model, ViT):
            layout = self.model.layout
            counts |= {"block": self.model.config.depth, "head": self.model.config.heads, "query": layout.tokens}
        for what, count in counts.items():
            values = [getattr(choice, what), *((choice.heads or ()) if what == "head" else ())]
            for value in values:
                if value is not None and not -count <= value < count:
                    raise ValueError(f"{what} {value} does not exist: this model has 0 to {count - 1}")

    @property
    def vit(self) -> ViT:
        """The model of an inspection, where it is a ViT; views of a ViT's inside are not asked of anything else."""
        assert isinstance(self.model, ViT)
        return self.model

    @cached_property
    def view(self) -> Image:
        """The part of the inspected image that the model sees, at the size it sees it: RGB, or L for a grey model."""
        if self.image is None:
            raise ValueError("this view needs an image: pass one")
        seen: Image = self.model.card.preprocess.view(self.image)
        return seen

    @cached_property
    def seen(self) -> Image:
        """What the model sees in an inspection, as RGB, to be shown."""
        return self.view.convert("RGB")

    @cached_property
    def pixels(self) -> np.ndarray:
        """What the model sees in an inspection, as uint8 `[H W 3]`."""
        return np.asarray(self.seen)

    @cached_property
    def backdrop(self) -> np.ndarray:
        """What an inspection's heat maps are laid over, uint8 `[H W 3]`: what the model sees, in more pixels if few."""
        pixels, preprocess = self.pixels, self.model.card.preprocess
        if self.image is None or preprocess.resize is None:
            return pixels
        times = min(SHARP, *self.image.size) // max(*preprocess.size, *square("resize", preprocess.resize))
        if times < 2:
            return pixels
        height, width = preprocess.size
        return np.asarray(preprocess.with_size((times * height, times * width)).view(self.image).convert("RGB"))

    @property
    def backdrop_of_patches(self) -> np.ndarray:
        """What an inspection's heat maps are laid over, as far as patches read it: all of it for a ResNet."""
        shown, (height, width) = self.backdrop, self.model.config.size
        down, across = covered(self.model, (height, width))
        return shown[: shown.shape[0] * down // height, : shown.shape[1] * across // width]

    @cached_property
    def seen_box(self) -> tuple[float, float, float, float]:
        """Left, top, right and bottom of what the model sees in an inspection, as shares of the image's sides.

        Found by preprocessing a small image whose brightness rises evenly, whatever the steps are.
        """
        assert self.image is not None
        preprocess, (width, height) = self.model.card.preprocess, self.image.size
        if preprocess.resize is not None and max(width, height) > PROBED:  # without a resize, pixels are counted
            width, height = (max(1, round(side * PROBED / max(self.image.size))) for side in (width, height))
        across, down = np.linspace(0, 255, width)[None], np.linspace(0, 255, height)[:, None]
        ramps = [np.broadcast_to(ramp, (height, width)).round().astype(np.uint8) for ramp in (across, down, 255)]
        seen = [np.asarray(preprocess.view(from_array(ramp)).convert("L"), dtype=np.float64) for ramp in ramps]
        inside = seen[2] > 250  # the rest is black, beyond the edges
        ends = []
        for axis, side in enumerate((width, height)):
            values = (seen[axis] * inside).sum(axis=axis) / np.maximum(inside.sum(axis=axis), 1)  # along the ramp
            places = np.flatnonzero((values > 2) & (values < 253))  # neither cut off by rounding nor black
            if len(places) < 3:
                ends.append((0.0, 1.0))
                continue
            slope, start = np.polyfit(places, values[places], 1)
            first, last = ((start + slope * at) / 255 * (side - 1) + 0.5 for at in (-0.5, len(values) - 0.5))
            ends.append((float(first / side), float(last / side)))
        (left, right), (top, bottom) = ends
        return left, top, right, bottom

    @cached_property
    def x(self) -> Tensor:
        """What the model gets in an inspection: `[1 c H W]`."""
        like, preprocess = next(self.model.parameters()), self.model.card.preprocess
        batch: Tensor = preprocess.normalise(preprocess.pixels_of(self.view))[None]
        return batch.to(device=like.device, dtype=like.dtype)

    @cached_property
    def logits(self) -> Tensor:
        """The logits of an inspection: `[classes]`, on the CPU."""
        with torch.inference_mode():
            logits: Tensor = self.model(self.x)
        return logits[0].float().cpu()

    @cached_property
    def answers(self) -> Tensor:
        """What the model of an inspection itself gives: `[classes]`, or `[classes H W]` of masks, on the CPU."""
        with torch.inference_mode():
            answers: Tensor = self.asked(self.x)
        check_finite(answers, self.asked.card.name)  # the likeliest class of such a pixel would be any
        return answers[0].float().cpu()

    @cached_property
    def target(self) -> int:
        """The class that an inspection explains."""
        count = self.model.config.classes
        return int(self.logits.argmax()) if self.choice.target is None else self.choice.target % count

    @property
    def target_label(self) -> str:
        label: str = self.model.card.label(self.target)
        return label

    @cached_property
    def classes(self) -> list[int]:
        """Classes that an inspection explains: the target, then the likeliest others; or what is asked about."""
        if self.output is not None:
            return [self.target]
        likely = self.logits.argsort(descending=True, stable=True)[:EXPLAINED].tolist()
        return [self.target, *(index for index in likely if index != self.target)][:EXPLAINED]

    @cached_property
    def evidence(self) -> ClassEvidence:
        """Relevance, gradient × attention of the chosen block and importance of heads for an inspection's `classes`."""
        return class_evidence(self.vit, self.x, self.classes, layer=self.block)

    @cached_property
    def hidden(self) -> HiddenPatches:
        """The model of an inspection in front of its image with patches hidden; with packed weights, as many run."""
        if isinstance(self.model, ViT):
            return HiddenPatches(self.vit, self.x, self.vit.layout.grid, batch_size=8, blocks=pack(self.vit, 8))
        return HiddenPatches(self.model, self.x, patch_grid(self.model, self.x))

    @cached_property
    def removal(self) -> RemovalMap:
        """What each patch adds to each class of an inspection, from images with patches hidden: `[k rows columns]`."""
        if isinstance(self.model, ViT):
            prior = pruned_gradients(self.vit, self.x.expand(len(self.classes), -1, -1, -1), self.classes)
        else:
            prior = torch.cat([grad_cam(self.model, self.x, index) for index in self.classes])
        return removal(
            lambda kept, operator: log_odds(self.hidden(kept, operator), self.classes),
            prior,
            passes=count_passes(self.choice.passes),
            operators=self.hidden.operators,
            progress=self.progress,
        )

    @cached_property
    def block(self) -> int:
        return self.choice.block % self.vit.config.depth

    @cached_property
    def heads(self) -> list[int]:
        chosen = self.choice.heads
        return list(range(self.vit.config.heads)) if chosen is None else [h % self.vit.config.heads for h in chosen]

    @cached_property
    def query(self) -> int | None:
        """The query token of an inspection, or None without class token: then the mean over patches is meant."""
        layout = self.vit.layout
        return layout.class_index if self.choice.query is None else self.choice.query % layout.tokens

    @cached_property
    def token_names(self) -> list[str]:
        """An inspection's names for the model's tokens, as titles have them."""
        layout = self.vit.layout
        return [f"{layout.name(i)} token" if i < layout.prefix else layout.name(i) for i in range(layout.tokens)]

    @property
    def query_name(self) -> str:
        """What the query token of an inspection is called in titles."""
        return "average patch" if self.query is None else self.token_names[self.query]

    @property
    def query_patch(self) -> tuple[int, int] | None:
        """Row and column of an inspection's query token, where it is a patch."""
        return None if self.query is None else self.vit.layout.patch(self.query)

    @property
    def keeps_attention(self) -> bool:
        """Whether an inspection's attention of all blocks and queries is small enough to be kept."""
        config = self.vit.config
        return config.depth * config.heads * self.vit.layout.tokens**2 <= LARGEST_ATTENTION

    @cached_property
    def attention(self) -> np.ndarray:
        """Attention in an inspection: `[blocks heads t t]`, or the query's rows `[blocks heads t]` of a large model."""
        kept = self.keeps_attention
        queries = None if kept or self.query is None else [self.query]
        if not kept and self.query is None:  # the mean over patches, a block at a time
            layout = self.vit.layout
            return torch.stack([one[:, layout.prefix :].mean(dim=1) for one in self.each_attention()]).numpy()
        with torch.inference_mode(), capture(self.vit, "attention", queries=queries, to="cpu") as captured:
            self.vit(self.x)
        found = captured.stack("attention")[:, 0].float().numpy()
        return found if kept else found[:, :, 0]

    def each_attention(self) -> Iterator[Tensor]:
        """Yield an inspection's attention block by block, `[heads t t]`, on the CPU."""
        if self.keeps_attention:
            yield from torch.from_numpy(self.attention)
            return
        with torch.inference_mode(), capture(self.vit, "norm1") as captured:
            self.vit(self.x)
        for i in range(self.vit.config.depth):
            yield attention_of(self.vit, i, captured[f"blocks.{i}.norm1"])[0].float().cpu()

    @cached_property
    def outputs(self) -> Tensor:
        """The tokens that leave each block in an inspection: `[blocks t d]`."""
        with torch.inference_mode(), capture(self.vit, "output") as captured:
            self.vit(self.x)
        return self.of_patches_left(captured.stack("output")[:, 0])

    def of_patches_left(self, tokens: Tensor) -> Tensor:
        """Put the mean of an inspection's other patches, `[blocks t d]`, where an intervention removed patches.

        No token reads those that were removed, and what is computed from all patches should not either.
        """
        left = tokens_left(self.vit).to(tokens.device)
        if left.all():
            return tokens
        return filled(tokens[:, left], left.expand(len(tokens), -1), self.vit.layout.prefix)

    @cached_property
    def artifacts(self) -> Artifacts:
        """The inspected image's artifacts, found once for all views: patches of outlier tokens; a ResNet has none."""
        return find_artifacts(self.outputs, self.vit.layout) if isinstance(self.model, ViT) else Artifacts()

    @property
    def left_out(self) -> dict[str, Any]:
        """The artifacts of an inspection as fields of a `Map`, whose scale of colours leaves them out."""
        return {"outliers": self.artifacts.patches, "outliers_from": self.artifacts.block}
