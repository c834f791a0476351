"""Teach the packaged model a folder of images. python examples/finetune_a_folder.py [FOLDER]

FOLDER has a sub-folder for each class. Without one, three classes of scikit-learn's digits are written to digits/.
"""

import sys
from dataclasses import replace
from pathlib import Path

from vitreous import classify, open_dataset
from vitreous.training.loop import train
from vitreous.training.recipes import FINETUNE


def write_digits(folder: Path, each: int = 12) -> Path:
    """`digits/0/…`, `digits/1/…`, `digits/7/…`: a few images each."""
    digits = open_dataset("digits", "train")
    for name in ("0", "1", "7"):
        (folder / name).mkdir(parents=True, exist_ok=True)
        chosen = [i for i, label in enumerate(digits.labels) if digits.class_names[label] == name][:each]
        for i in chosen:
            digits.image(i).resize((32, 32)).save(folder / name / f"{i}.png")
    return folder


data = Path(sys.argv[1]) if len(sys.argv) > 1 else write_digits(Path("digits"))
changes = {"model": "packaged", "data": str(data), "policy": "head", "learning_rate": 0.02, "flip": False, "crop": None}
brief = {"epochs": 4, "batch_size": 8, "warmup": 0, "snapshots": 0, "device": "cpu"}
config = replace(FINETUNE, **changes, **brief)
result = train(config, "runs/folder")
print(f"{result['top1']:.0%} of {result['images']} held-out images right after {result['epochs']} epochs")

image = next(data.rglob("*.png"))
print(image, "is", classify(image, "runs/folder/model", device="cpu").best.class_name)
