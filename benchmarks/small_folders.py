"""How well a small folder is learned: `finetune` with its defaults on a few classes of Flowers-102.

For each seed, classes are drawn and written to a folder: 3 classes of 20 images (train and validation splits), or 10
classes of 10 (train split). `vitreous finetune --data FOLDER` holds out some of them by itself; the trained model is
then asked for every official test image of its classes.

    python benchmarks/small_folders.py --model ../shared/weights/vit_tiny_patch16_224.augreg_in21k_ft_in1k
"""

import argparse
import random
import tempfile
import time
from pathlib import Path
from statistics import mean

import torch
from torchmetrics.functional.classification import multiclass_calibration_error

import vitreous
from vitreous.api.train import TrainingRun
from vitreous.data.image_dataset import ImageDataset, join_datasets

SETTINGS = ((3, "train+validation"), (10, "train"))


def write_folder(data: ImageDataset, names: list[str], folder: Path) -> None:
    """Write the images of some classes as PNG, which loses nothing, in a sub-folder each."""
    for i, label in enumerate(data.labels):
        if (name := data.class_names[label]) in names:
            (folder / name).mkdir(parents=True, exist_ok=True)
            vitreous.read_image(data.image(i)).save(folder / name / f"{i:05d}.png", compress_level=1)


def measure(run: TrainingRun, data: ImageDataset, names: list[str]) -> dict[str, float]:
    """Ask the run's model for every image of its classes."""
    order = list(run.model.card.class_names)
    chosen = [i for i, label in enumerate(data.labels) if data.class_names[label] in names]
    labels = torch.tensor([order.index(data.class_names[data.labels[i]]) for i in chosen])
    answers = vitreous.classify([data.image(i) for i in chosen], run.model, top=len(order), device="cpu")
    probabilities = torch.tensor(
        [[{p.class_name: p.probability for p in answer.predictions}[name] for name in order] for answer in answers]
    )
    return {
        "images": len(chosen),
        "accuracy": (probabilities.argmax(dim=1) == labels).double().mean().item(),
        "probability": probabilities[torch.arange(len(labels)), labels].double().mean().item(),
        "calibration": multiclass_calibration_error(probabilities, labels, len(order), n_bins=15).item(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data/flowers102"))
    parser.add_argument("--model", default=None, help="by default the packaged model")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--classes", type=int, nargs="+", default=[classes for classes, _ in SETTINGS])
    options = parser.parse_args()
    test = vitreous.open_dataset(options.data, "test")
    print("| classes × images | seed | learned from | test images | accuracy | probability of the right class | "
          "calibration error | seconds | CPU seconds |")  # fmt: skip
    print("|---" * 9 + "|")
    for classes, split in SETTINGS:
        if classes not in options.classes:
            continue
        parts = join_datasets([vitreous.open_dataset(options.data, part) for part in split.split("+")])
        found = []
        for seed in range(options.seeds):
            names = random.Random(seed).sample(sorted(parts.class_names), classes)
            with tempfile.TemporaryDirectory() as folder:
                write_folder(parts, names, Path(folder, "flowers"))
                before, busy = time.perf_counter(), time.process_time()
                run = vitreous.finetune(
                    Path(folder, "flowers"), options.model, output=Path(folder, "run"), device="cpu", progress=False
                )
                seconds, busy = time.perf_counter() - before, time.process_time() - busy
                learned = run.model.card.training["training_images"]
                each = measure(run, test, names) | {"seconds": seconds, "cpu": busy, "learned": learned}
            found.append(each)
            print_row(f"{classes} × {len(parts) // len(parts.class_names)}", str(seed), each)
        print_row(f"{classes} × {len(parts) // len(parts.class_names)}", "mean",
                  {key: mean(each[key] for each in found) for key in found[0]})  # fmt: skip


def print_row(setting: str, seed: str, each: dict[str, float]) -> None:
    print(
        f"| {setting} | {seed} | {each['learned']:.0f} | {each['images']:.0f} | {each['accuracy']:.1%} | "
        f"{each['probability']:.3f} | {each['calibration']:.3f} | {each['seconds']:.0f} | {each['cpu']:.0f} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
