"""Images a second, eager and compiled: every model in turn, round by round, so that a slow moment hits all alike."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor

from vitreous.runtime.device import synchronize
from vitreous.weights.load import Model

ROUNDS = 9
SMALL = 64
"""Pixels of a side up to which a GPU needs more images at once to be busy."""


@dataclass(frozen=True)
class Speed:
    """Images a second through the forward pass alone; None where there is no number, and why."""

    eager: float
    compiled: float | None
    why: str = ""


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
    """Medians over rounds; a model that cannot be compiled here says why."""
    batch = batch or batch_for(models, device)
    ways: dict[tuple[str, str], Callable[[], object]] = {}
    reasons = dict.fromkeys(models, "" if compiled else "left out")
    for name, model in models.items():
        view = model.card.preprocess
        x = torch.randn(batch, len(view.mean), *view.size, device=device)
        model = model.to(device).eval()
        ways[name, "eager"] = _call(model, x, device, precision)
        ways[name, "eager"]()
        if compiled:
            fast = _call(torch.compile(model, dynamic=False), x, device, precision)
            try:
                fast()
            except Exception as error:  # no compiler, or one that cannot: both are the machine's business
                reasons[name] = reason(error)
            else:
                ways[name, "compiled"] = fast
    times: dict[tuple[str, str], list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, call in ways.items():
            before = time.perf_counter()
            call()
            times[way].append(time.perf_counter() - before)
    rates = {way: batch / median(each) for way, each in times.items()}
    return {name: Speed(rates[name, "eager"], rates.get((name, "compiled")), reasons[name]) for name in models}


def batch_for(models: Mapping[str, Model], device: torch.device) -> int:
    """Images run at once, the same for all models: 256 small ones or 64 large ones on a GPU, 32 elsewhere."""
    side = max(max(model.card.preprocess.size) for model in models.values())
    return 32 if device.type != "cuda" else 256 if side <= SMALL else 64


def reason(error: Exception) -> str:
    """Why a compilation failed, in a few words."""
    text = " ".join(str(error).split())
    if "compiler" in text.lower() and ("not found" in text.lower() or "invalid" in text.lower()):
        return "no C++ compiler here"
    return f"not compiled ({type(error).__name__})"


def _call(model: Callable[[Tensor], Tensor], x: Tensor, device: torch.device, precision: str) -> Callable[[], object]:
    def call() -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            model(x)
        synchronize(device)

    return call
