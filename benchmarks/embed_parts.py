"""`embed` on several processes, killed and resumed, gives each image once: `python benchmarks/embed_parts.py`.

Small images are drawn into a temporary folder and embedded once by one undisturbed process, as reference. Then on
several processes under torchrun, ended by SIGKILL at random moments: all of them, or one, whereupon torchrun ends the
others. The result of the last, uninterrupted call is compared row by row with the reference.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet
from PIL import Image


def make_images(folder: Path, count: int) -> None:
    """Images of 32×32 coloured noise, a thousand a folder."""
    rng = np.random.default_rng(0)
    for i in range(count):
        inside = folder / f"{i // 1000:03d}"
        inside.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(inside / f"{i:06d}.png")


def start(images: Path, output: Path, part_size: int, processes: int, log: Path) -> subprocess.Popen[bytes]:
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"] if processes > 1 else []
    words = ["-m", "vitreous", "embed", str(images), "-o", str(output), "--part-size", str(part_size)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}  # as torchrun sets it: sums in the same order
    return subprocess.Popen(
        [sys.executable, *launch, *words], stdout=log.open("ab"), stderr=subprocess.STDOUT, env=environment
    )


def children(pid: int) -> list[int]:
    """List the child processes, on Linux."""
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(word) for word in listed.read_text().split()] if listed.exists() else []


def written(folder: Path) -> int:
    return sum(1 for _ in folder.glob("part-*.parquet"))


def kill(process: subprocess.Popen[bytes], draw: random.Random) -> str:
    """Kill all processes, or one worker."""
    workers = children(process.pid)
    alone = bool(workers) and draw.random() < 0.5
    for pid in [draw.choice(workers)] if alone else [process.pid, *workers]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return "none"
    process.wait()
    return "one" if alone else "all"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--part-size", type=int, default=256)
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    draw = random.Random(given.seed)
    with tempfile.TemporaryDirectory() as name:
        root, log = Path(name), Path(name) / "log.txt"
        make_images(root / "images", given.images)
        begun = time.monotonic()
        if start(root / "images", root / "whole", given.part_size, 1, log).wait():
            sys.exit(log.read_text())
        spent = time.monotonic() - begun
        parts, total = root / "parts", written(root / "whole")
        killed, halves = [], 0
        while len(killed) < given.kills:
            process = start(root / "images", parts, given.part_size, given.processes, log)
            until = min(total - 1, written(parts) + draw.randint(0, 2 * total // (given.kills + 2)))
            while process.poll() is None and written(parts) < until:
                time.sleep(0.005)
            time.sleep(draw.uniform(0, 0.5))
            how = kill(process, draw)
            if how == "none":  # it had ended by itself
                process.wait()
                continue
            halves += any(parts.glob(".part-*"))
            killed.append(f"{how} at {written(parts)}")
            print(f"killed {killed[-1]} of {total} parts", flush=True)
        begun = time.monotonic()
        if start(root / "images", parts, given.part_size, given.processes, log).wait():
            sys.exit(log.read_text())
        last = time.monotonic() - begun
        reference, found = (pyarrow.parquet.read_table(folder) for folder in (root / "whole", parts))
        names = found["image"].to_pylist()
        once = len(names) == len(set(names)) == given.images and names == reference["image"].to_pylist()
        ours, theirs = (table["features"].combine_chunks().flatten().to_numpy() for table in (found, reference))
        same = ours.shape == theirs.shape and bool((ours == theirs).all())
        apart = float(np.abs(ours - theirs).max()) if ours.shape == theirs.shape else float("nan")
        strays = len(list(parts.glob(".*")))
        print(
            f"{given.images} images, {total} parts, {given.processes} processes, {len(killed)} kills "
            f"({', '.join(killed)}; {halves} in the middle of writing a part): "
            f"each image {'exactly once' if once else 'NOT ONCE'}, "
            f"features {'bit-identical' if same else f'up to {apart:.2g} apart'}, {strays} temporary files left "
            f"(one process alone {spent:.0f} s, the last call {last:.0f} s)"
        )
        sys.exit(not once or apart > 1e-5 or strays > 0)


if __name__ == "__main__":
    main()
