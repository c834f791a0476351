"""Evaluation during a run: figures of the task (accuracy, mAP, R², IoU …) and loss of the weights on the test images.

Each rank evaluates its own share of the images and the rows are summed: no image counts twice.
"""

import copy
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.data.augment.pipeline import Augment
from vitreous.data.masks import IGNORE
from vitreous.predict.scores import SCORES, balanced_accuracy
from vitreous.runtime.distributed import Rank, World, span
from vitreous.training.batches import BatchSource
from vitreous.training.checkpoint import TrainingState
from vitreous.training.config import TrainConfig
from vitreous.training.loss import image_losses, in_units
from vitreous.training.model import choose_forward
from vitreous.training.parallel import full_tensor, is_sharded, local, shard
from vitreous.weights.load import Model

KEPT_MASKS = 2000  # predicted masks that are kept for the run's page
MASK_SIDE = 128  # pixels of their longer side
BATCH_SIZES = {"cpu": 64, "cuda": 500, "mps": 250}  # a CPU is fastest while a batch stays in its caches
LISTED_ERRORS = 4  # of several numbers, in a line
BATCH_PIXELS = 4_000_000  # limit on a batch: 500 images up to 89 px, 79 of 224 px


class Evaluator:
    """Callable: return the task's figures, `loss` and `images` of the current weights on `source`; keep `answers`."""

    def __init__(
        self,
        model: Model,
        state: TrainingState,
        source: BatchSource,
        augment: Augment,
        config: TrainConfig,
        world: World,
        *,
        unequal: bool = False,
    ) -> None:
        """Take over `model`, an unsharded copy of the run's model; `unequal` classes get a balanced accuracy too."""
        self.state, self.source, self.augment, self.config, self.world = state, source, augment, config, world
        height, width = source.preprocess.size
        self.batch = max(1, min(BATCH_SIZES.get(state.device.type, 64), BATCH_PIXELS // (height * width)))
        self.unequal = unequal
        self.scores = SCORES[source.data.task]
        self.answers = torch.zeros(0, 0)  # rows of the last evaluation (predict/scores.py), [n m]
        self.losses = torch.zeros(0)  # of each image, [n]
        self.masks: Tensor | None = None  # predicted classes of pixels of the first images, uint8 [n h w], reduced
        self.model = model.eval()
        self.unsharded = self.model
        self.forward = choose_forward(model, state.device, sharded=is_sharded(config, world))
        self.compiled = False
        if is_sharded(config, world):
            self.unsharded = copy.deepcopy(self.model).cpu()
            shard(self.model, self.model, config, world)
        elif config.compile and state.device.type == "cpu":  # a GPU is fast enough without
            self.forward, self.compiled = torch.compile(self.forward, fullgraph=True, dynamic=False), True

    def current_weights(self) -> dict[str, Tensor]:
        """Return the current weights that an evaluation measures, by name: their average, if one is kept."""
        return {name: self.state.average.get(name, value) for name, value in self.state.model.state_dict().items()}

    @torch.no_grad()
    def current_model(self) -> Model:
        """Return the evaluator's model with the current weights, unsharded. All ranks must call this."""
        now = self.current_weights()
        for name, value in self.unsharded.state_dict().items():
            value.copy_(full_tensor(now[name]))
        return self.unsharded

    @torch.no_grad()
    def update_weights(self) -> None:
        """Copy the current weights into the evaluator's model."""
        now = self.current_weights()
        for name, value in self.model.state_dict().items():
            local(value).copy_(local(now[name]))

    @torch.no_grad()
    def __call__(self) -> dict[str, float]:
        self.update_weights()
        device = self.state.device
        task, standard = self.source.data.task, self.model.card.standard
        if task == "segment":
            whole = torch.zeros(min(KEPT_MASKS, len(self.source.data)), *self.source.preprocess.size, dtype=torch.uint8)
            self.masks = reduce_masks(whole).to(device)
        answers: Tensor | None = None  # [n 1+m]: the loss, and the row of scores
        begin = span(len(self.source.data), self.world).start
        for pixels, labels in self._batches():
            x, count = self.augment.plain(pixels), len(pixels)
            targets = self.augment.mask_of(pixels) if task == "segment" else labels
            if count < self.batch and (self.compiled or not count):  # the forward is compiled for one shape
                x = torch.cat([x, x.new_zeros(self.batch - count, *x.shape[1:])])
            with torch.autocast(device.type, torch.bfloat16, enabled=self.config.precision == "bf16"):
                outputs = self.forward(self.model, x)[:count].float()
            if self.masks is not None and (kept := max(0, min(count, KEPT_MASKS - begin))):
                self.masks[begin : begin + kept] = reduce_masks(outputs.argmax(dim=1)[:kept].to(torch.uint8))
            losses = image_losses(task, outputs, targets, self.config.loss)
            rows = self.scores.rows(outputs if standard is None else in_units(outputs, standard), targets)
            if answers is None:
                answers = torch.zeros(len(self.source.data), 1 + rows.shape[1], device=device)
            answers[begin : begin + count] = torch.cat([losses[:, None], rows], dim=1)
            begin += count
        assert answers is not None  # there are test images
        answers = self.world.sum(answers).cpu()
        self.masks = None if self.masks is None else self.world.sum(self.masks)
        self.losses, self.answers, data = answers[:, 0], answers[:, 1:], self.source.data
        found = self.scores.figures(self.answers, data.labels if data.targets is None else data.targets)
        found |= {"loss": self.losses.double().mean().item(), "images": len(data)}
        if self.unequal:
            found["balanced"] = balanced_accuracy(data.labels, self.answers[:, 0].int().tolist())
        return found

    def _batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches that this rank evaluates, then empty ones up to the number of the rank that has most.

        Sharded ranks exchange weights at each forward, so that all must run the same number of them.
        """
        source = self.source
        shares = (span(len(source.data), Rank(rank, self.world.world_size)) for rank in range(self.world.world_size))
        rounds = max(-(-len(share) // self.batch) for share in shares)
        channels = len(source.preprocess.mean) + (source.data.mask is not None)
        pixels = torch.zeros(0, channels, *source.preprocess.size, dtype=torch.uint8)
        empty = (pixels.to(self.state.device), source.labels[:0])
        return itertools.islice(itertools.chain(source.all(self.batch), itertools.repeat(empty)), rounds)


def check_measurable(source: BatchSource) -> None:
    """Raise ahead of a run if its evaluation could compute no figure on the test images.

    There is none without any label, or without a pixel of a class in all masks. Of masks the first one is read, and
    more only if all its pixels are ignored.
    """
    data = source.data
    if data.task == "multilabel" and data.targets is not None and not (data.targets > 0.5).any():
        raise ValueError("no held-out image has one of the labels: there is nothing to measure")
    if data.task == "segment" and not any((source.some([i])[:, -1] != IGNORE).any() for i in range(len(data))):
        raise ValueError("the held-out masks have no pixel of a class: there is nothing to measure")


def reduce_masks(masks: Tensor) -> Tensor:
    """Shrink the masks of an evaluation during training, predicted or labelled, by nearest neighbour: `[b h w]`.

    Their longer side gets at most `MASK_SIDE` pixels.
    """
    height, width = masks.shape[-2:]
    share = min(1.0, MASK_SIDE / max(height, width))
    size = max(1, round(height * share)), max(1, round(width * share))
    return F.interpolate(masks[:, None], size, mode="nearest-exact")[:, 0]


def mean_errors(figures: Mapping[str, Any], names: Sequence[str]) -> dict[str, float]:
    """Return the mean absolute errors of an evaluation during training, by name; a single number's is empty.

    >>> mean_errors({"r2": 0.9, "mae_0": 4.0, "mae_1": 0.5}, ["age", "height"]), mean_errors({"mae": 4.0}, ["age"])
    ({'age': 4.0, 'height': 0.5}, {'': 4.0})
    """
    if "mae" in figures:
        return {"": figures["mae"]}
    return {name: figures[f"mae_{i}"] for i, name in enumerate(names) if f"mae_{i}" in figures}


def spell_errors(figures: Mapping[str, Any], names: Sequence[str]) -> str:
    """Write an evaluation's mean absolute errors of numbers in words; of many, the first; empty without any.

    >>> spell_errors({"mae_0": 4.0, "mae_1": 0.51234}, ["age", "height"])
    'mean error 4 (age), 0.5123 (height)'
    """
    errors = [f"{value:.4g}" + f" ({name})" * bool(name) for name, value in mean_errors(figures, names).items()]
    more = f" and {len(errors) - LISTED_ERRORS} more" if len(errors) > LISTED_ERRORS else ""
    return f"mean error {', '.join(errors[:LISTED_ERRORS])}{more}" if errors else ""
