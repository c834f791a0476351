"""Evaluation during a run: accuracy (also balanced, and of each class) and loss of the weights on the test images.

Each rank evaluates its own share of the images and the counts are summed: no image counts twice.
"""

import copy
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.data.augment.pipeline import Augment
from vitreous.runtime.distributed import Rank, World, span
from vitreous.training.batches import BatchSource
from vitreous.training.checkpoint import TrainingState
from vitreous.training.config import TrainConfig
from vitreous.training.model import choose_forward
from vitreous.training.parallel import full_tensor, is_sharded, local, shard
from vitreous.weights.load import Model

BATCH_SIZES = {"cpu": 64, "cuda": 500, "mps": 250}  # a CPU is fastest while a batch stays in its caches
BATCH_PIXELS = 4_000_000  # limit on a batch: 500 images up to 89 px, 79 of 224 px


class Evaluator:
    """Callable: return `top1`, `top5`, `loss` and `images` of the current weights on `source`, and keep `answers`."""

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
        self.answers = torch.zeros(0, 3)  # of the last evaluation: predicted class, its probability, the label's [n 3]
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
        """Return the current weights by name: their average, if one is kept."""
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
        totals = torch.zeros(3, device=device)
        answers = torch.zeros(len(self.source.data), 3, device=device)
        begin = span(len(answers), self.world).start
        for pixels, labels in self._batches():
            x, count = self.augment.plain(pixels), len(pixels)
            if count < self.batch and (self.compiled or not count):  # the forward is compiled for one shape
                x = torch.cat([x, x.new_zeros(self.batch - count, *x.shape[1:])])
            with torch.autocast(device.type, torch.bfloat16, enabled=self.config.precision == "bf16"):
                logits = self.forward(self.model, x)[:count].float()
            best = logits.topk(min(5, logits.shape[-1]), dim=-1).indices  # [b 5]
            hits = best == labels[:, None]
            probability = logits.softmax(dim=-1)
            own = probability.gather(1, labels[:, None])[:, 0]
            answers[begin : begin + count] = torch.stack([best[:, 0], probability.amax(dim=-1), own], dim=-1)
            begin += count
            totals += torch.stack([hits[:, 0].sum(), hits.sum(), F.cross_entropy(logits, labels, reduction="sum")])
        top1, top5, loss = (self.world.sum(totals) / len(self.source.data)).tolist()
        self.answers = self.world.sum(answers).cpu()
        found = {"top1": top1, "top5": top5, "loss": loss, "images": len(self.source.data)}
        if self.unequal:
            found["balanced"] = balanced_accuracy(self.source.data.labels, self.answers[:, 0].int().tolist())
        return found

    def _batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield this rank's batches, then empty ones up to the number of batches of the rank that has most.

        Sharded ranks exchange weights at each forward, so that all must run the same number of them.
        """
        source = self.source
        shares = (span(len(source.data), Rank(rank, self.world.world_size)) for rank in range(self.world.world_size))
        rounds = max(-(-len(share) // self.batch) for share in shares)
        pixels = torch.zeros(0, len(source.preprocess.mean), *source.preprocess.size, dtype=torch.uint8)
        empty = (pixels.to(self.state.device), source.labels[:0])
        return itertools.islice(itertools.chain(source.all(self.batch), itertools.repeat(empty)), rounds)


def balanced_accuracy(labels: Sequence[int], predicted: Sequence[int]) -> float:
    """Compute balanced accuracy: the mean over classes of the share of their images that is recognised.

    >>> balanced_accuracy([0, 0, 0, 1], [0, 0, 0, 0])
    0.5
    """
    shares = class_accuracies(labels, predicted)
    return sum(correct / count for correct, count in shares.values()) / len(shares)


def class_accuracies(labels: Sequence[int], predicted: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Count for each class that occurs how many of its test images are recognised, and how many there are.

    >>> class_accuracies([0, 0, 2], [0, 1, 2])
    {0: (1, 2), 2: (1, 1)}
    """
    counts = Counter(labels)
    correct = Counter(label for label, guess in zip(labels, predicted, strict=True) if label == guess)
    return {label: (correct[label], counts[label]) for label in sorted(counts)}
