"""A config and tensors under our names to a model: every shape checked before memory is taken."""

from collections.abc import Mapping

import torch
from torch import Tensor

from vitreous.models.vit import ViT, ViTConfig
from vitreous.weights.card import LoadReport
from vitreous.weights.infer import count_blocks
from vitreous.weights.keymap import Tensors
from vitreous.weights.read import CheckpointError

MOST_PATCHES = 65_536


def fill(config: ViTConfig, tensors: Tensors, report: LoadReport, replaced: str | None = None) -> ViT:
    """Build the model and put the tensors in; every shape is checked before memory is taken.

    Keys under `replaced` may be absent: they keep their fresh values and are reported.
    """
    if config.depth != (blocks := count_blocks(tensors)):  # before as many are built
        raise CheckpointError(
            f"its config says {config.depth:,} blocks, its weights have {blocks:,}: get both files again"
        )
    if (count := config.layout.patches) > MOST_PATCHES:
        raise CheckpointError(f"its config makes {count:,} patches of an image: {MOST_PATCHES:,} at most")
    with torch.device("meta"):
        model = ViT(config)
    wanted = model.state_dict()
    check_shapes(wanted, tensors)
    if whole := [key for key, value in tensors.items() if not value.is_floating_point()]:
        raise CheckpointError(f"{whole[0]} holds whole numbers: quantised weights are not read without their scales")
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
    """Refuse a tensor that the model has no place for, or one of another shape."""
    for key, value in tensors.items():
        if key not in wanted:
            raise CheckpointError(f"the model that its config describes has no {key}: get both files again")
        if value.shape != wanted[key].shape:
            raise CheckpointError(f"{key} should be {tuple(wanted[key].shape)}, got {tuple(value.shape)}")


def data_types(tensors: Mapping[str, Tensor]) -> str:
    """The number formats of tensors, in words."""
    return ", ".join(sorted({str(value.dtype).removeprefix("torch.") for value in tensors.values()}))
