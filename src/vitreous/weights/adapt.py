"""Adapt a model to another library: what its models have (`PAPER_VIT`), what it cannot hold, what can be changed.

Some differences can be removed without changing the function: fixed positions become a learned table, a missing class
position a row of zeros, a missing bias zeros. A difference that cannot be removed is an error that names it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch

from vitreous.inside.artifacts import has_registers
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.weights.keymap import Allowed, Tensors

PAPER = ViTConfig()
WRITABLE = ("position", "prefix_positions", "patch_bias", "qkv_bias", "head_bias", "norm_eps", "activation")
"""Fields of which other libraries' models have several values."""
SIZES = (
    *("image_size", "patch_size", "channels", "classes", "width", "depth", "heads", "mlp_width"),
    *("representation_size", "partial_patches", "pool_mlp_width", "relative_width"),
    *("rope_temperature", "rope_offset", "rope_reference", "rope_order"),
    *("dropout", "attention_dropout", "stochastic_depth", "position_std"),
)
"""Fields that every library's models have, or that count only beside another field."""
PAPER_VIT: Allowed = {
    each.name: (getattr(PAPER, each.name),) for each in fields(ViTConfig) if each.name not in (*WRITABLE, *SIZES)
}
"""Every other field with the paper's value: libraries other than timm support the paper's ViT alone."""


def library_models(**values: tuple[Any, ...]) -> Callable[..., tuple[Allowed, str]]:
    """State where the models of a library, to which ours are adapted, may differ from the paper's ViT: these fields.

    The result is a `Format`'s `known`: the values that each field may have.
    """
    usual = PAPER_VIT | {name: (getattr(PAPER, name),) for name in WRITABLE}
    return lambda shapes, assume: (usual | values, "")


@dataclass(frozen=True)
class ConvertedCheckpoint:
    """A model in another library's form: tensors under its names, and the content of its config files."""

    tensors: Tensors
    config: ViTConfig  # as `load` reads it back
    sidecars: dict[str, dict[str, Any]] = field(default_factory=dict)  # file name → JSON content


def check_limits(config: ViTConfig, target: str, limits: Allowed, square: bool = False) -> None:
    """Check that a model can be adapted to another library; raise with every field that the library cannot hold.

    `square` says that its images and patches have to be square.
    """
    over = [f"{name}={getattr(config, name)!r}" for name, held in limits.items() if getattr(config, name) not in held]
    if over:
        raise ValueError(f"{target} cannot hold this model: it does not support {', '.join(over)}")
    if square and (config.patch[0] != config.patch[1] or config.size[0] != config.size[1]):
        raise ValueError(f"{target} cannot hold this model: its images and patches are square")


def adapted(model: ViT, prefix_positions: int | None, head_bias: bool = True) -> tuple[Tensors, ViTConfig]:
    """Adapt a model's tensors and config to another library: remove the differences that can be removed.

    `prefix_positions` is how many tokens before the patches have a position in the target: None keeps the model's.
    """
    if has_registers(model):
        raise ValueError("no other library has test-time registers: convert the model without them")
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
