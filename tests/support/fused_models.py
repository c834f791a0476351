"""Models that the fused and the fp8 forward pass take, with images, and how far their answers are apart."""

import torch

from conftest import noise
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig

SMALL = {"image_size": 16, "patch_size": 4, "width": 48, "depth": 3, "heads": 3, "classes": 7}
FAMILIES = {
    "plain": {},
    "registers, layer scale": {"registers": 2, "layer_scale": 0.1},
    "query and key norms": {"qk_norm": True},
    "distilled": {"distillation_token": True, "distillation_head": True},
}


def made(**changes):
    torch.manual_seed(1)
    model = noise(ViT(ViTConfig(**{**SMALL, **changes}))).eval()
    return model, torch.randn(4, 3, 16, 16)


def distance(ours, theirs):
    return ((ours.float() - theirs).abs().max() / theirs.abs().max()).item()
