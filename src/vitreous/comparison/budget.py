"""`Budget`: what every model of a study gets alike; and minutes to epochs, from a few timed updates.

A budget of minutes counts updates and evaluations on the held-out images. Decoding and compiling come before: they
happen once and later runs find them in a cache, so counting them would favour one model over another.
"""

import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Literal

from vitreous.runtime.device import synchronize
from vitreous.training.config import TrainConfig
from vitreous.training.listeners import Listener
from vitreous.training.setup import TrainingParts, set_up_run

UPDATES, SECONDS = 20, 10.0
"""Time at most so many updates, for at most so long (but three at least)."""
EVALUATIONS = 50
"""About how often a run evaluates the held-out images; a shorter run does so after each epoch."""


@dataclass(frozen=True)
class Budget:
    """The settings that are equal for all models of a study; None: what the recipe says."""

    data: str
    epochs: int | None = None
    minutes: float | None = None
    recipe: str | None = None
    image_size: int | None = None
    batch_size: int | None = None
    precision: Literal["fp32", "bf16"] | None = None
    compile: Literal["yes", "no"] | None = None
    train_split: str | None = None
    learning_rates: tuple[float, ...] = ()
    """One for each model, in their order; none: the usual one for its kind."""

    def __post_init__(self) -> None:
        if self.epochs is not None and self.minutes is not None:
            raise ValueError("the budget is --epochs or --minutes, not both: leave one out")
        if self.minutes is not None and not self.minutes > 0:
            raise ValueError(f"--minutes must be above 0, got {self.minutes:g}")


def with_epochs(config: TrainConfig, epochs: int) -> TrainConfig:
    """Change the number of epochs; the warm-up keeps its share of them.

    >>> with_epochs(TrainConfig(epochs=40, warmup=4), 20).warmup
    2.0
    """
    warmup = round(config.warmup * epochs / config.epochs, 4)
    return replace(config, epochs=epochs, warmup=warmup, evaluate_every=max(1, epochs // EVALUATIONS))


def epochs_for(config: TrainConfig, minutes: float, data_root: Path | None, listener: Listener) -> TrainConfig:
    """Give the config as many epochs as take about `minutes` on this machine; at least one."""
    parts = set_up_run(config, data_root, listener)
    update, evaluation = time_update(parts), time_evaluation(parts)
    epochs = epochs_in(60 * minutes, parts.steps_per_epoch * update, evaluation)
    steps = parts.steps_per_epoch
    listener.log(f"{config.model}: {steps} updates of {1000 * update:.1f} ms make an epoch, {epochs} of them fit")
    return with_epochs(config, epochs)


def epochs_in(seconds: float, epoch: float, evaluation: float) -> int:
    """Count the epochs that fit into a time, with about fifty evaluations among them, or one after each.

    >>> epochs_in(100, epoch=9, evaluation=1), epochs_in(1000, epoch=4.5, evaluation=5), epochs_in(1, 9, 1)
    (10, 166, 1)
    """
    count = int(seconds / (epoch + evaluation))
    if count > EVALUATIONS:
        count = max(EVALUATIONS, int((seconds - EVALUATIONS * evaluation) / epoch))
    return max(1, count)


def time_update(parts: TrainingParts) -> float:
    """Measure the seconds of an update, the median of a few; the weights that it moves are thrown away."""
    times: list[float] = []
    start = time.monotonic()
    batches = parts.train_source.epoch(0, int(parts.config.batch_size))
    for number, batch in zip(range(UPDATES), batches, strict=False):
        before = time.perf_counter()
        parts.train_step(batch, 0, number, 0.0)
        synchronize(parts.state.device)
        times.append(time.perf_counter() - before)
        if len(times) >= 3 and time.monotonic() - start > SECONDS:
            break
    return median(times[1:] or times)  # the first one allocates memory


def time_evaluation(parts: TrainingParts) -> float:
    """Measure the seconds of one evaluation on the held-out images; the first one, which compiles, does not count."""
    parts.evaluate()
    before = time.perf_counter()
    parts.evaluate()
    synchronize(parts.state.device)
    return time.perf_counter() - before
