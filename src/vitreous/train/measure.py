"""How good the weights are now: accuracy and loss on held-out pictures, in the middle of a run."""

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.data.augment import Augment
from vitreous.train.config import TrainConfig
from vitreous.train.objective import forward
from vitreous.train.source import Source
from vitreous.train.state import State
from vitreous.weights.load import Model

MOST = {"cpu": 64, "cuda": 500, "mps": 250}  # a CPU is quickest while a batch stays near its caches
PIXELS = 4_000_000  # of a batch: 500 pictures up to 89 px, 79 of 224 px


class Measure:
    """Callable: the weights' accuracy on `source` as a dict of `top1`, `top5`, `loss` and `pictures`."""

    def __init__(self, state: State, source: Source, augment: Augment, config: TrainConfig) -> None:
        self.state, self.source, self.augment, self.config = state, source, augment, config
        height, width = source.preprocess.size
        self.batch = max(1, min(MOST.get(state.device.type, 64), PIXELS // (height * width)))
        self.model: Model = copy.deepcopy(state.model).eval()
        self.run: Callable[[Model, Tensor], Tensor] = forward
        if config.compile and state.device.type == "cpu":  # a GPU is quick enough without
            self.run = torch.compile(forward, fullgraph=True, dynamic=False)

    @torch.no_grad()
    def refresh(self) -> Model:
        """Our copy of the model with the weights of this moment: their average where one is kept."""
        for name, value in self.model.state_dict().items():
            value.copy_(self.state.average.get(name, self.state.model.state_dict()[name]))
        return self.model

    @torch.no_grad()
    def __call__(self) -> dict[str, float]:
        self.refresh()
        device = self.state.device
        totals = torch.zeros(3, device=device)
        for pixels, labels in self.source.all(self.batch):
            x, count = self.augment.plain(pixels), len(pixels)
            if count < self.batch and self.run is not forward:  # one shape alone is compiled
                x = torch.cat([x, x.new_zeros(self.batch - count, *x.shape[1:])])
            with torch.autocast(device.type, torch.bfloat16, enabled=self.config.precision == "bf16"):
                logits = self.run(self.model, x)[:count].float()
            best = logits.topk(min(5, logits.shape[-1]), dim=-1).indices  # [b 5]
            right = best == labels[:, None]
            totals += torch.stack([right[:, 0].sum(), right.sum(), F.cross_entropy(logits, labels, reduction="sum")])
        first, five, loss = (totals / len(self.source.data)).tolist()
        return {"top1": first, "top5": five, "loss": loss, "pictures": len(self.source.data)}
