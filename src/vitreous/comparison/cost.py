"""Measure what a model of a study costs: images per second, eager and compiled (or why not), epochs that fit, energy.

Speeds are measured with every model in turn, round by round, so that a slow moment hits all of them alike.
A budget of minutes counts updates and evaluations on the held-out images. Decoding and compiling come before: they
happen once and later runs find them in a cache, so counting them would favour one model over another.
`Meter` keeps a run's device and energy in its `meter.json`. If a run was interrupted, or another run of the study used
the GPU at the same time (the counter is the whole GPU's), its energy is unknown and the file says why.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vitreous.benchmarking.timing import interleave
from vitreous.comparison.entrants import EVALUATIONS, SMALL, with_epochs
from vitreous.runtime.device import device_name, joules, pick_device, quieten_compiler, synchronize
from vitreous.runtime.files import write_json
from vitreous.training.config import evaluation_interval
from vitreous.training.listeners import Listener
from vitreous.training.setup import TrainingParts, set_up_run
from vitreous.weights.load import Model

if TYPE_CHECKING:
    from vitreous.training.config import TrainConfig
    from vitreous.training.run_folder import RunFolder

ROUNDS, TIMING_SECONDS = 9, 60.0
"""Time models in so many rounds, for at most so long (but three rounds at least)."""
UPDATES, SECONDS = 20, 10.0
"""Time at most so many updates, for at most so long (but three at least)."""
METER = "meter.json"


@dataclass(frozen=True)
class Speed:
    """A model's speed in a comparison: images per second through the forward pass alone."""

    eager: float
    compiled: float | None
    why: str = ""
    """Why there is no compiled speed."""


def measure_speeds(
    folder: Path, config: TrainConfig, models: Mapping[str, Model], compiled: bool, say: Callable[[str], object]
) -> dict[str, Any]:
    """Read a study's `speed.json`; time the models if it is not there yet, or lacks the compiled speeds asked for."""
    path = folder / "speed.json"
    if path.is_file():
        known: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if known["models"].keys() == models.keys() and (known["compiled"] or not compiled):
            return known
    more = ", eager and compiled: up to a minute each (--skip-compiled leaves that out)" if compiled else ""
    say(f"timing the models{more}")
    device, precision = pick_device(config.device), config.precision
    speeds = time_models(models, device, precision=precision, compiled=compiled)
    values = {
        "device": device_name(device),
        "batch": batch_for(models, device),
        "precision": precision,
        "compiled": compiled,
        "torch": torch.__version__,
        "models": {label: asdict(speed) for label, speed in speeds.items()},
    }
    write_json(path, values)
    return values


@torch.inference_mode()
def time_models(
    models: Mapping[str, Model],
    device: torch.device,
    *,
    precision: str = "fp32",
    compiled: bool = True,
    rounds: int = ROUNDS,
    batch: int | None = None,
) -> dict[str, Speed]:
    """Time every model of a study, eager and compiled: images per second, the median over rounds."""
    batch = batch or batch_for(models, device)
    calls: dict[str, Callable[[], object]] = {}
    reasons = dict.fromkeys(models, "" if compiled else "left out")
    for name, model in models.items():
        preprocess = model.card.preprocess
        x = torch.randn(batch, len(preprocess.mean), *preprocess.size, device=device)
        model = model.to(device).eval()
        calls[f"{name}, eager"] = _call(model, x, device, precision)
        if compiled:
            quieten_compiler()
            fast = _call(torch.compile(model, dynamic=False), x, device, precision)
            try:
                fast()
                synchronize(device)
            except Exception as error:  # no compiler on this machine, or one that fails
                reasons[name] = compile_problem(error)
            else:
                calls[f"{name}, compiled"] = fast
    times = interleave(calls, seconds=TIMING_SECONDS, rounds=rounds, synchronize=lambda: synchronize(device))
    rates = {key: batch / median(each) for key, each in times.items()}
    return {name: Speed(rates[f"{name}, eager"], rates.get(f"{name}, compiled"), reasons[name]) for name in models}


def batch_for(models: Mapping[str, Model], device: torch.device) -> int:
    """Choose how many images are timed at once, the same for all models of a study: on a GPU, more small ones."""
    side = max(max(model.card.preprocess.size) for model in models.values())
    return 32 if device.type != "cuda" else 256 if side <= SMALL else 64


def compile_problem(error: Exception) -> str:
    """Return in a few words why the compiled speed of a study's model could not be measured."""
    text = str(error).lower()
    if "compiler" in text and ("not found" in text or "invalid" in text):
        return "no C++ compiler here"
    return f"not compiled ({type(error).__name__})"


def _call(model: Callable[[Tensor], Tensor], x: Tensor, device: torch.device, precision: str) -> Callable[[], object]:
    """Make the forward pass of a study's model whose cost is timed."""

    def call() -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            model(x)

    return call


def epochs_for(config: TrainConfig, minutes: float, data_root: Path | None, listener: Listener) -> TrainConfig:
    """Measure what an epoch costs a study's model; return its config with as many as `minutes` allow, at least one."""
    parts = set_up_run(config, data_root, listener)
    update, evaluation = time_update(parts), time_evaluation(parts)
    epochs = epochs_in(60 * minutes, parts.steps_per_epoch * update, evaluation, parts.balanced_interval)
    steps = parts.steps_per_epoch
    listener.log(f"{config.model}: {steps} updates of {1000 * update:.1f} ms make an epoch, {epochs} of them fit")
    return with_epochs(config, epochs, parts.balanced_interval)


def epochs_in(seconds: float, epoch: float, evaluation: float, every: int = 1) -> int:
    """Count the epochs that fit into a budget of time, evaluations included: after `every` so many epochs or more.

    >>> epochs_in(100, epoch=9, evaluation=1), epochs_in(1000, epoch=4.5, evaluation=5), epochs_in(1, 9, 1)
    (10, 162, 1)
    >>> epochs_in(100, epoch=9, evaluation=9), epochs_in(100, epoch=9, evaluation=9, every=3)
    (5, 8)
    >>> epochs_in(150, epoch=1, evaluation=3, every=3), epochs_in(300, epoch=1, evaluation=10 / 3, every=10)
    (75, 223)
    """

    def cost(epochs: int) -> float:
        evaluations = -(-epochs // evaluation_interval(epochs, EVALUATIONS, every))  # the last epoch is evaluated too
        return epochs * epoch + evaluations * evaluation

    return next((count for count in range(int(seconds / epoch), 1, -1) if cost(count) <= seconds), 1)


def time_update(parts: TrainingParts) -> float:
    """Measure what an update costs a study's model in seconds, the median of a few; its weights are thrown away."""
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
    """Measure what an evaluation costs a budget of minutes, in seconds; the first, which compiles, does not count."""
    parts.evaluate()
    before = time.perf_counter()
    parts.evaluate()
    synchronize(parts.state.device)
    return time.perf_counter() - before


class Meter(Listener):
    """Read the energy counter before the first update and at the end of a run, and write `meter.json`."""

    def __init__(self, crowded: Callable[[], bool] = lambda: False) -> None:
        self.crowded = crowded
        self.device = torch.device("cpu")
        self.before: float | None = None
        self.why = ""
        self.learning = 0

    def begin(self, parts: TrainingParts, config: TrainConfig, folder: RunFolder) -> None:
        self.device = parts.state.device
        self.learning = sum(p.numel() for p in parts.model.parameters() if p.requires_grad)
        self.before = joules(self.device)
        self.why = "" if self.before is not None else "the device has no energy counter"
        if parts.state.epoch or parts.state.step:
            self.why = "the run was interrupted and resumed"
        else:
            self._check_crowded()

    def epoch(self, row: dict[str, Any], parts: TrainingParts) -> None:
        self._check_crowded()

    def end(self, result: dict[str, Any], folder: RunFolder) -> None:
        after = joules(self.device)
        self._check_crowded()
        used = after - self.before if after is not None and self.before is not None and not self.why else None
        values = {"device": device_name(self.device), "learning": self.learning, "joules": used, "why": self.why}
        write_json(folder.path / METER, values)

    def _check_crowded(self) -> None:
        """Note that the energy that a run costs is unknown if another run used the device at the same time."""
        if not self.why and self.crowded():
            self.why = "another run used the device at the same time"


def read_meter(folder: Path) -> dict[str, Any]:
    """Read the energy that a study's run cost, its `meter.json`; without one, everything is unknown."""
    path = folder / METER
    if not path.is_file():
        return {"device": "", "learning": None, "joules": None, "why": "the run ended before it could be written"}
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return values
