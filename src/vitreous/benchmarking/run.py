"""Run a benchmark: build contenders and the calls to time, check their logits, time them, measure memory.

Logits are compared before anything is timed: a contender that computes something else raises an error.
"""

import gc
import platform
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.benchmarking.contenders import CONTENDERS, Contender, LeftOut, Material, Setting
from vitreous.benchmarking.roofline import CEILING, ceiling_calls
from vitreous.benchmarking.table import BenchmarkResult, to_rows
from vitreous.benchmarking.timing import Call, interleave, noise, summarise
from vitreous.benchmarking.training_step import STATES, recorded, training_step
from vitreous.models.last_block import Compute
from vitreous.models.summary import count_flops
from vitreous.runtime.device import cores, cpu_name, device_name, synchronize

TOLERANCE = {"fp32": 1e-4, "fp16": 1e-2, "bf16": 5e-2, "int8": 0.2, "fp8": 0.2}
"""Largest allowed difference of logits from ours in fp32, relative to the largest; random weights round badly."""
ROUNDS = 100  # at most
CHECKED = 8
"""Images of a batch whose logits are compared: a CPU computes the reference, and would take long for large batches."""


def run_benchmark(
    model: str,
    setting: Setting,
    contenders: Mapping[str, Contender] = CONTENDERS,
    *,
    seconds: float = 20.0,
    load: float | None = None,
    note: Callable[[str], object] = lambda line: None,
) -> BenchmarkResult:
    """Run a benchmark: time every contender on one network.

    `seconds` are for the rounds; building, compiling and warming up take extra time. `load` is the load average before
    the first benchmark. `note` gets a line for each step.
    """
    x = images(setting)
    with tempfile.TemporaryDirectory() as folder, _quiet():
        material = Material(setting, Path(folder))
        with torch.inference_mode():  # our plain model's logits in fp32 on the CPU, for the first images
            truth = material.reference(x[:CHECKED].float().cpu())
        flops = count_flops(material.reference) * (3 if setting.train else 1)
        runs, errors, left_out = _build(material, contenders, x, truth, note)
        if not runs:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
            raise ValueError(f"there is nothing to time ({reasons})")
        calls: dict[str, Call] = {}
        memory: dict[str, int | None] = {}
        for name in list(runs):
            note(f"warming up {name}")
            module = material.modules.get(contenders[name].library)
            calls[name] = _call(runs[name], module, x, setting)
            memory[name] = _peak(calls[name], module, contenders[name], setting)
            if contenders[name].captured and setting.train and setting.device.type == "cuda":
                calls[name] = recorded(calls[name], setting.device)
        ceilings = ceiling_calls(setting.config, setting.batch, setting.device, setting.dtype)
        limits = {name: product for name, (product, _) in ceilings.items()}
        calls |= {name: call for name, (_, call) in ceilings.items()}
        note("timing")
        begun = time.monotonic()
        times = interleave(
            calls,
            seconds=seconds,
            rounds=ROUNDS,
            synchronize=lambda: synchronize(setting.device),
            note=lambda done: note(f"round {done}, about {max(seconds - time.monotonic() + begun, 0):.0f} s left"),
        )
    torch.compiler.reset()  # the next setting needs its own
    summaries = {name: summarise(each) for name, each in times.items()}
    rates = {name: product.flops / summaries[name].median for name, product in limits.items()}
    best = max(rates, key=lambda name: rates[name])
    timed = {name: summary for name, summary in summaries.items() if name in runs}
    rows = to_rows(timed, contenders, setting.batch, flops, rates[best], errors, memory)
    spreads = {name: summary.spread for name, summary in (timed | {best: summaries[best]}).items()}
    return BenchmarkResult(
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


def check(name: str, logits: Tensor, truth: Tensor, precision: str) -> float:
    """Check one library's logits in a benchmark's run: return the difference from ours in fp32; raise if too large.

    >>> round(check("timm", torch.tensor([1.0, 2.0002]), torch.tensor([1.0, 2.0]), "bf16"), 4)
    0.0001
    """
    if logits.shape != truth.shape:
        raise ValueError(
            f"{name} computes something else: expected logits {list(truth.shape)}, got {list(logits.shape)}"
        )
    distance = (logits.float().cpu() - truth).abs().max() / truth.abs().max()
    if not distance <= TOLERANCE[precision]:  # also true for NaN
        raise ValueError(
            f"{name} computes something else: its logits differ from ours by {distance:.2g} × the largest logit, "
            f"{TOLERANCE[precision]:g} is allowed in {precision}; leave it out with --against, or report it"
        )
    return float(distance)


def images(setting: Setting) -> Tensor:
    """Make the noise images that a benchmark runs contenders on, `[b c H W]`, the same every time."""
    config, generator = setting.config, torch.Generator().manual_seed(1)
    x = torch.randn(setting.batch, config.channels, *config.size, generator=generator)
    return x.to(setting.device, torch.float32 if setting.train else setting.dtype)


def environment(device: torch.device) -> dict[str, Any]:
    """Describe the hardware, library versions and date of a benchmark's run."""
    versions = {}
    for library in ("torch", "timm", "torchvision", "transformers", "onnxruntime", "openvino"):
        try:
            versions[library] = metadata.version(library)
        except metadata.PackageNotFoundError:
            continue
    return {
        "device": device_name(device),
        "processor": cpu_name(),
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": versions,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _build(
    material: Material,
    contenders: Mapping[str, Contender],
    x: Tensor,
    truth: Tensor,
    note: Callable[[str], object],
) -> tuple[dict[str, Compute], dict[str, float], dict[str, str]]:
    """Prepare a benchmark's run: each library's call, its difference from ours, and why others are left out."""
    runs: dict[str, Compute] = {}
    errors: dict[str, float] = {}
    left_out: dict[str, str] = {}
    for name, contender in contenders.items():
        note(f"building {name}")
        try:
            run = contender.build(material)
            logits = _forward(run, x, material.setting)
        except LeftOut as why:
            left_out[name] = str(why)
        except Exception as error:  # no compiler, too little memory, an unsupported model
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


def _forward(run: Compute, x: Tensor, setting: Setting) -> Tensor:
    """Run a model once before the benchmark's timed runs, for the logits that are checked.

    It runs as it is timed: with gradients for a training step.
    """
    if setting.train:  # with gradients, so that what is compiled here is what a step runs
        with torch.autocast(setting.device.type, setting.dtype, enabled=setting.precision != "fp32"):
            return run(x).detach()
    with torch.inference_mode():
        return run(x).clone()  # the next replay of a graph overwrites its logits


def _call(run: Compute, module: nn.Module | None, x: Tensor, setting: Setting) -> Call:
    """Make the call that a benchmark's run times for one library: a forward pass, or a training step."""
    if setting.train:
        assert module is not None
        return training_step(run, module, x, setting)

    def call() -> object:
        with torch.inference_mode():
            return run(x)

    return call


def _peak(call: Call, module: nn.Module | None, contender: Contender, setting: Setting) -> int | None:
    """Measure the peak memory of a model that the benchmark runs: bytes of one call, with those of its own weights.

    Other models that are in memory do not count. None if it cannot be measured.
    """
    call()
    if setting.device.type != "cuda" or (contender.mode == "graph" and not setting.train) or module is None:
        return None
    gc.collect()
    synchronize(setting.device)
    torch.cuda.reset_peak_memory_stats(setting.device)
    before = torch.cuda.memory_allocated(setting.device)
    call()
    synchronize(setting.device)
    return torch.cuda.max_memory_allocated(setting.device) - before + bytes_held(module, setting.train)


def bytes_held(module: nn.Module, train: bool) -> int:
    """Count the bytes that a model holds while the benchmark runs it: weights and, to train, optimiser state."""
    weights = sum(parameter.nbytes for parameter in module.parameters())
    learning = sum(parameter.nbytes for parameter in module.parameters() if parameter.requires_grad)
    return weights + (STATES * learning if train else 0)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence warnings of exporters and compilers while a benchmark builds and times its contenders."""
    import logging

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = logging.root.manager.disable
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(before)
