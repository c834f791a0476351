"""How exactly the angle of a rotated digit can be known: a convolutional network that never sees an image twice.

    python benchmarks/angle_floor.py MNIST_FOLDER angles [--steps 9000]

The people who wrote MNIST's digits held their pens at different angles, so that the angle by which
`examples/digits_with_angles.py` turned a digit cannot be read off exactly. This network gets a new rotation of one of
all 60,000 training digits at each step, far more than a run on the 10,000 images of that example; its mean error on the
example's test images shows about how low any model can come.
"""

import argparse
import csv
import math
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from torchvision.datasets import MNIST

LARGEST = 45.0  # degrees
BATCH = 64


def rotate(digits: Tensor, share: Tensor) -> Tensor:
    """Turn digits `[b 1 28 28]` by shares `[b]` of the largest angle, as Pillow does: counter-clockwise."""
    angle = share * math.radians(LARGEST)
    rows = [torch.stack([angle.cos(), -angle.sin()]), torch.stack([angle.sin(), angle.cos()])]
    matrix = F.pad(torch.stack(rows).permute(2, 0, 1), (0, 1))  # [b 2 3]
    grid = F.affine_grid(matrix, list(digits.shape), align_corners=False)
    return F.grid_sample(digits, grid, mode="bicubic", align_corners=False).clamp(0, 1)


def block(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mnist", type=Path, help="the folder that torchvision's MNIST reads")
    parser.add_argument("angles", type=Path, help="what examples/digits_with_angles.py wrote")
    parser.add_argument("--steps", type=int, default=9000)
    given = parser.parse_args()
    torch.manual_seed(0)
    digits = MNIST(given.mnist, train=True).data[:, None].float() / 255  # [n 1 28 28]
    with (given.angles / "angles.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["split"] == "test"]
    images = np.stack([np.asarray(Image.open(given.angles / row["image"])) for row in rows])
    tested = torch.from_numpy(images)[:, None].float() / 255
    angles = torch.tensor([float(row["angle"]) for row in rows])
    convolutions = [*block(1, 24), nn.AvgPool2d(2), *block(24, 48), nn.AvgPool2d(2), *block(48, 96)]
    model = nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(96 * 49, 128), nn.ReLU(), nn.Linear(128, 1))
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, given.steps)
    for _ in range(given.steps):
        share = 2 * torch.rand(BATCH) - 1
        chosen = digits[torch.randint(len(digits), (BATCH,))]
        loss = F.l1_loss(model(rotate(chosen, share))[:, 0], share)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    model.eval()
    with torch.inference_mode():
        error = (LARGEST * model(tested)[:, 0] - angles).abs().mean()
    print(f"{given.steps:,} steps of {BATCH} new rotations: mean error {error:.2f}° on {len(rows):,} test images")


if __name__ == "__main__":
    main()
