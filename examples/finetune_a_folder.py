"""Fine-tune a packaged model on a folder of images. python examples/finetune_a_folder.py [FOLDER]

FOLDER has a sub-folder for each class. Without one, three classes of scikit-learn's digits are written to digits/.
"""

import sys
from pathlib import Path

import vitreous


def write_digits(folder: Path, each: int = 12) -> Path:
    """Write a few images to `digits/0/`, `digits/1/` and `digits/7/`."""
    digits = vitreous.open_dataset("digits", "train")
    for name in ("0", "1", "7"):
        (folder / name).mkdir(parents=True, exist_ok=True)
        chosen = [i for i, label in enumerate(digits.labels) if digits.class_names[label] == name][:each]
        for i in chosen:
            digits.image(i).resize((32, 32)).save(folder / name / f"{i}.png")
    return folder


data = Path(sys.argv[1]) if len(sys.argv) > 1 else write_digits(Path("digits"))
run = vitreous.finetune(
    data,
    "packaged:cifar10",
    "head",
    output="runs/folder",
    epochs=4,
    batch_size=8,
    learning_rate=0.02,
    warmup=0,
    flip=False,
    crop=None,
    snapshots=0,
    device="cpu",
    progress=False,
)
print(f"accuracy {run.accuracy:.0%} on {run.result['images']} held-out images; the run's page is {run.page}")

image = next(data.rglob("*.png"))
print(image, "is", vitreous.classify(image, run.model, device="cpu").best.class_name)
