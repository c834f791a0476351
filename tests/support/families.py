"""One tiny model of each family: what stands before the patches, how the head reads, what shape the grid has."""

import torch

from conftest import noise
from vitreous.models.dense_head import at_pixel
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig

FAMILIES = {
    "class token": {},
    "distilled": {"distillation_token": True, "distillation_head": True},
    "registers": {"registers": 4, "prefix_positions": False, "layer_scale": 0.1},
    "no class token": {"class_token": False, "pool": "mean"},
    "registers, no class token": {"class_token": False, "pool": "mean", "registers": 2},
    "token and mean": {"pool": "token+mean", "swiglu": True},
    "sine": {"position": "sine-2d", "qk_norm": True},
    "rotary": {"rope": "axial", "position": "none", "width": 32, "rope_reference": 4, "rope_order": "xy"},
    "rotary, mixed": {"rope": "mixed", "width": 32, "prefix_positions": False, "rope_temperature": 10.0},
    "rotary, dinov3": {"rope": "dinov3", "position": "none", "width": 32, "registers": 2, "rope_temperature": 100.0},
    "norms inside": {"swiglu": True, "attention_norm": True, "mlp_norm": True, "rope": "axial", "width": 32},
    "attention pool": {"class_token": False, "pool": "attention", "registers": 1, "partial_patches": True},
    "attention pool of all tokens": {"pool": "attention", "pool_prefix": True, "pool_heads": 3, "pool_mlp_width": 30},
    "class attention pool": {
        "class_token": False,
        "pool": "class-attention",
        "pool_layers": 2,
        "pool_mlp_width": 30,
        "layer_scale": 0.5,
        "fc_norm": True,
        "final_norm": False,
        "talking_heads": True,
    },
    "post-norm": {"residual_norm": True, "final_norm": False},
    "rms norm": {"norm": "rms", "branch_bias": False, "qkv_bias": False, "patch_norm": True, "swiglu": True},
    "relative table": {
        "relative_position": "table",
        "position": "none",
        "qkv_bias": False,
        "qv_bias": True,
        "layer_scale": 0.1,
        "pool": "mean",
        "fc_norm": True,
        "final_norm": False,
    },
    "relative network": {"relative_position": "mlp", "relative_width": 8, "position": "none"},
    "shared relative network": {
        "relative_position": "shared-mlp",
        "relative_width": 8,
        "position": "none",
        "class_token": False,
        "pool": "mean",
        "post_norm": True,
    },
    "shared relative table": {"relative_position": "shared-table"},
    "CLIP": {"embedding_norm": True, "patch_bias": False, "head_bias": False, "activation": "quick_gelu"},
    "hybrid": {"stem": "r", "patch_size": 8, "image_size": (24, 32)},
    "convolutional stem": {"stem": "mobileclip", "patch_size": 16, "image_size": (48, 64)},
    "square": {"image_size": 16, "fc_norm": True},
    "head norm": {"head_norm": True, "representation_size": 10},
    "a pixel, linear": {"dense": "linear", "dense_blocks": (0, 2), "registers": 1},
    "a pixel, decoder": {"dense": "decoder", "dense_blocks": (1, 2), "class_token": False, "pool": "mean"},
    "a pixel, rotary": {"dense": "linear", "dense_blocks": (1, 2), "rope": "axial", "position": "none", "width": 32},
}
"""Fields of each family; of one with a dense head, a pixel's class is looked into (`models/dense_head.py`)."""


def family(name, *, whole=False, **changes):
    """A 3×4 grid of 4×6-pixel patches unless the family says otherwise; noise in every weight.

    `whole` gives the model of a dense family that returns the logits of all pixels.
    """
    small = {"image_size": (12, 24), "patch_size": (4, 6), "width": 24, "depth": 3, "heads": 4, "classes": 5}
    if name == "square":
        small["patch_size"] = 4
    model = noise(ViT(ViTConfig(**small | FAMILIES[name] | changes)))
    return model if whole or model.config.dense == "none" else at_pixel(model, 5, 14)


def images(model, count=2):
    config = model.config
    return torch.randn(count, config.channels, *config.size, dtype=next(model.parameters()).dtype)
