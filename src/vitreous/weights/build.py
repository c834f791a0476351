"""Build a ViT from a checkpoint's tensors: each has the shape that its config demands, none is missing or left over."""

from collections.abc import Mapping

import torch
from torch import Tensor

from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.weights.card import LoadReport
from vitreous.weights.infer import count_blocks
from vitreous.weights.keymap import Tensors
from vitreous.weights.safety import CheckpointError

MAX_PATCHES = 65_536


def build_vit(config: ViTConfig, tensors: Tensors, report: LoadReport, replaced: str | None = None) -> ViT:
    """Build the ViT that `config` describes from `tensors`: no tensor may be missing or left over.

    Keys that begin with `replaced` may be absent: they are zero in the model and listed in the report.
    """
    if config.depth != (count := count_blocks(tensors)):  # before that many blocks are built
        raise CheckpointError(
            f"its config says {config.depth:,} blocks, its weights have {count:,}: get both files again"
        )
    if (count := config.layout.patches) > MAX_PATCHES:
        raise CheckpointError(f"its config makes {count:,} patches of an image: {MAX_PATCHES:,} at most")
    with torch.device("meta"):
        model = ViT(config)
    wanted = model.state_dict()
    check_shapes(wanted, tensors)
    if integers := [key for key, value in tensors.items() if not value.is_floating_point()]:
        raise CheckpointError(f"{integers[0]} holds integers: quantised weights are not read without their scales")
    missing = [key for key in wanted if key not in tensors]
    if lacking := [key for key in missing if replaced is None or not key.startswith(replaced)]:
        raise CheckpointError(
            f"{len(lacking)} weight(s) that the model needs are not in the checkpoint: {', '.join(lacking[:4])}"
            f"{' …' if len(lacking) > 4 else ''}"
        )
    own = {key: value.float().clone(memory_format=torch.contiguous_format) for key, value in tensors.items()}
    own |= {key: torch.zeros(wanted[key].shape) for key in missing}  # a fresh head starts at zero
    model.load_state_dict(own, assign=True)
    report.reinitialised += missing
    return model


def check_shapes(wanted: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    """Raise while a model is built from tensors for one that it does not have, and for one of another shape."""
    for key, value in tensors.items():
        if key not in wanted:
            raise CheckpointError(f"the model that its config describes has no {key}: get both files again")
        if value.shape != wanted[key].shape:
            raise CheckpointError(f"{key} should be {tuple(wanted[key].shape)}, got {tuple(value.shape)}")
