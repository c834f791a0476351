"""How good the weights are now: accuracy and loss on held-out images, in the middle of a run.

Each rank looks at its own share of the images and the counts are added up: no image counts twice.
"""

import copy
import itertools
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.data.augment.pipeline import Augment
from vitreous.runtime.distributed import Rank, World, span
from vitreous.training.batches import Source
from vitreous.training.config import TrainConfig
from vitreous.training.objective import forward
from vitreous.training.parallel import is_sharded, local, shard, whole
from vitreous.training.state import State
from vitreous.weights.load import Model

MOST = {"cpu": 64, "cuda": 500, "mps": 250}  # a CPU is quickest while a batch stays near its caches
PIXELS = 4_000_000  # of a batch: 500 images up to 89 px, 79 of 224 px


class Measure:
    """Callable: the weights' accuracy on `source` as a dict of `top1`, `top5`, `loss` and `images`."""

    def __init__(
        self, model: Model, state: State, source: Source, augment: Augment, config: TrainConfig, world: World
    ) -> None:
        """`model` is a copy of the run's, not sharded yet, which is ours from here on."""
        self.state, self.source, self.augment, self.config, self.world = state, source, augment, config, world
        height, width = source.preprocess.size
        self.batch = max(1, min(MOST.get(state.device.type, 64), PIXELS // (height * width)))
        self.model = model.eval()
        self.plain = self.model  # where the weights are whole
        self.run: Callable[[Model, Tensor], Tensor] = forward
        if is_sharded(config, world):
            self.plain = copy.deepcopy(self.model).cpu()
            shard(self.model, self.model, config, world)
        elif config.compile and state.device.type == "cpu":  # a GPU is quick enough without
            self.run = torch.compile(forward, fullgraph=True, dynamic=False)

    def weights(self) -> dict[str, Tensor]:
        """The weights of this moment by name: their average where one is kept."""
        return {name: self.state.average.get(name, value) for name, value in self.state.model.state_dict().items()}

    @torch.no_grad()
    def whole(self) -> Model:
        """Our copy of the model with the weights of this moment, all of them. All ranks have to ask for it."""
        now = self.weights()
        for name, value in self.plain.state_dict().items():
            value.copy_(whole(now[name]))
        return self.plain

    @torch.no_grad()
    def refresh(self) -> None:
        """Put the weights of this moment into the copy that looks at images."""
        now = self.weights()
        for name, value in self.model.state_dict().items():
            local(value).copy_(local(now[name]))

    @torch.no_grad()
    def __call__(self) -> dict[str, float]:
        self.refresh()
        device = self.state.device
        totals = torch.zeros(3, device=device)
        for pixels, labels in self._batches():
            x, count = self.augment.plain(pixels), len(pixels)
            if count < self.batch and (self.run is not forward or not count):  # one shape alone is compiled
                x = torch.cat([x, x.new_zeros(self.batch - count, *x.shape[1:])])
            with torch.autocast(device.type, torch.bfloat16, enabled=self.config.precision == "bf16"):
                logits = self.run(self.model, x)[:count].float()
            best = logits.topk(min(5, logits.shape[-1]), dim=-1).indices  # [b 5]
            right = best == labels[:, None]
            totals += torch.stack([right[:, 0].sum(), right.sum(), F.cross_entropy(logits, labels, reduction="sum")])
        first, five, loss = (self.world.sum(totals) / len(self.source.data)).tolist()
        return {"top1": first, "top5": five, "loss": loss, "images": len(self.source.data)}

    def _batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Our images; and as many empty batches as a rank with more images has further ones.

        Sharded ranks lend each other their weights at each forward, so that none may run more of them than another.
        """
        source = self.source
        shares = (span(len(source.data), Rank(rank, self.world.world_size)) for rank in range(self.world.world_size))
        rounds = max(-(-len(share) // self.batch) for share in shares)
        empty = torch.zeros(0, len(source.preprocess.mean), *source.preprocess.size, dtype=torch.uint8)
        none = (empty.to(self.state.device), source.labels[:0])
        return itertools.islice(itertools.chain(source.all(self.batch), itertools.repeat(none)), rounds)
