"""Every size beside the other libraries on one GPU: inference, latency and training, each setting in one process.

    python benchmarks/gpu.py --settings inference-b latency-b training-b --output gpu

Compiling takes most of the time, so the settings are built side by side, each by a process of its own. Then they are
measured one after the other, while the rest wait.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import torch

from vitreous.api.benchmark import Benchmark
from vitreous.benchmarking.contenders import CONTENDERS, Contender, Setting
from vitreous.benchmarking.run import environment, run_benchmark
from vitreous.benchmarking.table import BenchmarkResult
from vitreous.models.variants import variant

MODELS = {
    "ti": "vit_tiny_patch16_224",
    "s": "vit_small_patch16_224",
    "b": "vit_base_patch16_224",
    "l": "vit_large_patch16_224",
}
BATCHES = {"inference": 256, "latency": 1, "training": 256}
OURS = ("vitreous, optimized", "vitreous, optimized fp8")
TAKE_PART = {
    "inference": (*OURS, "vitreous, compiled", "timm", "timm, compiled", "torchvision", "transformers"),
    "latency": (*OURS, "timm", "timm, compiled", "timm, graph", "torchvision", "torchvision, graph", "transformers"),
    "training": ("vitreous, fused", "vitreous, fused, bf16 residual", "timm, compiled", "timm, step as a graph"),
}
"""Who; torchvision and transformers get slower by compiling at large batches (`vitreous benchmark` shows it)."""


def setting(label: str) -> tuple[str, Setting, dict[str, Contender]]:
    """`inference-b` → the model's name, what is measured, and who takes part."""
    kind, size = label.split("-")
    batch = 128 if label == "training-l" else BATCHES[kind]
    what = Setting(variant(MODELS[size]), batch, torch.device("cuda"), "bf16", kind == "training")
    names = [*TAKE_PART[kind], *(["torchvision, compiled"] if label == "training-b" else [])]
    return MODELS[size], what, {name: CONTENDERS[name] for name in names}


def one(label: str, folder: Path, seconds: float) -> None:
    """Build, say so, wait to be called, measure, write."""
    model, what, contenders = setting(label)

    def note(line: str) -> None:
        print(f"{time.strftime('%X')} {line}", flush=True)
        if line == "timing":
            torch.cuda.synchronize()
            (folder / f"{label}.built").touch()
            while not (folder / f"{label}.go").exists():
                time.sleep(0.05)

    result = run_benchmark(model, what, contenders, seconds=seconds, note=note)
    (folder / f"{label}.table").write_text(table(result))
    (folder / f"{label}.json").write_text(json.dumps(Benchmark([result], environment(what.device)).to_dict()))


def table(result: BenchmarkResult) -> str:
    lines = [f"{result.title}; limit {result.ceiling / 1e12:.0f} TFLOP/s = {result.images_at_ceiling:,.0f}/s"]
    for row in result.rows:
        ratio = "" if row.ratio is None else f"{row.ratio:5.2f}x"
        memory = "" if row.memory is None else f"{row.memory / 2**30:6.1f} GiB"
        lines.append(
            f"  {row.name:32s}{row.images_per_second:10,.0f}/s {1e3 * result.batch / row.images_per_second:8.3f} ms"
            f" {ratio} {row.share:5.1%} error {row.error:.0e} spread {row.spread:.1%}{memory}"
        )
    return "\n".join([*lines, *(f"  left out: {name}: {why}" for name, why in result.left_out.items())])


def all_of(labels: list[str], folder: Path, seconds: float, patience: float) -> list[str]:
    """Start a process for each, wait until they have built, and let them measure in turn; who was measured."""
    running = {}
    for label in labels:
        log = (folder / f"{label}.log").open("w")
        call = [sys.executable, __file__, "--one", label, "--logs", str(folder), "--seconds", str(seconds)]
        running[label] = subprocess.Popen(call, stdout=log, stderr=subprocess.STDOUT)
    begun = time.time()
    while time.time() - begun < patience:
        if all((folder / f"{label}.built").exists() or each.poll() is not None for label, each in running.items()):
            break
        time.sleep(0.2)
    print(f"built after {time.time() - begun:.0f} s", flush=True)
    for label, process in running.items():
        if not (folder / f"{label}.built").exists():  # it would go on compiling beside those that measure
            process.kill()
            print(f"{label} was not ready in time: see its log", flush=True)
    for label, process in running.items():
        (folder / f"{label}.go").touch()
        process.wait()
        if (found := folder / f"{label}.table").exists():
            print(found.read_text(), flush=True)
    return [label for label in labels if (folder / f"{label}.json").exists()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", nargs="+", default=[f"{kind}-{size}" for kind in BATCHES for size in MODELS])
    parser.add_argument("--output", type=Path, default=Path("gpu"))
    parser.add_argument("--logs", type=Path, default=Path("gpu-logs"))
    parser.add_argument("--seconds", type=float, default=10.0, help="for the rounds of each setting")
    parser.add_argument("--patience", type=float, default=600.0, help="seconds for building")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.logs.mkdir(parents=True, exist_ok=True)
    if given.one:
        one(given.one, given.logs, given.seconds)
        return
    measured = all_of(given.settings, given.logs, given.seconds, given.patience)
    given.output.mkdir(parents=True, exist_ok=True)
    found = [json.loads((given.logs / f"{label}.json").read_text()) for label in measured]
    if found:
        merged = {**found[0], "results": [result for each in found for result in each["results"]]}
        (given.output / "benchmark.json").write_text(json.dumps(merged, indent=1))


if __name__ == "__main__":
    main()
