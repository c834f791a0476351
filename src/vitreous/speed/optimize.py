"""`optimize`: the same answers, faster; how is found out on the machine it runs on.

In goes a model; out comes a callable of pictures `[b c h w]`, normalised ones or pixels (uint8) as they are, that gives
what the model gives. Work that cannot reach the answer is not done, constants are folded into weights (`fold.py`), the
rest is compiled where that proves faster. Which way was the fastest is kept, so that the next start need not try.

The ways that keep the number format differ from the plain model by rounding alone; `bf16` and `int8` are stated losses.
"""

import copy
import hashlib
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.models.vit import ViT
from vitreous.speed.fold import folded
from vitreous.speed.shortcut import logits_only

Compute = Callable[[nn.Module, Tensor], Tensor]
Run = Callable[[Tensor], Tensor]
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "int8": torch.float32}
"""How exact → the number format between layers; int8's products are whole numbers."""
ROUNDS = 5  # timings of each way


@dataclass
class Fast:
    """Callable: pictures `[b c h w]` → what the model gives, float and on the CPU. `b` may be anything."""

    run: Run
    batch: int
    """What is computed at once: fewer pictures are filled up, more are cut, so that one shape alone is compiled."""
    device: torch.device
    dtype: torch.dtype
    mean: Tensor
    std: Tensor
    way: str = "eager"
    """How it computes: `eager`, `compiled` or `frozen` (compiled, with weights laid out for this machine)."""
    tried: dict[str, float] = field(default_factory=dict)
    """Seconds a batch of each way that was tried here; empty where the choice was known from before."""
    remarks: list[str] = field(default_factory=list)
    """What was left out and why."""

    @torch.no_grad()
    def __call__(self, pictures: Tensor) -> Tensor:
        parts = []
        for some in pictures.split(self.batch):
            x = self.prepare(some)
            if missing := self.batch - len(x):
                x = torch.cat([x, x.new_zeros(missing, *x.shape[1:])])
            parts.append(self.run(x)[: len(some)].float().cpu())
        return torch.cat(parts)

    def prepare(self, pictures: Tensor) -> Tensor:
        """To the device, as the folded network takes them: values from 0 to 255."""
        x = pictures.to(self.device, non_blocking=True)
        if pictures.dtype != torch.uint8:  # normalised by the caller: back to pixels, which is exact but for rounding
            x = (x * self.std + self.mean) * 255
        return x.to(self.dtype)


def optimize(
    model: Any,
    precision: str = "fp32",
    *,
    batch: int = 8,
    device: torch.device | str = "cpu",
    compute: Compute = logits_only,
    ways: tuple[str, ...] | None = None,
    cache: Path | None = None,
) -> Fast:
    """The fastest way to `compute(model, pictures)` for batches of this size on this device.

    `model` has a card with its preprocessing. `ways` leaves some out; `cache` is a folder for what was found.

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
    if not isinstance(model, ViT):
        raise ValueError("only Vision Transformers are made faster: leave --fast out for a ResNet")
    view, place, dtype = model.card.preprocess, torch.device(device), PRECISIONS[precision]
    network = folded(model, view.mean, view.std).to(place, dtype)
    remarks: list[str] = []
    if precision == "int8":
        quantise(network)
    mean, std = (torch.tensor(values, device=place).view(-1, 1, 1) for values in (view.mean, view.std))
    wanted = ways or (("compiled", "frozen") if precision == "int8" else ("eager", "compiled", "frozen"))
    fast = Fast(lambda x: x, batch, place, dtype, mean, std, remarks=remarks)
    example = torch.zeros(batch, len(view.mean), *view.size, device=place, dtype=dtype)
    known = _known(cache, network, precision, batch, place, compute) if ways is None else None
    if known is not None and (choice := known.read()) in wanted:
        wanted = (choice,)
    runs: dict[str, Run] = {}
    for way in wanted:
        try:
            runs[way] = WAYS[way](network, compute)
            runs[way](example)
        except Exception as error:  # whatever a compiler may raise: torch has a class for each of them
            runs.pop(way, None)
            remarks.append(f"{way} was left out: {type(error).__name__}: {' '.join(str(error).split())[:160]}")
    if not runs:
        runs["eager"] = WAYS["eager"](network, compute)
    fast.tried = _race(runs, example) if len(runs) > 1 else {}
    fast.way = min(fast.tried, key=fast.tried.__getitem__) if fast.tried else next(iter(runs))
    fast.run = runs[fast.way]
    if known is not None and fast.tried:
        known.write(fast.way, fast.tried)
    return fast


# --- ways -------------------------------------------------------------------------------------------------------------


def _eager(network: nn.Module, compute: Compute) -> Run:
    return torch.no_grad()(lambda x: compute(network, x))


def _compiled(network: nn.Module, compute: Compute) -> Run:
    return torch.no_grad()(torch.compile(lambda x: compute(network, x), fullgraph=True, dynamic=False))


def _frozen(network: nn.Module, compute: Compute) -> Run:
    """Compiled with the weights as constants, which are then laid out as the machine's kernels like them."""
    from torch._inductor import config

    own = copy.deepcopy(network)
    inner = torch.compile(lambda x: compute(own, x), fullgraph=True, dynamic=False)

    @torch.no_grad()
    def run(x: Tensor) -> Tensor:
        with config.patch(freezing=True):
            return inner(x)

    return run


WAYS: dict[str, Callable[[nn.Module, Compute], Run]] = {"eager": _eager, "compiled": _compiled, "frozen": _frozen}


def quantise(network: nn.Module) -> None:
    """Linear layers of the blocks to int8, in place: weights for each output, activations for each token (torchao)."""
    try:
        from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_
    except ImportError as error:
        raise ImportError("int8 needs torchao: pip install 'vitreous[quant]'") from error
    quantize_(
        network,
        Int8DynamicActivationInt8WeightConfig(),
        filter_fn=lambda module, name: isinstance(module, nn.Linear) and name.startswith("blocks."),
    )


# --- finding out ------------------------------------------------------------------------------------------------------


def _race(runs: dict[str, Run], example: Tensor) -> dict[str, float]:
    """Median seconds of each way, one after the other in turns: a busy machine then slows all of them alike."""
    times: dict[str, list[float]] = {way: [] for way in runs}
    for _ in range(ROUNDS):
        for way, run in runs.items():
            begun = time.perf_counter()
            run(example)
            if example.device.type == "cuda":
                torch.cuda.synchronize(example.device)
            times[way].append(time.perf_counter() - begun)
    return {way: statistics.median(each) for way, each in times.items()}


@dataclass(frozen=True)
class _Choice:
    """What was the fastest way, kept in a small file."""

    path: Path

    def read(self) -> str | None:
        try:
            return str(json.loads(self.path.read_text(encoding="utf-8"))["way"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, way: str, tried: dict[str, float]) -> None:
        with suppress(OSError):  # no room, no right, or on Windows a reader: it is found out again next time
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self.path.parent)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump({"way": way, "seconds": tried}, file)
            os.replace(name, self.path)


def _known(
    cache: Path | None, network: nn.Module, precision: str, batch: int, device: torch.device, compute: Compute
) -> _Choice | None:
    if cache is None:
        return None
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu()
    told = (
        network.config,
        precision,
        batch,
        name,
        torch.get_num_threads(),
        torch.__version__,
        compute.__name__,
        device.type,
    )
    return _Choice(cache / "ways" / f"{hashlib.sha256(repr(told).encode()).hexdigest()[:24]}.json")


def _cpu() -> str:
    """What tells one CPU from another as far as speed goes."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        import platform

        return platform.processor() or platform.machine()
