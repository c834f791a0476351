"""A number for each image: rotated digits. python examples/digits_with_angles.py [DATASET] [TRAIN] [TEST]

Each digit is turned by an angle of up to 45° to either side, and that angle is to be learned. DATASET is mnist, or
without one scikit-learn's digits. The images are written to angles/ with a table, angles.csv, whose column `angle`
makes `vitreous train --data angles/angles.csv` learn a number.
"""

import csv
import sys
from pathlib import Path

import numpy as np
from PIL import Image

import vitreous

name = sys.argv[1] if len(sys.argv) > 1 else "digits"
counts = {"train": int(sys.argv[2]) if len(sys.argv) > 2 else 80, "test": int(sys.argv[3]) if len(sys.argv) > 3 else 20}
folder = Path("angles")
random = np.random.default_rng(0)
rows = []
for split, count in counts.items():
    (folder / split).mkdir(parents=True, exist_ok=True)
    data = vitreous.open_dataset(name, split)
    for number, i in enumerate(random.choice(len(data), min(count, len(data)), replace=False).tolist()):
        angle = round(float(random.uniform(-45, 45)), 2)
        digit = vitreous.read_image(data.image(i)).convert("L")
        digit.rotate(angle, Image.Resampling.BICUBIC).save(folder / split / f"{number:05d}.png", compress_level=1)
        rows.append((f"{split}/{number:05d}.png", angle, split))
with (folder / "angles.csv").open("w", newline="", encoding="utf-8") as file:
    csv.writer(file).writerows([("image", "angle", "split"), *rows])
print(f"{len(rows):,} digits in {folder}; next: vitreous train --data {folder}/angles.csv")
