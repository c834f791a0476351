"""What tests of the benchmark time: a tiny ViT on a CPU, two images at once."""

import torch

from vitreous.benchmarking.contenders import Setting
from vitreous.models.vit_config import ViTConfig

TINY = ViTConfig(image_size=32, patch_size=8, width=48, depth=2, heads=4, classes=5)
CPU = torch.device("cpu")


def setting(**changes):
    return Setting(**{"config": TINY, "batch": 2, "device": CPU} | changes)
