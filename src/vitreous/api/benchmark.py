"""`benchmark` and its result: time ViTs beside other libraries and the hardware's limit; save JSON and figures."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vitreous.benchmarking.contenders import Setting, select_contenders
from vitreous.benchmarking.run import environment, run_benchmark
from vitreous.benchmarking.table import BenchmarkResult
from vitreous.benchmarking.timing import load_average
from vitreous.figures.bars import Panel, draw_speeds
from vitreous.figures.style import encode
from vitreous.models.variants import variant
from vitreous.runtime.device import pick_device
from vitreous.runtime.files import write_atomic, write_json

PEERS = ("timm", "torchvision", "transformers", "onnxruntime", "openvino")


@dataclass(frozen=True)
class Benchmark:
    """The result of `benchmark`: speeds of each model, and the machine they were measured on; it saves itself."""

    results: list[BenchmarkResult]
    environment: dict[str, Any]

    def __repr__(self) -> str:
        return "\n\n".join(map(str, self.results))

    def _repr_html_(self) -> str:
        return "".join(result._repr_html_() for result in self.results)

    def to_dict(self) -> dict[str, Any]:
        """Return what `vitreous.benchmark` measured as JSON values, as `benchmark.json` has it."""
        return {**self.environment, "results": [asdict(result) for result in self.results]}

    def save(self, folder: str | Path) -> list[Path]:
        """Save what `vitreous.benchmark` returned in Python: `benchmark.json`, `benchmark.png` and `benchmark.svg`."""
        folder, about = Path(folder), self.environment
        panels = [
            Panel(
                f"{result.model}, {result.task}, batch {result.batch}, {result.precision}",
                [row.name for row in result.rows],
                [row.images_per_second for row in result.rows],
                [row.ours for row in result.rows],
                result.images_at_ceiling,
            )
            for result in self.results
        ]
        machine = ", ".join([about["device"], about["processor"], f"torch {about['versions']['torch']}"])
        rounds = min(row.rounds for result in self.results for row in result.rows)
        noisy = " (the machine was noisy or busy)" if any(result.warnings for result in self.results) else ""
        note = f"{machine}, {about['date'][:10]}; in one process, in turn, medians of {rounds} rounds{noisy}"
        figure = draw_speeds(panels, title="Images a second, beside other libraries and the limit", note=note)
        png, svg = encode(figure, "png"), encode(figure, "svg")
        return [
            write_json(folder / "benchmark.json", self.to_dict()),
            write_atomic(folder / "benchmark.png", lambda path: path.write_bytes(png)),
            write_atomic(folder / "benchmark.svg", lambda path: path.write_bytes(svg)),
        ]


def benchmark(
    models: str | Sequence[str] = (),
    *,
    batch_size: int | None = None,
    against: Sequence[str] = PEERS,
    modes: Sequence[str] = (),
    precision: str | None = None,
    also: Sequence[str] = (),
    train: bool = False,
    seconds: float = 20.0,
    device: str = "auto",
    note: Callable[[str], object] = lambda line: None,
    on_result: Callable[[BenchmarkResult], object] = lambda result: None,
) -> Benchmark:
    """Time ViTs with random weights beside other libraries, in turns, and against the fastest matrix product.

    `models` are names of variants, by default vit_tiny_patch16_224, on a GPU vit_base_patch16_224. `batch_size` is 8 by
    default, on a GPU 256. `against` names libraries; those not installed are left out with a reason. `modes` are eager,
    compiled and graph; `precision` is fp32, bf16 or fp16; `also` adds ours in bf16, int8 or fp8. `train` times training
    steps. `seconds` are for the rounds of each model. `note` gets progress lines, `on_result` each result.

    >>> found = benchmark("vit_femto_patch4_32", batch_size=1, against=(), seconds=0.1, device="cpu")
    >>> [row.name for row in sorted(found.results[0].rows, key=lambda row: row.name)]
    ['vitreous', 'vitreous, whole network']
    """
    chosen = pick_device(device)
    small = chosen.type == "cpu"
    names = [models] if isinstance(models, str) else list(models)
    names = names or ["vit_tiny_patch16_224" if small else "vit_base_patch16_224"]
    configs = {name: variant(name) for name in names}
    if not 0 < seconds < float("inf") or (batch_size is not None and batch_size < 1):
        raise ValueError(f"seconds and batch size must be numbers above 0, got {seconds:g} and {batch_size}")
    if headless := [name for name, config in configs.items() if not config.classes]:
        raise ValueError(f"{headless[0]} has no head, so no logits to compare: name a variant that classifies")
    modes = tuple(modes) or (("eager",) if small else ("eager", "compiled"))
    contenders = select_contenders(tuple(against), modes, train, tuple(also))
    precision = precision or ("bf16" if chosen.type == "cuda" else "fp32")
    load, results = load_average(), []
    for name, config in configs.items():
        setting = Setting(config, batch_size or (8 if small else 256), chosen, precision, train)

        def noted(line: str, name: str = name) -> None:
            note(f"{name}: {line}")

        result = run_benchmark(name, setting, contenders, seconds=seconds, load=load, note=noted)
        on_result(result)
        results.append(result)
    return Benchmark(results, environment(chosen))
