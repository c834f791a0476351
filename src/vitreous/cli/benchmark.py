"""`vitreous benchmark`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from vitreous.cli.console import messages, print_json
from vitreous.cli.options import Number

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

    from vitreous.benchmarking.benchmark import Result

PEERS = "timm,torchvision,transformers,onnxruntime,openvino"
Folder = Annotated[Path | None, tyro.conf.arg(aliases=["-o"], metavar="FOLDER")]
Names = Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME …", help_behavior_hint="")]


def benchmark(
    models: Names = (),
    batch_size: Number = None,
    against: Annotated[str, tyro.conf.arg(metavar="LIBRARY,…")] = PEERS,
    modes: tuple[Literal["eager", "compiled", "graph"], ...] = (),
    precision: Literal["fp32", "bf16", "fp16"] | None = None,
    also: tuple[Literal["bf16", "int8", "fp8"], ...] = (),
    train: bool = False,
    seconds: float = 20.0,
    device: str = "auto",
    output: Folder = None,
    json: bool = False,
) -> None:
    """Time ViTs beside other libraries, all in one process and in turn, against the limit measured in the same run.

    As in `vitreous benchmark --models vit_base_patch16_224 --modes eager compiled -o speed`. Every library runs the
    same random weights, and its logits are compared with ours before it is timed. The limit is the best matrix product
    of this device in the same number format; shares of it count the full network's work, skipped work included.

    Args:
        models: Variants (`vitreous models`); by default vit_tiny_patch16_224, on a GPU vit_base_patch16_224.
        batch_size: Images at once; by default 8, on a GPU 256.
        against: Libraries to stand beside, with commas; '' for none. What is not installed is left out and named.
        modes: eager, compiled (torch.compile) and graph (CUDA graphs); by default eager, on a GPU eager and compiled.
            Compiling takes a minute or so for each library on a CPU.
        precision: Number format: fp32, bf16 or fp16; by default fp32, on a GPU bf16.
        also: Ours in narrower formats beside the rest: bf16, int8, fp8 (on GPUs that have it).
        train: Time training steps (forward, backward, AdamW) instead; narrow formats are autocast's.
        seconds: Time for the rounds of each model; building and compiling come on top.
        device: auto, cpu, cuda, cuda:N or mps.
        output: Write benchmark.json, benchmark.png and benchmark.svg to this folder.
        json: Print what benchmark.json holds.
    """
    from functools import partial

    from rich.console import Console

    from vitreous.benchmarking.benchmark import benchmark as measure
    from vitreous.benchmarking.benchmark import described, surroundings
    from vitreous.benchmarking.contenders import Setting, chosen
    from vitreous.benchmarking.timing import load_average
    from vitreous.models.variants import variant
    from vitreous.runtime.device import pick_device

    place, console = pick_device(device), messages()
    small = place.type == "cpu"
    names = models or ("vit_tiny_patch16_224" if small else "vit_base_patch16_224",)
    configs = {name: variant(name) for name in names}
    if seconds <= 0 or (batch_size is not None and batch_size < 1):
        raise ValueError(f"seconds and batch size must be more than 0, got {seconds:g} and {batch_size}")
    if headless := [name for name, config in configs.items() if not config.classes]:
        raise ValueError(f"{headless[0]} has no head, so no logits to compare: name a variant that classifies")
    wanted = tuple(name.strip() for name in against.split(",") if name.strip())
    contenders = chosen(wanted, modes or (("eager",) if small else ("eager", "compiled")), train, also)
    load, results = load_average(), []
    for name, config in configs.items():
        setting = Setting(config, batch_size or (8 if small else 256), place, precision or _usual(place.type), train)
        with console.status(name) as status:
            tell = partial(_tell, status, name)
            result = measure(name, setting, contenders, seconds=seconds, load=load, tell=tell)
        results.append(result)
        if not json:
            _show(result, Console(highlight=False))
        for warning in result.warnings:
            console.print(f"vitreous: {warning}", style="yellow", markup=False)
    found = described(results, surroundings(place))
    if output is not None:
        for path in _write(results, found, output):
            console.print(f"wrote {path}", markup=False)
    if json:
        print_json(found)


def _tell(status: Status, name: str, line: str) -> None:
    status.update(f"{name}: {line}")


def _usual(kind: str) -> str:
    return "bf16" if kind == "cuda" else "fp32"


def _show(result: Result, console: Console) -> None:
    from rich.table import Table

    memory = any(row.memory is not None for row in result.rows)
    table = Table(
        title=result.title, title_justify="left", title_style="bold", box=None, header_style="dim", pad_edge=False
    )
    table.add_column("", no_wrap=True)
    for column in ("images/s", "ms", "spread", "× peer", "of limit", "error"):
        table.add_column(column, justify="right", no_wrap=True)
    if memory:
        table.add_column("GiB", justify="right")
    for row in result.rows:
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
        table.add_row(*cells, style="bold" if row.ours else "")
    console.print(table)
    rounds = min((row.rounds for row in result.rows), default=0)
    product = f"limit: {result.ceiling / 1e9:,.0f} GFLOP/s (product {result.ceiling_product})"
    console.print(f"{product}, {result.most:,.1f} images/s at {result.flops / 1e9:.2f} GFLOP each", markup=False)
    console.print(
        f"medians of {rounds} rounds; ms for each image; × the fastest peer; "
        "error: the logits' distance from ours in fp32",
        style="dim",
        markup=False,
    )
    for name, why in result.left_out.items():
        console.print(f"left out: {name}: {why}", style="dim", markup=False)


def _write(results: list[Result], found: dict[str, Any], folder: Path) -> list[Path]:
    from vitreous.figures.speeds import Panel, draw_speeds
    from vitreous.figures.style import encode
    from vitreous.runtime.files import write_atomic, write_json

    panels = [
        Panel(
            f"{result.model}, {result.task}, batch {result.batch}, {result.precision}",
            [row.name for row in result.rows],
            [row.images_per_second for row in result.rows],
            [row.ours for row in result.rows],
            result.most,
        )
        for result in results
    ]
    where = ", ".join([found["device"], found["processor"], f"torch {found['versions']['torch']}", found["date"][:10]])
    rounds = min(row.rounds for result in results for row in result.rows)
    noisy = " (the machine was noisy or busy)" if any(result.warnings for result in results) else ""
    note = f"{where}; in one process, in turn, medians of {rounds} rounds{noisy}"
    figure = draw_speeds(panels, title="Images a second, beside other libraries and the limit", note=note)
    png, svg = encode(figure, "png"), encode(figure, "svg")
    return [
        write_json(folder / "benchmark.json", found),
        write_atomic(folder / "benchmark.png", lambda path: path.write_bytes(png)),
        write_atomic(folder / "benchmark.svg", lambda path: path.write_bytes(svg)),
    ]
