"""Several labels: 2×2 mosaics of small images. python examples/mosaics_with_labels.py [DATASET] [TRAIN] [TEST]

Each mosaic shows four images of a dataset of classes, and its labels are the classes that occur. DATASET is a name
(cifar10, mnist) or a folder; without one, scikit-learn's digits. TRAIN and TEST are numbers of mosaics. They are
written to mosaics/ with a table, labels.csv, that `vitreous finetune --data mosaics` reads.
"""

import csv
import sys
from pathlib import Path

import numpy as np
from PIL import Image

import vitreous

name = sys.argv[1] if len(sys.argv) > 1 else "digits"
counts = {"train": int(sys.argv[2]) if len(sys.argv) > 2 else 40, "test": int(sys.argv[3]) if len(sys.argv) > 3 else 20}
folder = Path("mosaics")
random = np.random.default_rng(0)
rows = []
for split, count in counts.items():
    (folder / split).mkdir(parents=True, exist_ok=True)
    data = vitreous.open_dataset(name, split)
    for number in range(count):
        chosen = random.choice(len(data), 4, replace=False).tolist()
        tiles = [vitreous.read_image(data.image(i)).convert("RGB") for i in chosen]
        width, height = tiles[0].size
        mosaic = Image.new("RGB", (2 * width, 2 * height))
        for position, tile in enumerate(tiles):
            mosaic.paste(tile, (position % 2 * width, position // 2 * height))
        mosaic.save(folder / split / f"{number:05d}.png", compress_level=1)
        labels = sorted({data.class_names[data.labels[i]] for i in chosen})
        rows.append((f"{split}/{number:05d}.png", ";".join(labels), split))
with (folder / "labels.csv").open("w", newline="", encoding="utf-8") as file:
    csv.writer(file).writerows([("image", "labels", "split"), *rows])
print(f"{len(rows):,} mosaics in {folder}; next: vitreous finetune --data {folder}")
