"""A model on its way to another library: harmless differences smoothed out, and what has no place there refused.

Some differences vanish without changing the function: fixed positions become a learned table, a missing class
position becomes a row of zeros, a missing bias becomes zeros. What cannot vanish is refused by name.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch

from vitreous.models.vit import ViT, ViTConfig
from vitreous.weights.card import Card
from vitreous.weights.keymap import Tensors
from vitreous.weights.save import usual_preprocess

PLAIN: dict[str, tuple[Any, ...]] = {  # what every target but timm wants: the paper's ViT
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
class Written:
    """What goes to disk: tensors under the target's names, and the files beside them."""

    tensors: Tensors
    beside: dict[str, dict[str, Any]]


def refuse(config: ViTConfig, target: str, limits: dict[str, tuple[Any, ...]]) -> None:
    """Raise where the target has no place for what the model has, naming all of it."""
    over = [f"{name}={getattr(config, name)!r}" for name, held in limits.items() if getattr(config, name) not in held]
    if over:
        raise ValueError(f"{target} cannot hold this model: it has no place for {', '.join(over)}")


def smoothed(model: ViT, class_slots: int | None, head_bias: bool = True) -> tuple[Tensors, ViTConfig]:
    """The model's tensors with harmless differences smoothed out.

    `class_slots` is how many tokens in front of the patches have a position in the target: None keeps the model's.
    """
    config = model.config
    tensors = {key: value.detach().cpu().float() for key, value in model.state_dict().items()}
    if model.pos_embed is not None:
        tensors["pos_embed"] = model.pos_embed.detach().cpu().float()
    elif class_slots is not None:
        tensors["pos_embed"] = torch.zeros(1, config.positions, config.width)
    if config.position != "none" or class_slots is not None:
        config = replace(config, position="learned")
    if class_slots is not None and not config.prefix_positions:
        zeros = torch.zeros(1, class_slots, config.width)
        tensors["pos_embed"] = torch.cat([zeros, tensors["pos_embed"]], dim=1)
        config = replace(config, prefix_positions=True)
    if head_bias and config.classes and not config.head_bias:
        tensors["head.bias"] = torch.zeros(config.classes)
        config = replace(config, head_bias=True)
    return tensors, config


def card_of(model: ViT) -> Card:
    """The model's own, or for one made in memory the usual."""
    return model.card or Card(name="model", preprocess=usual_preprocess(model.config))
