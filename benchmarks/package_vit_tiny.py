"""Make the packaged ViT-Ti/16 again from timm's checkpoint: weights rounded to fp16, preprocessing and class names.

    python benchmarks/package_vit_tiny.py CHECKPOINT [FOLDER]

CHECKPOINT is `vit_tiny_patch16_224.augreg_in21k_ft_in1k`, which is downloaded, or its folder on this disk. FOLDER is by
default the one inside the package. The model card beside the files, `README.md`, is written by hand.
"""

import sys
from pathlib import Path

import torch

from vitreous.runtime.files import write_json
from vitreous.weights.load import load
from vitreous.weights.save import describe_model, write_safetensors

NAME = "timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k"
PACKAGED = Path(__file__).parents[1] / "src/vitreous/weights/packaged/vit_tiny"


def package(checkpoint: str, folder: Path) -> list[Path]:
    """Write the checkpoint to `folder` as our own files, with every weight rounded to fp16."""
    model = load(checkpoint)
    # The classes are ImageNet-1k's in their order: timm's file says so by its tag alone.
    del model.card.report.assumed["class names"]
    model.card.name, model.card.origin = NAME, "hub"
    rounded = {key: value.to(torch.float16) for key, value in model.state_dict().items()}
    return [
        write_safetensors(folder / "model.safetensors", rounded),
        write_json(folder / "config.json", describe_model(model)),
    ]


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(str(__doc__))
    for path in package(sys.argv[1], Path(sys.argv[2]) if len(sys.argv) == 3 else PACKAGED):
        print(f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB)")
