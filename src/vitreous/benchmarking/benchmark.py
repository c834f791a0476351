"""Contenders and the ceiling in one process, in turn: who is how fast, and how much of the hardware's limit that is.

Logits are compared before anything is timed: a contender that computes something else is an error, not a row.
"""

import gc
import platform
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.benchmarking.contenders import CONTENDERS, Contender, LeftOut, Material, Run, Setting
from vitreous.benchmarking.roofline import Product, multiply, products
from vitreous.benchmarking.step import held, recorded, training_step
from vitreous.benchmarking.timing import Call, Summary, cores, interleave, noise, summarise
from vitreous.models.summary import count_flops
from vitreous.runtime.device import device_name, synchronize
from vitreous.speed import cpu as packed
from vitreous.speed.choice import processor

TOLERANCE = {"fp32": 1e-4, "fp16": 1e-2, "bf16": 5e-2, "int8": 0.2, "fp8": 0.2}
"""How far logits may lie from ours in fp32, as a share of the largest: random weights round worse than trained ones."""
CHECKED = 8
"""Images of a batch whose logits are compared: a CPU works out the truth, and would be long about a large batch."""
CEILING = "product "
"""What the names of the ceiling's products begin with, among the contenders'."""


@dataclass(frozen=True)
class Row:
    """One contender's figures."""

    name: str
    library: str
    mode: str
    ours: bool
    milliseconds: float
    """For each image."""
    images_per_second: float
    spread: float
    rounds: int
    ratio: float | None
    """How many times the best peer's speed; None where no peer took part."""
    share: float
    """Of the ceiling, counting the FLOPs of the full network, skipped work included."""
    error: float
    """The largest distance of a logit from ours in fp32, as a share of the largest logit."""
    memory: int | None
    """Bytes at the peak, with weights and optimiser; CUDA alone tells, and of graphs only before they are recorded."""


@dataclass(frozen=True)
class Result:
    """One network at one batch size: a row for each contender, fastest first, and the ceiling they share."""

    model: str
    task: str
    batch: int
    precision: str
    device: str
    flops: int
    """Of one image: a forward pass, or three times that for a training step."""
    ceiling: float
    """FLOPs a second of the best product."""
    ceiling_product: str
    rows: list[Row]
    left_out: dict[str, str]
    warnings: list[str]

    @property
    def most(self) -> float:
        """Images a second at the ceiling."""
        return self.ceiling / self.flops

    @property
    def title(self) -> str:
        kind = "training step" if self.task == "training" else "inference"
        return f"{self.model}, {kind}, batch {self.batch}, {self.precision}, {self.device}"


def benchmark(
    model: str,
    setting: Setting,
    contenders: Mapping[str, Contender] = CONTENDERS,
    *,
    seconds: float = 20.0,
    rounds: int = 100,
    load: float | None = None,
    tell: Callable[[str], object] = lambda line: None,
) -> Result:
    """Time every contender on one network.

    `seconds` are for the rounds; building, compiling and warming up come on top. `load` is the load average from
    before the first benchmark began. `tell` is told what is going on.
    """
    x = images(setting)
    with tempfile.TemporaryDirectory() as folder, _quiet():
        material = Material(setting, Path(folder))
        truth = _truth(material, x)
        flops = count_flops(material.reference) * (3 if setting.train else 1)
        runs, errors, left_out = _build(material, contenders, x, truth, tell)
        calls: dict[str, Call] = {}
        memory: dict[str, int | None] = {}
        for name in list(runs):
            tell(f"warming up {name}")
            module = material.modules.get(contenders[name].library)
            calls[name] = _call(runs[name], module, x, setting)
            memory[name] = _peak(calls[name], module, contenders[name], setting)
            if contenders[name].captured and setting.train and setting.device.type == "cuda":
                calls[name] = recorded(calls[name], setting.device)
        ceilings = _ceilings(setting)
        limits = {name: product for name, (product, _) in ceilings.items()}
        calls |= {name: call for name, (_, call) in ceilings.items()}
        tell("timing")
        times = interleave(
            calls,
            seconds=seconds,
            rounds=rounds,
            settle=lambda: synchronize(setting.device),
            tell=lambda done: tell(f"round {done}"),
        )
    torch.compiler.reset()  # what was compiled for this setting is of no use to the next
    summaries = {name: summarise(each) for name, each in times.items()}
    rates = {name: product.flops / summaries[name].median for name, product in limits.items()}
    best = max(rates, key=lambda name: rates[name])
    message = {name: summary for name, summary in summaries.items() if name in runs}
    rows = figures(message, contenders, setting.batch, flops, rates[best], errors, memory)
    spreads = {name: summary.spread for name, summary in (message | {best: summaries[best]}).items()}
    return Result(
        model=model,
        task="training" if setting.train else "inference",
        batch=setting.batch,
        precision=setting.precision,
        device=device_name(setting.device),
        flops=flops,
        ceiling=rates[best],
        ceiling_product=best.removeprefix(CEILING),
        rows=rows,
        left_out=left_out,
        warnings=noise(spreads, load, cores()),
    )


def _ceilings(setting: Setting) -> dict[str, tuple[Product, Call]]:
    """The products that the limit is the best of; a CPU has two ways to work them out, and both count."""
    ways = {"": False, ", laid out": True} if setting.device.type == "cpu" and packed.available() else {"": False}
    return {
        f"{CEILING}{each}{name}": (each, multiply(each, setting.device, setting.dtype, laid_out))
        for each in products(setting.config, setting.batch, setting.device.type)
        for name, laid_out in ways.items()
    }


def figures(
    summaries: Mapping[str, Summary],
    contenders: Mapping[str, Contender],
    batch: int,
    flops: int,
    ceiling: float,
    errors: Mapping[str, float],
    memory: Mapping[str, int | None],
) -> list[Row]:
    """Medians to rows, fastest first."""
    rates = {name: batch / summary.median for name, summary in summaries.items()}
    peers = [rate for name, rate in rates.items() if contenders[name].library != "vitreous"]
    rows = [
        Row(
            name=name,
            library=contenders[name].library,
            mode=contenders[name].mode,
            ours=contenders[name].library == "vitreous",
            milliseconds=1e3 / rates[name],
            images_per_second=rates[name],
            spread=summary.spread,
            rounds=summary.rounds,
            ratio=rates[name] / max(peers) if peers else None,
            share=rates[name] * flops / ceiling,
            error=errors[name],
            memory=memory[name],
        )
        for name, summary in summaries.items()
    ]
    return sorted(rows, key=lambda row: -row.images_per_second)


def check(name: str, logits: Tensor, truth: Tensor, precision: str) -> float:
    """The largest distance from our fp32 logits, as a share of the largest; too far is an error.

    >>> round(check("timm", torch.tensor([1.0, 2.0002]), torch.tensor([1.0, 2.0]), "bf16"), 4)
    0.0001
    """
    if logits.shape != truth.shape:
        raise ValueError(
            f"{name} computes something else: expected logits {list(truth.shape)}, got {list(logits.shape)}"
        )
    distance = (logits.float().cpu() - truth).abs().max() / truth.abs().max()
    if not distance <= TOLERANCE[precision]:  # NaN is not within it either
        raise ValueError(
            f"{name} computes something else: its logits lie {distance:.2g} × the largest logit from ours, "
            f"{TOLERANCE[precision]:g} is allowed in {precision}; leave it out with --against, or tell us"
        )
    return float(distance)


def images(setting: Setting) -> Tensor:
    """Noise in place of images, `[b c H W]`, the same every time."""
    config, generator = setting.config, torch.Generator().manual_seed(1)
    x = torch.randn(setting.batch, config.channels, *config.size, generator=generator)
    return x.to(setting.device, torch.float32 if setting.train else setting.dtype)


def surroundings(device: torch.device) -> dict[str, Any]:
    """What a reader of the figures wants to know: hardware, versions, date."""
    versions = {}
    for library in ("torch", "timm", "torchvision", "transformers", "onnxruntime", "openvino"):
        try:
            versions[library] = metadata.version(library)
        except metadata.PackageNotFoundError:
            continue
    return {
        "device": device_name(device),
        "processor": processor(),
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": versions,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def described(results: list[Result], about: Mapping[str, Any]) -> dict[str, Any]:
    """What `benchmark.json` holds."""
    return {**about, "results": [asdict(result) for result in results]}


def _build(
    material: Material,
    contenders: Mapping[str, Contender],
    x: Tensor,
    truth: Tensor,
    tell: Callable[[str], object],
) -> tuple[dict[str, Run], dict[str, float], dict[str, str]]:
    """Every contender that can take part, its distance from the truth, and why others cannot."""
    runs: dict[str, Run] = {}
    errors: dict[str, float] = {}
    left_out: dict[str, str] = {}
    for name, contender in contenders.items():
        tell(f"building {name}")
        try:
            run = contender.build(material)
            logits = _forward(run, x, material.setting)
        except LeftOut as why:
            left_out[name] = str(why)
        except Exception as error:  # no compiler, too little memory, a model the library has no place for
            if contender.library == "vitreous" and contender.mode == "eager":
                raise
            left_out[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
        else:
            if len(logits) != len(x):
                raise ValueError(f"{name} computes something else: {len(x)} images gave {len(logits)} rows of logits")
            precision = contender.precision or material.setting.precision
            errors[name] = check(name, logits[:CHECKED], truth, precision)
            runs[name] = run
    return runs, errors, left_out


@torch.inference_mode()
def _truth(material: Material, x: Tensor) -> Tensor:
    """Our plain model's logits in fp32 on the CPU for the first images, `[c classes]`."""
    return material.reference(x[:CHECKED].float().cpu())


def _forward(run: Run, x: Tensor, setting: Setting) -> Tensor:
    if setting.train:  # with gradients, so that what is compiled here is what a step runs
        with torch.autocast(setting.device.type, setting.dtype, enabled=setting.precision != "fp32"):
            return run(x).detach()
    with torch.inference_mode():
        return run(x).clone()  # the next replay of a graph writes over its logits


def _call(run: Run, module: nn.Module | None, x: Tensor, setting: Setting) -> Call:
    if setting.train:
        assert module is not None
        return training_step(run, module, x, setting)

    def call() -> object:
        with torch.inference_mode():
            return run(x)

    return call


def _peak(call: Call, module: nn.Module | None, contender: Contender, setting: Setting) -> int | None:
    """Bytes at the peak of one call, with what its model holds all the time; other contenders' models do not count."""
    call()
    if setting.device.type != "cuda" or (contender.mode == "graph" and not setting.train) or module is None:
        return None
    gc.collect()
    synchronize(setting.device)
    torch.cuda.reset_peak_memory_stats(setting.device)
    before = torch.cuda.memory_allocated(setting.device)
    call()
    synchronize(setting.device)
    return torch.cuda.max_memory_allocated(setting.device) - before + held(module, setting.train)


@contextmanager
def _quiet() -> Iterator[None]:
    """Exporters and compilers remark on much that a reader of the table cannot change."""
    import logging

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = logging.root.manager.disable
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(before)
