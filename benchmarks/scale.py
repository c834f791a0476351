"""Measure a training step on one device, alone and under each engine: `python benchmarks/scale.py -o scale.json`.

The figures behind docs/scale.md: images/s and peak memory of a step of ViT-B, -L and -H in bf16, in a process alone (on
a GPU the step is replayed as a graph) and in a world of one rank under DDP and FSDP2, which shows the cost of the
engines themselves. Median over steps, all in one process.
"""

import argparse
import gc
import json
import os
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from vitreous.runtime.distributed import join_world
from vitreous.training.config import TrainConfig
from vitreous.training.listeners import Listener
from vitreous.training.setup import set_up_device, set_up_run

MODELS = {"vit_base_patch16_224": 128, "vit_large_patch16_224": 64, "vit_huge_patch14_224": 32}  # → batch size
TORCHRUN = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}


def make_data(folder: Path, count: int, size: int = 224) -> Path:
    chance = np.random.default_rng(0)
    for split, each in (("train", count), ("test", 4)):
        for name in ("one", "two"):
            (folder / split / name).mkdir(parents=True)
            for i in range(each // 2):
                pixels = chance.integers(0, 256, (size, size, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / split / name / f"{i}.png", compress_level=0)
    return folder


def measure(config: TrainConfig, engine: str, steps: int) -> dict[str, float]:
    """One model under one engine."""
    os.environ.update(TORCHRUN | {"TORCHELASTIC_RUN_ID": "one"} if engine != "alone" else {})
    try:
        config = replace(config, parallel=engine if engine != "alone" else "ddp")
        with join_world(set_up_device(config)) as world:
            cuda = world.device.type == "cuda"
            if cuda:
                torch.cuda.reset_peak_memory_stats()
            parts = set_up_run(config, None, Listener(), world)
            batch = next(parts.train_source.epoch(0, int(config.batch_size)))
            times = []
            for step in range(steps + 2):
                started = time.perf_counter()
                parts.train_step(batch, 0, step, 1e-3)
                if cuda:
                    torch.cuda.synchronize()
                times.append(time.perf_counter() - started)
            seconds = statistics.median(times[2:])
            peak = torch.cuda.max_memory_allocated() if cuda else None
            parameters = sum(p.numel() for p in parts.model.parameters())
            del parts, batch
    finally:
        for name in (*TORCHRUN, "TORCHELASTIC_RUN_ID"):
            os.environ.pop(name, None)
    gc.collect()
    if cuda:
        torch.cuda.empty_cache()
    size = int(config.batch_size)
    found = {"parameters": parameters, "batch": size, "seconds": seconds, "images_per_second": size / seconds}
    return found | {"peak_bytes": peak}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--engines", nargs="*", default=["alone", "ddp", "fsdp"])
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--device", default="auto")
    parser.add_argument("-o", "--output", type=Path, default=Path("scale.json"))
    given = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        os.environ["VITREOUS_CACHE"] = str(Path(name) / "cache")
        data = make_data(Path(name) / "data", max(given.batch_size or max(MODELS.values()), 8))
        for model in given.models:
            config = TrainConfig(
                model=model,
                data=str(data),
                batch_size=given.batch_size or MODELS[model],
                precision=given.precision,
                compile=given.compile,
                device=given.device,
                resident="yes",
                snapshots=0,
            )
            for engine in given.engines:
                found = {"model": model, "engine": engine, "compile": given.compile} | measure(
                    config, engine, given.steps
                )
                rows.append(found)
                memory = f"{found['peak_bytes'] / 2**30:.1f} GiB" if found["peak_bytes"] else "–"
                print(f"{model:<24} {engine:<6} {found['images_per_second']:>8.1f} images/s  {memory}", flush=True)
                given.output.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
