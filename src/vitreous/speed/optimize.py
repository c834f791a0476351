"""`optimize`: the same answers, faster; how is found out on the machine it runs on.

In goes a model; out comes a callable of images `[b c h w]`, normalised ones or pixels (uint8) as they are, that gives
what the model gives. Work that cannot reach the answer is not done, constants are folded into weights (`fold.py`), the
rest runs in whichever of the ways (`ways.py`) proves fastest. That is kept, so that the next start need not try.

The ways that keep the number format differ from the plain model by rounding alone; `bf16`, `int8` and `fp8` are stated
losses.
"""

import statistics
import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.models.last_block import logits_only
from vitreous.models.vit import ViT
from vitreous.runtime.device import max_lanes, synchronize
from vitreous.speed import int8 as integers
from vitreous.speed.backends import WAYS, Compute, Run, Unfit, usual
from vitreous.speed.choice import best, choice
from vitreous.speed.fold import folded

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "int8": torch.float32, "fp8": torch.bfloat16}
"""How exact → the number format between layers; int8's products are whole numbers, fp8's have 8 bits."""
ROUNDS = 5  # timings of each way


@dataclass
class Fast:
    """Callable: images `[b c h w]` → what the model gives, float and on the CPU. `b` may be anything.

    Threads may share it. Where it plays a recorded graph, which reads and writes one place in memory, they wait for
    each other.
    """

    run: Run
    batch: int
    """What is computed at once: fewer images are filled up, more are cut, so that one shape alone is compiled."""
    device: torch.device
    dtype: torch.dtype
    mean: Tensor
    std: Tensor
    size: tuple[int, int]
    """Height and width of an image."""
    pixels: bool = True
    """Whether the network itself takes values from 0 to 255; else it takes normalised images alone."""
    way: str = "eager"
    """How it computes: a name among `WAYS`."""
    tried: dict[str, float] = field(default_factory=dict)
    """Seconds a batch of each way that was tried here; empty where the choice was known from before."""
    remarks: list[str] = field(default_factory=list)
    """What was left out and why."""
    lanes: int = 1
    """How many batches are best computed at once where there are many: one a thread, on a CPU and with nothing
    compiled, since compiled code keeps its number of threads."""
    lock: Lock = field(default_factory=Lock, repr=False, compare=False)

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        takes = (len(self.mean), *self.size)
        if images.shape[1:] != takes:
            message = f"this model takes [b {' '.join(map(str, takes))}], got {list(images.shape)}"
            raise ValueError(f"{message}: preprocess images with model.card.preprocess and stack them to a batch")
        parts = []
        for some in images.split(self.batch):
            x = self.prepare(some)
            if missing := self.batch - len(x):
                x = torch.cat([x, x.new_zeros(missing, *x.shape[1:])])
            with self.lock if self.lanes == 1 else nullcontext():
                parts.append(self.run(x)[: len(some)].float().cpu())
        return torch.cat(parts)

    def prepare(self, images: Tensor) -> Tensor:
        """To the device, as the folded network takes them: values from 0 to 255, or normalised."""
        x = images.to(self.device, non_blocking=True)
        if self.pixels and images.dtype != torch.uint8:  # normalised by the caller: back, exact but for rounding
            x = (x.float() * self.std + self.mean) * 255
        elif not self.pixels and images.dtype == torch.uint8:
            x = (x.float() / 255 - self.mean) / self.std
        return x.to(self.dtype).contiguous()  # however the image was cut: compiled code knows one layout


def optimize(
    model: Any,
    precision: str = "fp32",
    *,
    batch: int = 8,
    device: torch.device | str = "cpu",
    compute: Compute = logits_only,
    pixels: bool = True,
    ways: tuple[str, ...] | None = None,
    cache: Path | None = None,
) -> Fast:
    """The fastest way to `compute(model, images)` for batches of this size on this device.

    `model` has a card with its preprocessing. `pixels` folds the normalisation in: best where images come as uint8.
    `ways` leaves some out; `cache` is a folder for what was found.

    >>> from vitreous.models.variants import variant
    >>> from types import SimpleNamespace
    >>> model = ViT(variant("vit_femto_patch4_32")).eval()
    >>> model.card = SimpleNamespace(preprocess=SimpleNamespace(mean=(0.5,) * 3, std=(0.5,) * 3, size=(32, 32)))
    >>> fast = optimize(model, ways=("eager",))
    >>> x = torch.randn(3, 3, 32, 32)
    >>> torch.allclose(fast(x), model(x), atol=1e-4)
    True
    """
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, got {precision!r}")
    if batch < 1:
        raise ValueError(f"a batch holds at least one image, got batch size {batch}")
    if unknown := [way for way in ways or () if way not in WAYS]:
        raise ValueError(f"no way is called {unknown[0]!r}: ways is a tuple of {', '.join(map(repr, WAYS))}")
    if not isinstance(model, ViT):
        raise ValueError("only Vision Transformers are made faster: no --fast, int8 and fp8 for a ResNet")
    if model.card is None:
        raise ValueError("a model is made faster with its preprocessing: set model.card, or get the model by load")
    view, place, dtype = model.card.preprocess, torch.device(device), PRECISIONS[precision]
    network: nn.Module = folded(model, *((view.mean, view.std) if pixels else ())).to(place, dtype)
    if precision == "int8":
        if reason := integers.supports(place):
            raise ValueError(reason)
        integers.to_integers(network)
    elif precision == "fp8":
        network, compute = eight(network, compute, place)
    mean, std = (torch.tensor(values, device=place).view(-1, 1, 1) for values in (view.mean, view.std))
    fast = Fast(lambda x: x, batch, place, dtype, mean, std, tuple(view.size), pixels)
    example = torch.randn(batch, len(view.mean), *view.size, device=place).to(dtype)
    known = choice(cache, place, network.config, precision, batch, compute.__name__) if ways is None else None
    wanted = ways or usual(place, precision)
    if known is not None and (before := known.read()) in wanted:
        wanted = (before,)
    runs = _build(network, compute, example, wanted, fast.remarks)
    if not runs and known is not None and wanted != usual(place, precision):  # what was fastest does not work any more
        runs = _build(network, compute, example, usual(place, precision), fast.remarks)
    runs = runs or _build(network, compute, example, ("eager",), fast.remarks)
    if not runs:
        message = f"this model runs in no way in {precision} on {place.type}: try fp32 on a CPU"
        raise ValueError(f"{message} ({fast.remarks[-1]})")
    fast.tried = _race(runs, example) if len(runs) > 1 else {}
    fast.way = best(fast.tried) if fast.tried else next(iter(runs))
    fast.run = runs[fast.way]
    if place.type == "cpu" and fast.way in ("eager", "packed"):
        fast.lanes = max_lanes()
    if known is not None and fast.tried:
        known.write(fast.way, fast.tried)
    return fast


def eight(network: nn.Module, compute: Compute, device: torch.device) -> tuple[nn.Module, Compute]:
    """The network in fp8, and how to compute with it; refused in plain words where that cannot be."""
    from vitreous.speed import gpu as lean
    from vitreous.speed.fp8 import Eight, supports

    if reason := supports(device):
        raise ValueError(reason)
    if compute is not logits_only or not lean.fits(network):
        raise ValueError("fp8 is made for logits of GELU networks whose head reads the class token: use bf16")
    assert isinstance(network, ViT)
    return Eight(network), call


def call(network: nn.Module, x: Tensor) -> Tensor:
    """The network itself, as something to compute."""
    return network(x)


# --- finding out ------------------------------------------------------------------------------------------------------


def _build(
    network: nn.Module, compute: Compute, example: Tensor, wanted: tuple[str, ...], remarks: list[str]
) -> dict[str, Run]:
    """Every way that works here; what does not is remarked on."""
    runs: dict[str, Run] = {}
    for way in wanted:
        try:
            runs[way] = WAYS[way](network, compute, example)
            runs[way](example)
        except Unfit:
            runs.pop(way, None)
        except Exception as error:  # whatever a compiler may raise: torch has a class for each of them
            runs.pop(way, None)
            remarks.append(f"{way} was left out: {type(error).__name__}: {' '.join(str(error).split())[:160]}")
    return runs


def _race(runs: dict[str, Run], example: Tensor) -> dict[str, float]:
    """Median seconds of each way, one after the other in turns: a busy machine then slows all of them alike."""
    times: dict[str, list[float]] = {way: [] for way in runs}
    for _ in range(ROUNDS):
        for way, run in runs.items():
            begun = time.perf_counter()
            run(example)
            synchronize(example.device)
            times[way].append(time.perf_counter() - begun)
    return {way: statistics.median(each) for way, each in times.items()}
