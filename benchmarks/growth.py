"""How cost grows: pixels, depth, width and batch, each alone; time and memory beside the curve that theory draws.

    python benchmarks/growth.py [--device cuda] [--precision bf16] -o results/speed/growth-cpu

Time: medians of a plain ViT's whole forward pass, all points in turn. Theory: floating-point operations, made to meet
the last point, where starting things no longer counts. Memory: bytes at the peak of a forward pass beyond the weights,
on CUDA by the allocator, on a CPU by the largest sum of living tensors; theory: the widest moment of a block, which is
the MLP's (what goes in, what comes out of its first layer twice over, the residual): attention's matrix is never kept.
"""

import argparse
import json
import statistics
import time
from dataclasses import replace
from datetime import date
from pathlib import Path

import torch

from vitreous.figures.style import ACCENT, MUTED, PALETTE
from vitreous.models.summary import count_flops
from vitreous.models.variants import variant
from vitreous.models.vit import ViT
from vitreous.runtime.device import cpu_name, pick_device, pick_dtype

SWEEPS = {
    "pixels a side": ("image_size", (224, 448, 896)),
    "blocks": ("depth", (3, 6, 12, 24)),
    "width": ("width", (192, 384, 768)),
    "images at once": ("batch", (1, 2, 4, 8)),  # times --batch
}


def points(base, batch):
    """Every point once: sweep → [(value, config, batch)]; heads stay 64 wide."""
    found = {}
    for name, (field, values) in SWEEPS.items():
        found[name] = []
        for value in values:
            if field == "batch":
                found[name].append((value * batch, base, value * batch))
                continue
            changes = {field: value}
            if field == "width":
                changes |= {"heads": value // 64, "mlp_width": 4 * value}
            found[name].append((value, replace(base, **changes), batch))
    return found


class Living(torch.utils._python_dispatch.TorchDispatchMode):
    """The largest sum of bytes of tensors that an operation made and somebody still holds (CPU)."""

    def __init__(self):
        super().__init__()
        self.now = self.peak = 0
        self.known = set()

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        import weakref

        result = function(*arguments, **(options or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if not isinstance(tensor, torch.Tensor):
                continue
            storage = tensor.untyped_storage()
            key, size = storage._cdata, storage.nbytes()
            if key in self.known:
                continue
            self.known.add(key)
            self.now += size
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._gone, key, size)
        return result

    def _gone(self, key, size):
        self.known.discard(key)
        self.now -= size


@torch.inference_mode()
def memory(model, x, device):
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        model(x)
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with Living() as living:
        model(x)
    return living.peak


def theory(config, batch, number):
    """Bytes at the widest moment: residual, MLP's input, its hidden layer before and after GELU."""
    tokens = batch * config.layout.tokens
    return tokens * (2 * config.width + 2 * config.mlp_width) * number


def draw(found, path, note):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5.4), dpi=110)
    grid = figure.subplots(2, len(found))
    for column, (name, rows) in enumerate(found.items()):
        for axes, measured, expected, unit in (
            (grid[0][column], "milliseconds", "expected_milliseconds", "ms"),
            (grid[1][column], "megabytes", "expected_megabytes", "MB"),
        ):
            values = [row["value"] for row in rows]
            axes.plot(values, [row[expected] for row in rows], color=MUTED, lw=1.5, label="theory")
            axes.plot(values, [row[measured] for row in rows], "o", color=ACCENT, ms=6, label="measured")
            axes.set(xscale="log", yscale="log")
            for row in rows:
                axes.annotate(
                    f"{row[measured]:,.0f}" if row[measured] >= 100 else f"{row[measured]:.3g}",
                    (row["value"], row[measured]),
                    (0, 7),
                    textcoords="offset points",
                    ha="center",
                    fontsize=8,
                )
            axes.set_xticks(values, [str(value) for value in values])
            axes.set_yticks([])
            axes.minorticks_off()
            axes.margins(0.12, 0.25)
            low, high = axes.get_ylim()
            if high < 4 * low:  # a hair's breadth is not to look like a mountain
                axes.set_ylim(low / 2, 2 * high)
            axes.grid(color=PALETTE[0], alpha=0.12)
            axes.spines[["top", "right"]].set_visible(False)
            if column == 0:
                axes.set_ylabel({"ms": "time, ms", "MB": "memory, MB"}[unit])
                axes.legend(frameon=False)
            if unit == "MB":
                axes.set_xlabel(name)
    figure.suptitle("How a ViT's cost grows", x=0.01, ha="left", fontsize=13)
    figure.text(0.01, 0.005, note, fontsize=8, color=MUTED)
    figure.tight_layout(rect=(0, 0.03, 1, 0.98))
    figure.savefig(path)


@torch.inference_mode()
def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="vit_tiny_patch16_224")
    parser.add_argument("--batch", type=int, default=1, help="where the batch is not what grows")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("-o", "--output", type=Path, default=Path("growth"))
    given = parser.parse_args()
    device, dtype = pick_device(given.device), pick_dtype(given.precision)
    plan = points(variant(given.model), given.batch)
    settle = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    built, times = {}, {}
    for rows in plan.values():
        for _, config, batch in rows:
            if (config, batch) not in built:
                model = ViT(config).eval().to(device, dtype)
                x = torch.randn(batch, config.channels, *config.size).to(device, dtype)
                model(x)
                built[config, batch] = (model, x, memory(model, x, device))
                times[config, batch] = []
    for _ in range(given.rounds):
        for key, (model, x, _) in built.items():
            settle()
            begun = time.perf_counter()
            model(x)
            settle()
            times[key].append(time.perf_counter() - begun)
    number = torch.empty(0, dtype=dtype).element_size()
    found = {}
    for name, rows in plan.items():
        found[name] = []
        flops = [count_flops(built[config, batch][0]) * batch for _, config, batch in rows]
        for (value, config, batch), count in zip(rows, flops, strict=True):
            milliseconds = 1e3 * statistics.median(times[config, batch])
            last = 1e3 * statistics.median(times[rows[-1][1], rows[-1][2]])
            found[name].append(
                {
                    "value": value,
                    "gflop": count / 1e9,
                    "milliseconds": milliseconds,
                    "expected_milliseconds": last * count / flops[-1],
                    "megabytes": built[config, batch][2] / 1e6,
                    "expected_megabytes": theory(config, batch, number) / 1e6,
                }
            )
    where = (
        torch.cuda.get_device_name() if device.type == "cuda" else f"{torch.get_num_threads()} threads, {cpu_name()}"
    )
    note = f"{given.model}, batch {given.batch}, {given.precision}; {where}, torch {torch.__version__}, {date.today()}"
    given.output.mkdir(parents=True, exist_ok=True)
    (given.output / "growth.json").write_text(json.dumps({"note": note, "sweeps": found}, indent=1))
    draw(found, given.output / "growth.png", f"{note}; medians of {given.rounds} rounds, in turn")
    for name, rows in found.items():
        for row in rows:
            print(
                f"{name:18s}{row['value']:6d} {row['gflop']:8.2f} GFLOP {row['milliseconds']:9.2f} ms "
                f"({row['milliseconds'] / row['expected_milliseconds']:.2f} of theory) {row['megabytes']:8.1f} MB "
                f"({row['megabytes'] / row['expected_megabytes']:.2f})"
            )


if __name__ == "__main__":
    main()
