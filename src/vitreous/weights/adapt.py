"""Adapt a model to what another library can hold.

Some differences can be removed without changing the function: fixed positions become a learned table, a missing class
position a row of zeros, a missing bias zeros. A difference that cannot be removed is an error that names it.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import torch

from vitreous.models.vit import ViT, ViTConfig
from vitreous.weights.keymap import Tensors

Limits = dict[str, tuple[Any, ...]]
"""Field of `ViTConfig` → the values that a library supports."""
PAPER_VIT: Limits = {  # every library but timm supports the paper's ViT alone
    "class_token": (True,),
    "distillation_token": (False,),
    "distillation_head": (False,),
    "registers": (0,),
    "pool": ("token",),
    "qk_norm": (False,),
    "swiglu": (False,),
    "embedding_norm": (False,),
    "final_norm": (True,),
    "fc_norm": (False,),
    "layer_scale": (0.0,),
}


@dataclass(frozen=True)
class ConvertedCheckpoint:
    """A model in another library's form: tensors under its names, and the content of its config files."""

    tensors: Tensors
    sidecars: dict[str, dict[str, Any]] = field(default_factory=dict)
    """File name → JSON content."""


def check_limits(config: ViTConfig, target: str, limits: Limits) -> None:
    """Raise an error that names every field that the target does not support."""
    over = [f"{name}={getattr(config, name)!r}" for name, held in limits.items() if getattr(config, name) not in held]
    if over:
        raise ValueError(f"{target} cannot hold this model: it does not support {', '.join(over)}")


def adapted(model: ViT, prefix_positions: int | None, head_bias: bool = True) -> tuple[Tensors, ViTConfig]:
    """Return the model's tensors and config without the differences that can be removed.

    `prefix_positions` is how many tokens before the patches have a position in the target: None keeps the model's.
    """
    config = model.config
    tensors = {key: value.detach().cpu().float() for key, value in model.state_dict().items()}
    if model.pos_embed is not None:
        tensors["pos_embed"] = model.pos_embed.detach().cpu().float()
    elif prefix_positions is not None:
        tensors["pos_embed"] = torch.zeros(1, config.positions, config.width)
    if config.position != "none" or prefix_positions is not None:
        config = replace(config, position="learned")
    if prefix_positions is not None and not config.prefix_positions:
        zeros = torch.zeros(1, prefix_positions, config.width)
        tensors["pos_embed"] = torch.cat([zeros, tensors["pos_embed"]], dim=1)
        config = replace(config, prefix_positions=True)
    if head_bias and config.classes and not config.head_bias:
        tensors["head.bias"] = torch.zeros(config.classes)
        config = replace(config, head_bias=True)
    return tensors, config
