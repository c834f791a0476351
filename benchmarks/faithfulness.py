"""Which heat map finds what the model uses: deletion and insertion areas of every map, and of two blind ones.

    python benchmarks/faithfulness.py --model vit_tiny_patch16_224.augreg_in21k_ft_in1k --data imagenet/val

Deletion takes patches away in the order of the map (a small area is good), insertion puts them in (a large one is
good). Differences are paired by image; ± is the standard error over images.
"""

import argparse

import torch

from vitreous import load, open_dataset, read_image
from vitreous.inside import faithfulness, hiding
from vitreous.runtime.device import pick_device
from vitreous.views import maps
from vitreous.views.inspection import Inspection


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--baseline", default="blur", choices=hiding.BASELINES)
    options = parser.parse_args()
    device = pick_device("auto")
    model = load(options.model).to(device)
    images = open_dataset(options.data).spread(options.images)
    areas: dict[str, list[tuple[float, float]]] = {}
    alike: dict[str, list[float]] = {}
    for i in range(len(images)):
        inspection = Inspection(model, read_image(images.image(i)))
        found = maps.comparable(inspection)
        deletion, insertion = maps.curves(found, inspection, options.baseline)
        for name, d, s in zip(found, faithfulness.area(deletion), faithfulness.area(insertion), strict=True):
            areas.setdefault(name, []).append((d.item(), s.item()))
        for name, correlation in maps.similarity_to_random_weights(found, inspection).items():
            alike.setdefault(name, []).append(correlation)
    where = torch.cuda.get_device_name() if device.type == "cuda" else device.type
    print(f"{len(images)} images, baseline {options.baseline}, {where}, torch {torch.__version__}\n")
    print("| map | deletion ↓ | insertion ↑ | insertion − deletion | over random | over centre | with fresh weights |")
    print("|---|---|---|---|---|---|---|")
    scores = {name: torch.tensor(each) for name, each in areas.items()}  # [images 2]
    gains = {name: each[:, 1] - each[:, 0] for name, each in scores.items()}
    for name in sorted(gains, key=lambda name: -gains[name].mean()):
        cells = [f"{scores[name][:, k].mean():.3f}" for k in (0, 1)]
        cells.append(f"{gains[name].mean():+.3f} ± {error(gains[name]):.3f}")
        for other_name in ("random", "centre"):
            difference = gains[name] - gains[other_name]
            cells.append("" if name == other_name else f"{difference.mean():+.3f} ± {error(difference):.3f}")
        cells.append(f"{sum(alike[name]) / len(alike[name]):+.2f}" if name in alike else "")
        print(f"| {name} | {' | '.join(cells)} |")


def error(values: torch.Tensor) -> float:
    """Standard error of the mean."""
    return (values.std() / len(values) ** 0.5).item()


if __name__ == "__main__":
    main()
