"""Minutes to epochs: how many passes a model can make on this machine in the time that each run gets.

The time is that of updates and of looks at the held-out images. Decoding and compiling come before it: they are done
once and found in a cache by whoever comes later, so that counting them would favour one model over another.
"""

import time
from pathlib import Path
from statistics import median

from vitreous.comparison.settings import with_epochs
from vitreous.runtime.device import synchronize
from vitreous.training.assemble import Parts, assemble
from vitreous.training.config import TrainConfig
from vitreous.training.listeners import Listener

UPDATES, SECONDS = 20, 10.0
"""How many updates are timed at the most, and for how long (three at the least)."""


def epochs_for(config: TrainConfig, minutes: float, data_root: Path | None, tell: Listener) -> TrainConfig:
    """The config with as many epochs as take about `minutes`, from a few timed updates; one at the least."""
    parts = assemble(config, data_root, tell)
    update, look = time_update(parts), time_look(parts)
    epochs = epochs_in(60 * minutes, parts.steps * update, look)
    tell.say(f"{config.model}: {parts.steps} updates of {1000 * update:.1f} ms make an epoch, {epochs} of them fit")
    return with_epochs(config, epochs)


def epochs_in(seconds: float, epoch: float, look: float) -> int:
    """How many epochs fit, with about fifty looks at the held-out images among them, or one after each.

    >>> epochs_in(100, epoch=9, look=1), epochs_in(1000, epoch=4.5, look=5), epochs_in(1, epoch=9, look=1)
    (10, 166, 1)
    """
    most = int(seconds / (epoch + look))
    if most > 50:
        most = max(50, int((seconds - 50 * look) / epoch))
    return max(1, most)


def time_update(parts: Parts) -> float:
    """Seconds of an update, the median of a few; the weights it moves are thrown away."""
    times: list[float] = []
    begun = time.monotonic()
    batches = parts.source.epoch(0, int(parts.config.batch_size))
    for number, batch in zip(range(UPDATES), batches, strict=False):
        before = time.perf_counter()
        parts.update(batch, 0, number, 0.0)
        synchronize(parts.state.device)
        times.append(time.perf_counter() - before)
        if len(times) >= 3 and time.monotonic() - begun > SECONDS:
            break
    return median(times[1:] or times)  # the first one lays out memory


def time_look(parts: Parts) -> float:
    """Seconds of one look at the held-out images; a first one, which compiles, does not count."""
    parts.measure()
    before = time.perf_counter()
    parts.measure()
    synchronize(parts.state.device)
    return time.perf_counter() - before
