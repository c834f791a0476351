"""`TrainStep`: one training step, from image indices to updated weights and their average, and its CUDA graph.

Everything that changes between steps is a tensor, so that the whole step (gather, augment, forward, backward, clip,
optimiser, average) can be captured once as a CUDA graph and replayed: Python then only passes the image indices.
"""

import copy
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from vitreous.data.augment.pipeline import Augment
from vitreous.data.counter_random import CounterRandom
from vitreous.runtime.device import synchronize
from vitreous.runtime.distributed import World
from vitreous.speed.cuda_graph import record
from vitreous.training.batch_size import explain_out_of_memory
from vitreous.training.batches import Batch, BatchSource
from vitreous.training.checkpoint import TrainingState
from vitreous.training.config import TrainConfig
from vitreous.training.loss import training_scores
from vitreous.training.optimisers import set_learning_rates
from vitreous.training.parallel import average_buffers, gradient_sync, local
from vitreous.training.stream_batches import StreamSource

WARM_UPS = 3  # steps before a capture: kernels are chosen and compiled, memory is allocated
SLOW_STEP = 0.5  # seconds


class TrainStep:
    """Callable: `step(batch, epoch, number, factor)` updates the weights once."""

    def __init__(
        self,
        state: TrainingState,
        source: BatchSource | StreamSource,
        augment: Augment,
        config: TrainConfig,
        objective: nn.Module,
        world: World | None = None,
    ) -> None:
        self.state, self.source, self.config, self.objective = state, source, config, objective
        self.trainable = [parameter for parameter in state.model.parameters() if parameter.requires_grad]
        self.parameters = dict(state.model.named_parameters())
        self.world = world or World()
        self.buffers = [buffer for buffer in state.model.buffers() if buffer.is_floating_point()]
        self.augment: Callable[..., tuple[Tensor, Tensor]] = augment
        self.mix = augment.mix
        if config.compile:
            self.augment = torch.compile(augment, fullgraph=True, dynamic=False)
        self.graph: torch.cuda.CUDAGraph | None = None
        # what differs between steps: epoch and step number; learning-rate factor, decay of the average, share mixed
        self.numbers = torch.zeros(2, dtype=torch.int64, device=state.device)
        self.factors = torch.zeros(3, device=state.device)
        self.batch: Batch | None = None

    def __call__(self, batch: Batch, epoch: int, number: int, factor: float) -> None:
        # the decay grows from 0.1 to its final value, so that the average forgets the first weights
        decay = min(self.config.average, (1 + number) / (10 + number))
        self.numbers.copy_(torch.tensor([epoch, number]), non_blocking=True)
        mix_share = self.config.mix_share if epoch < round(self.config.mix_until * self.config.epochs) else 0.0
        self.factors.copy_(torch.tensor([factor, decay, mix_share]), non_blocking=True)
        if self.graph is None or self.batch is None:
            with explain_out_of_memory(self.config, self.state.model, self.state.device):
                self.compute(batch)
            return
        for held, new in ((self.batch.indices, batch.indices), (self.batch.copies, batch.copies)):
            held.copy_(new, non_blocking=True)
        for held_or_none, given in ((self.batch.pixels, batch.pixels), (self.batch.labels, batch.labels)):
            if held_or_none is not None and given is not None:
                held_or_none.copy_(given, non_blocking=True)
        self.graph.replay()

    def compute(self, batch: Batch) -> None:
        """Compute a training step on the device, from tensors alone."""
        state, config = self.state, self.config
        parts = config.accumulate
        set_learning_rates(state.optimisers, self.factors[0])
        if self.mix is not None:
            self.mix.share.copy_(self.factors[2])
        for optimiser in state.optimisers:
            optimiser.zero_grad(set_to_none=True)
        for part in range(parts):
            span = slice(part * len(batch.indices) // parts, (part + 1) * len(batch.indices) // parts)
            indices = batch.indices[span]
            pixels = self.source.pixels[indices] if self.source.pixels is not None else batch.pixels[span]  # type: ignore[index]
            random = CounterRandom.of(config.seed, self.numbers[0], indices, batch.copies[span])
            labels = self.source.labels[indices] if batch.labels is None else batch.labels[span]
            x, targets = self.augment(pixels, labels, random)  # [b c h w]; [b classes], [b k] or [b h w]
            with gradient_sync(self.objective, now=part == parts - 1):
                with torch.autocast(state.device.type, torch.bfloat16, enabled=config.precision == "bf16"):
                    loss, logits = self.objective(x, targets)
                (loss / parts).backward()
            self._add_to_totals(loss.detach(), logits.detach(), targets)
        if config.clip:
            nn.utils.clip_grad_norm_(self.trainable, config.clip)
        for optimiser in state.optimisers:
            optimiser.step()
        average_buffers(self.buffers, self.world)
        if state.average:
            with torch.no_grad():
                held, decay = [local(value) for value in state.average.values()], self.factors[1]
                now = [local(self.parameters[name]) for name in state.average]
                torch._foreach_mul_(held, decay)  # a lerp would read its weight on the host
                torch._foreach_add_(held, torch._foreach_mul(now, 1 - decay))

    @torch.no_grad()
    def _add_to_totals(self, loss: Tensor, logits: Tensor, targets: Tensor) -> None:
        """Add a step's loss and the share of its correct answers to the running totals."""
        totals = self.state.totals
        totals[0] += loss.float() * len(logits)
        totals[1] += training_scores(self.source.data.task, logits, targets).sum()
        totals[2] += len(logits)
        first = ~torch.isfinite(loss) & (totals[3] == 0)
        totals[3] = torch.where(first, (self.numbers[1] + 1).to(totals.dtype), totals[3])

    def warm_up(self, batch: Batch) -> float:
        """Run a few training steps, so that everything is compiled and allocated, and restore the state, bit for bit.

        Return the seconds of the last step. Slow steps are not repeated, unless they may have compiled something.
        """
        before, device = self.state.copy(), self.state.device
        seconds = 0.0
        with explain_out_of_memory(self.config, self.state.model, device):
            for _ in range(WARM_UPS):
                synchronize(device)
                started = time.perf_counter()
                if self.graph is None:
                    self.compute(batch)
                else:
                    self.graph.replay()
                synchronize(device)
                seconds = time.perf_counter() - started
                if seconds > SLOW_STEP and device.type == "cpu" and not self.config.compile:
                    break
        self.state.restore_copy(before)
        for optimiser in self.state.optimisers if self.graph is None else ():  # a graph writes to its gradients
            optimiser.zero_grad(set_to_none=True)
        return seconds

    def capture(self, batch: Batch) -> None:
        """Capture the training step as a CUDA graph. The state of the run does not change."""
        self.batch = held = copy.deepcopy(batch)
        self.graph, _ = record(lambda: self.compute(held), lambda: self.warm_up(held), self.state.device)
