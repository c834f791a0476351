"""What a training step costs on many GPUs, reckoned from one: `python benchmarks/scale_cost.py results/scale.json`.

In go the measured step of one GPU (`benchmarks/scale.py`) and what is assumed of the links between GPUs. Out come, for
8, 64 and 512 of them, the bytes that each GPU sends in a step, how long that takes, and what is left of the measured
speed: all of it if sending overlaps with the backward pass, the worst case of the table if nothing overlaps.
"""

import argparse
import json
import math
from pathlib import Path

INSIDE = 360e9  # bytes/s that a GPU sends to the others of its machine: NVLink 4, 450 GB/s on paper, 80 % of it reached
BETWEEN = 40e9  # bytes/s over one link between machines: 400 Gb/s, 50 GB/s on paper, 80 % reached; each GPU has one
HOP = 10e-6  # seconds until a message has gone from one machine to the next
BUCKET = 25e6  # bytes of gradients that travel together (DDP's default)
MACHINE = 8  # GPUs in one
IMAGES = 13_153_500  # of ImageNet-21k (winter 2021)
BYTES = 110e3  # of an image, as it is encoded


def sent(parameters: int, ranks: int) -> float:
    """Bytes that each GPU sends in a step.

    DDP adds up fp32 gradients around a ring: 2 × 4 bytes a parameter. FSDP2 in bf16 gathers the weights twice (2 × 2
    bytes) and adds up fp32 gradients to slices (4 bytes): as much in all.
    """
    return 8 * parameters * (ranks - 1) / ranks


def seconds_of_sending(parameters: int, ranks: int) -> float:
    """By the slower of the links inside a machine and those between, and what it takes to set out.

    Eight rings run through each machine side by side, each with an eighth of the bytes and a link of its own.
    """
    bytes_sent, machines = sent(parameters, ranks), ranks / MACHINE
    if machines <= 1:
        return bytes_sent / INSIDE
    buckets = 4 * parameters / BUCKET
    setting_out = buckets * 2 * math.log2(machines) * HOP  # up and down a tree of machines
    return max(bytes_sent / INSIDE, bytes_sent / (MACHINE * BETWEEN)) + setting_out


def share_left(step: float, parameters: int, ranks: int) -> float:
    """Of the speed of one GPU, where sending and computing never overlap."""
    return step / (step + seconds_of_sending(parameters, ranks))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("measured", type=Path)
    parser.add_argument("--engine", default="ddp")
    given = parser.parse_args()
    print(
        "| model | batch per GPU | GPUs | sent | sending | step | worst case | images/s | ImageNet-21k epoch | read |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for row in json.loads(given.measured.read_text()):
        if row["engine"] != given.engine:
            continue
        for ranks in (8, 64, 512):
            left = share_left(row["seconds"], row["parameters"], ranks)
            speed = ranks * row["images_per_second"] * left
            print(
                f"| {row['model']} | {row['batch']} | {ranks} | {sent(row['parameters'], ranks) / 1e9:.2f} GB "
                f"| {1000 * seconds_of_sending(row['parameters'], ranks):.1f} ms | {1000 * row['seconds']:.0f} ms "
                f"| {left:.0%} | {speed:,.0f} | {IMAGES / speed / 60:,.1f} min "
                f"| {speed * BYTES / 1e9:.1f} GB/s |"
            )


if __name__ == "__main__":
    main()
