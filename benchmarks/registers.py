"""Test-time registers: accuracy, attention and maps with and without them; `results/registers.md` quotes the output.

    python benchmarks/registers.py --data imagenet-val-500 --masks pets-masks-500 --registers 0 1 4

`--maps` images give faithfulness (the mean colour, 14 steps), `--masked` images segmentation. One thread.
"""

import argparse
from pathlib import Path

import numpy as np
import torch

from vitreous.comparison.map_scores import Scorer
from vitreous.comparison.maps import find_masks, read_mask
from vitreous.comparison.statistics import seed_interval
from vitreous.data.datasets import open_dataset
from vitreous.data.images import read_image
from vitreous.inside.capture import capture
from vitreous.inside.faithfulness import area, curves
from vitreous.inside.methods import METHODS
from vitreous.models.vit import ViT
from vitreous.predict.class_matching import match_classes
from vitreous.weights.load import load

MAPS = ("attention", "rollout")


def paired(values: np.ndarray, base: np.ndarray) -> str:
    """A mean, and its paired difference to the model without registers."""
    mean, half = seed_interval(values - base)
    return f"{values.mean():.3f}" + ("" if values is base else f" ({mean:+.3f} ± {half or 0:.3f})")


@torch.no_grad()
def answers(model: ViT, data: Path) -> dict[str, np.ndarray]:
    """Correct answers, probabilities and attention of the last block, image by image."""
    found, rows = open_dataset(data), []
    classes = match_classes(found.class_names, model.card.class_names, model.config.classes)
    for number in range(len(found)):
        x = model.card.preprocess(read_image(found.image(number)))[None]
        with capture(model, ["attention", "output"], queries=[0]) as internals:
            logits = model(x)[0].log_softmax(dim=-1)
        prefix, label = model.layout.prefix, classes[found.labels[number]]
        seen = internals[f"blocks.{model.config.depth - 1}.attention"][0, :, 0].mean(dim=0)
        norms = internals.stack("output")[:, 0, prefix:].norm(dim=-1)
        highest = (norms.amax(dim=1) / norms.median(dim=1).values).max()
        corners = seen[prefix:].view(*model.layout.grid)[[0, 0, -1, -1], [0, -1, 0, -1]].sum()
        rows.append([logits.argmax() == label, -logits[label], corners, seen[1:prefix].sum(), highest])
        rows[-1].append(int(logits.argmax()))
    columns = np.array(rows, dtype=float).T
    return dict(zip(("top1", "loss", "corners", "registers", "highest norm", "answer"), columns, strict=True))


def faithfulness(model: ViT, data: Path, count: int) -> dict[str, np.ndarray]:
    """Insertion less deletion of each map, the class being the one that this model predicts."""
    found, rows = open_dataset(data).spread(count), []
    for number in range(len(found)):
        x = model.card.preprocess(read_image(found.image(number)))[None]
        maps = torch.stack([METHODS[name](model, x) for name in MAPS])
        deletion, insertion = curves(model, x, maps, steps=14, baseline="mean")
        rows.append((area(insertion) - area(deletion)).tolist())
    return {f"{name}, faithfulness": column for name, column in zip(MAPS, np.array(rows).T, strict=True)}


def segmentation(model: ViT, folder: Path, count: int) -> dict[str, np.ndarray]:
    """Average precision and mean intersection over union of each map, image by image; filled and as it is."""
    rows, scorer = [], Scorer(model, {})
    for image, mask in find_masks(folder, count).values():
        x = model.card.preprocess(read_image(image))[None]
        maps = torch.stack([METHODS[name](model, x) for name in MAPS])
        scores = scorer.segmentation(x, maps, read_mask(mask, model.card.preprocess))
        row = []
        for end in ("", "_filled"):
            inside, union = (np.array(scores[name + end]).reshape(-1, 2) for name in ("intersections", "unions"))
            row += [*scores["precision" + end], *(inside / np.maximum(union, 1)).mean(axis=1)]
        rows.append(row)
    names = [f"{name}, {what}{end}" for end in ("", ", filled") for what in ("mAP", "mIoU") for name in MAPS]
    return dict(zip(names, np.array(rows).T, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--masks", type=Path)
    parser.add_argument("--model")
    parser.add_argument("--registers", type=int, nargs="+", default=[0, 1, 4])
    parser.add_argument("--maps", type=int, default=100)
    parser.add_argument("--masked", type=int, default=100)
    given = parser.parse_args()
    torch.set_num_threads(1)
    base: dict[str, np.ndarray] = {}
    for count in given.registers:
        model = load(given.model, test_time_registers=count)
        print(f"\n{count} registers: {model.card.report.registers or 'the model as it is'}", flush=True)
        measured: dict[str, np.ndarray] = {}
        if given.data is not None:
            measured |= answers(model, given.data)
            measured |= faithfulness(model, given.data, given.maps) if given.maps else {}
        if given.masks is not None:
            measured |= segmentation(model, given.masks, given.masked)
        base = base or measured
        for name, values in measured.items():
            if name == "answer":
                print(f"  {'same answers':30} {(values == base[name]).mean():.3f}")
            else:
                print(f"  {name:30} {paired(values, base[name])}", flush=True)


if __name__ == "__main__":
    main()
