"""Run a benchmark: build contenders and the calls to time, check their logits, measure memory, format the table.

Logits are compared before anything is timed: a contender that computes something else raises an error.
"""

import gc
import html
import platform
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.benchmarking.contenders import CONTENDERS, Contender, LeftOut, Material, Setting
from vitreous.benchmarking.roofline import CEILING, ceiling_calls
from vitreous.benchmarking.timing import Call, TimingSummary, interleave, noise, summarise
from vitreous.benchmarking.training_step import STATES, recorded, training_step
from vitreous.models.last_block import Compute
from vitreous.models.summary import count_flops
from vitreous.runtime.device import cores, cpu_name, device_name, synchronize

TOLERANCE = {"fp32": 1e-4, "fp16": 1e-2, "bf16": 5e-2, "int8": 0.2, "fp8": 0.2}
"""Largest allowed difference of logits from ours in fp32, relative to the largest; random weights round badly."""
ROUNDS = 100  # at most
CHECKED = 8
"""Images of a batch whose logits are compared: a CPU computes the reference, and would take long for large batches."""


@dataclass(frozen=True)
class BenchmarkRow:
    """The measurements of one contender of a benchmark."""

    name: str
    library: str
    mode: str
    ours: bool
    milliseconds: float
    """Milliseconds an image."""
    images_per_second: float
    spread: float
    rounds: int
    ratio: float | None
    """Speed relative to the fastest other library; None if there was none."""
    share: float
    """Share of the ceiling, counting the FLOPs of the whole network, skipped work included."""
    error: float
    """Largest difference of a logit from ours in fp32, relative to the largest logit."""
    memory: int | None
    """Peak bytes, with weights and optimiser state; only on CUDA, and for graphs before they are recorded."""


@dataclass(frozen=True)
class BenchmarkResult:
    """One network at one batch size in a benchmark: a row for each contender, fastest first, and their ceiling."""

    model: str
    task: str
    batch: int
    precision: str
    device: str
    flops: int
    """FLOPs of one image: a forward pass, or three times that for a training step."""
    ceiling: float
    """FLOP/s of the fastest matrix product."""
    ceiling_product: str
    rows: list[BenchmarkRow]
    left_out: dict[str, str]
    warnings: list[str]

    @property
    def images_at_ceiling(self) -> float:
        """Images a second at the hardware's limit."""
        return self.ceiling / self.flops

    @property
    def title(self) -> str:
        """The title of a benchmark's table: model, task, batch size, precision and device."""
        kind = "training step" if self.task == "training" else "inference"
        return f"{self.model}, {kind}, batch {self.batch}, {self.precision}, {self.device}"

    def cells(self) -> list[list[str]]:
        """Format a benchmark's table as text: a header, and a row for each contender."""
        memory = any(row.memory is not None for row in self.rows)
        header = ["", "images/s", "ms", "spread", "× peer", "of limit", "error", *(["GiB"] if memory else [])]
        return [header, *(_cells(row, memory) for row in self.rows)]

    def notes(self) -> list[str]:
        """Write the lines below a benchmark's table: the limit, how to read it, and what was left out."""
        rounds = min((row.rounds for row in self.rows), default=0)
        limit = f"limit: {self.ceiling / 1e9:,.0f} GFLOP/s (product {self.ceiling_product})"
        return [
            f"{limit}, {self.images_at_ceiling:,.1f} images/s at {self.flops / 1e9:.2f} GFLOP each",
            f"medians of {rounds} rounds; ms for each image; × the fastest peer; "
            "error: the logits' distance from ours in fp32",
            *(f"left out: {name}: {reason}" for name, reason in self.left_out.items()),
        ]

    def __str__(self) -> str:
        cells = self.cells()
        widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
        lines = [
            " ".join(
                [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
            )
            for row in cells
        ]
        return "\n".join([self.title, *lines, *self.notes()])

    def _repr_html_(self) -> str:
        (first, *header), *rows = [[html.escape(cell) for cell in row] for row in self.cells()]
        head = "".join(f"<th>{cell}</th>" for cell in (first, *header))
        body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
        notes = "<br>".join(html.escape(line) for line in self.notes())
        return f"<table><caption>{html.escape(self.title)}</caption><tr>{head}</tr>{body}</table><p>{notes}</p>"


def _cells(row: BenchmarkRow, memory: bool) -> list[str]:
    """Format one contender's row of a benchmark's table."""
    cells = [
        row.name,
        f"{row.images_per_second:,.1f}",
        f"{row.milliseconds:.3g}" if row.milliseconds < 100 else f"{row.milliseconds:.0f}",
        f"{row.spread:.0%}",
        "–" if row.ratio is None else f"{row.ratio:.2f}",
        f"{row.share:.0%}",
        f"{row.error:.0e}",
    ]
    if memory:
        cells.append("–" if row.memory is None else f"{row.memory / 2**30:.2f}")
    return cells


def run_benchmark(
    model: str,
    setting: Setting,
    contenders: Mapping[str, Contender] = CONTENDERS,
    *,
    seconds: float = 20.0,
    load: float | None = None,
    note: Callable[[str], object] = lambda line: None,
) -> BenchmarkResult:
    """Time every contender on one network.

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


def to_rows(
    summaries: Mapping[str, TimingSummary],
    contenders: Mapping[str, Contender],
    batch: int,
    flops: int,
    ceiling: float,
    errors: Mapping[str, float],
    memory: Mapping[str, int | None],
) -> list[BenchmarkRow]:
    """Make a benchmark's rows from the contenders' timings, fastest first."""
    rates = {name: batch / summary.median for name, summary in summaries.items()}
    peers = [rate for name, rate in rates.items() if contenders[name].library != "vitreous"]
    rows = [
        BenchmarkRow(
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
    """Check a contender's logits: the difference from ours in fp32, relative to the largest; raise if it is too large.

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
    """Make the noise images that a benchmark times contenders on, `[b c H W]`, the same every time."""
    config, generator = setting.config, torch.Generator().manual_seed(1)
    x = torch.randn(setting.batch, config.channels, *config.size, generator=generator)
    return x.to(setting.device, torch.float32 if setting.train else setting.dtype)


def environment(device: torch.device) -> dict[str, Any]:
    """Describe the hardware, library versions and date of a benchmark."""
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
    """Build every contender; return calls, differences from the reference, and the reasons of those left out."""
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
    """Run a contender once, as the benchmark times it: with gradients for a training step."""
    if setting.train:  # with gradients, so that what is compiled here is what a step runs
        with torch.autocast(setting.device.type, setting.dtype, enabled=setting.precision != "fp32"):
            return run(x).detach()
    with torch.inference_mode():
        return run(x).clone()  # the next replay of a graph overwrites its logits


def _call(run: Compute, module: nn.Module | None, x: Tensor, setting: Setting) -> Call:
    """Make the call that the benchmark times for a contender: a forward pass, or a training step."""
    if setting.train:
        assert module is not None
        return training_step(run, module, x, setting)

    def call() -> object:
        with torch.inference_mode():
            return run(x)

    return call


def _peak(call: Call, module: nn.Module | None, contender: Contender, setting: Setting) -> int | None:
    """Measure the peak bytes of one call with its model's own; other contenders' models do not count."""
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
    """Count the bytes of memory that a contender's weights take, and in training its optimiser's state."""
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
