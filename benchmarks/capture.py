"""What looking inside costs: time and memory of a forward pass with and without capture, interleaved, medians.

python benchmarks/capture.py                                   # ViT-B/16, batch 8 on a CPU, batch 64 on a GPU
python benchmarks/capture.py --model vit_small_patch16_224 --image-size 896 --batch 1 --memory
"""

import argparse
import gc
import json
import os
import re
import statistics
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import torch

from vitreous import ViT, variant
from vitreous.inside.capture import capture

MODES = ("plain", "class rows", "all matrices", "class rows, moved to the CPU")


def context(mode: str, model: ViT):
    if mode == "plain":
        return nullcontext({})
    if mode == "all matrices":
        return capture(model, "attention")
    return capture(model, "attention", queries=[0], to="cpu" if "moved" in mode else None)


def build(options: argparse.Namespace, device: str) -> tuple[ViT, torch.Tensor]:
    torch.manual_seed(0)
    config = variant(options.model, image_size=options.image_size)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model = ViT(config).eval().to(device, dtype)
    return model, torch.randn(options.batch, 3, *config.size, device=device, dtype=dtype)


@torch.inference_mode()
def timed(options: argparse.Namespace, device: str) -> dict[str, float]:
    model, x = build(options, device)
    modes = MODES if device == "cuda" else MODES[:3]
    times: dict[str, list[float]] = {mode: [] for mode in modes}
    for turn in range(options.rounds + 10):
        for mode in modes if turn % 2 else modes[::-1]:
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
            with context(mode, model):
                model(x)
            if device == "cuda":
                torch.cuda.synchronize()
            if turn >= 10:
                times[mode].append(time.perf_counter() - start)
    return {mode: statistics.median(each) for mode, each in times.items()}


@torch.inference_mode()
def peak(options: argparse.Namespace, device: str, mode: str) -> tuple[int, int]:
    """Bytes at the highest point, and of what was asked for."""
    model, x = build(options, device)
    if device == "cuda":
        model(x)
        gc.collect()
        torch.cuda.reset_peak_memory_stats()
        with context(mode, model) as seen:
            model(x)
        highest = torch.cuda.max_memory_allocated()
    else:
        model(x)
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")  # Linux: forget the peak so far
        with context(mode, model) as seen:
            model(x)
        status = Path("/proc/self/status").read_text()
        highest = int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024
    return highest, sum(value.nbytes for value in seen.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="vit_base_patch16_224")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--memory", action="store_true", help="memory alone, for large images")
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    options.batch = options.batch or (64 if device == "cuda" else 8)
    if options.peak:
        print(json.dumps(peak(options, device, options.peak)))
        return
    config = variant(options.model, image_size=options.image_size)
    name = torch.cuda.get_device_name() if device == "cuda" else f"{torch.get_num_threads()} CPU threads"
    print(f"{options.model} at {options.image_size} px, batch {options.batch}, {name}, torch {torch.__version__}")
    times = {} if options.memory else timed(options, device)
    peaks = {}
    for mode in MODES if device == "cuda" else MODES[:3]:  # a process each: a peak cannot be taken back
        if mode == "all matrices" and options.image_size > 600:
            continue
        words = [sys.executable, __file__, *sys.argv[1:], "--peak", mode]
        # large blocks are to be returned at once, else the C library's own hoard hides what was used
        exact = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}
        peaks[mode] = json.loads(subprocess.run(words, capture_output=True, text=True, check=True, env=exact).stdout)
    itemsize = 2 if device == "cuda" else 4
    tokens, heads = config.layout.tokens, config.heads
    one_layer = options.batch * itemsize * (2 * tokens * config.width + heads * tokens * tokens)
    for mode, (highest, asked) in peaks.items():
        extra = highest - peaks["plain"][0]
        bound = 1.2 * asked + one_layer
        ratio = f"{times[mode] / times['plain']:.2f}× plain ({times[mode] * 1e3:.1f} ms)" if times else ""
        sizes = f"asked for {asked / 2**20:8.1f} MiB, extra {extra / 2**20:8.1f} MiB (bound {bound / 2**20:.1f})"
        print(f"{mode:<30} {ratio:<28} {sizes}")


if __name__ == "__main__":
    main()
