"""Infer a checkpoint's `ViTConfig` from shapes, config file and reported assumptions; build the model it describes."""

import re
from collections.abc import Mapping
from dataclasses import fields
from math import isqrt
from typing import Any

import torch
from torch import Tensor

from vitreous.models.variants import VARIANTS
from vitreous.models.vit import ViT, ViTConfig
from vitreous.weights.card import LoadReport
from vitreous.weights.keymap import Format, Tensors
from vitreous.weights.safety import CheckpointError

MAX_PATCHES = 65_536


def from_shapes(tensors: Tensors) -> dict[str, Any]:
    """Return every config field that follows from the keys and shapes."""
    for key in ("patch_embed.proj.weight", "blocks.0.mlp.fc1.weight", "blocks.0.mlp.fc2.weight"):
        if key not in tensors:
            raise CheckpointError(f"the checkpoint has no {key}: it is incomplete")
    patches = tensors["patch_embed.proj.weight"]
    if patches.dim() != 4:
        raise CheckpointError(
            f"patch_embed.proj.weight should be [width channels height width], got {tuple(patches.shape)}"
        )
    width, channels, *patch = patches.shape
    fc1, fc2 = tensors["blocks.0.mlp.fc1.weight"], tensors["blocks.0.mlp.fc2.weight"]
    head = tensors.get("head.weight")
    hidden = tensors.get("head.hidden.weight")
    known: dict[str, Any] = {
        "patch_size": tuple(patch),
        "channels": channels,
        "width": width,
        "depth": count_blocks(tensors),
        "mlp_width": fc2.shape[1],
        "swiglu": fc1.shape[0] == 2 * fc2.shape[1],
        "class_token": "cls_token" in tensors,
        "distillation_token": "dist_token" in tensors,
        "distillation_head": "head_dist.weight" in tensors,
        "registers": tensors["reg_token"].shape[1] if "reg_token" in tensors else 0,
        "patch_bias": "patch_embed.proj.bias" in tensors,
        "qkv_bias": "blocks.0.attn.qkv.bias" in tensors,
        "qk_norm": "blocks.0.attn.q_norm.weight" in tensors,
        "embedding_norm": "norm_pre.weight" in tensors,
        "final_norm": "norm.weight" in tensors,
        "fc_norm": "fc_norm.weight" in tensors,
        "layer_scale": 1e-5 if "blocks.0.ls1.gamma" in tensors else 0.0,
        "classes": 0 if head is None else head.shape[0],
        "head_bias": "head.bias" in tensors or head is None,
        "representation_size": 0 if hidden is None else hidden.shape[0],
    }
    first = hidden if hidden is not None else head
    if first is not None and first.shape[1] == 2 * width:
        known["pool"] = "token+mean"
    elif known["fc_norm"] or not known["class_token"]:
        known["pool"] = "mean"
    return known


def count_blocks(tensors: Mapping[str, Any]) -> int:
    """Count the blocks in the keys; a gap in their numbers is an error."""
    numbers = {int(match[1]) for key in tensors if (match := re.match(r"blocks\.(\d+)\.", key))}
    if numbers != set(range(len(numbers))):
        absent = sorted(set(range(max(numbers) + 1)) - numbers)
        raise CheckpointError(f"block {absent[0]} is missing: the checkpoint is incomplete")
    return len(numbers)


def trained_grid(tensors: Tensors, known: Mapping[str, Any]) -> tuple[tuple[int, int], bool]:
    """Return rows and columns of the position embeddings, and whether prefix tokens have positions too."""
    prefix = known["class_token"] + known["distillation_token"] + known["registers"]
    size, (patch_height, patch_width) = known.get("image_size"), known["patch_size"]
    stated = None
    if size is not None:
        height, width = (size, size) if isinstance(size, int) else size
        stated = (height // patch_height, width // patch_width)
    if "pos_embed" not in tensors:
        if known.get("position") != "none":
            raise CheckpointError(
                "the checkpoint has no position embeddings, and models with rotary positions are not supported: if "
                "the model has no positions, pass position='none' and image_size"
            )
        if stated is None:
            raise CheckpointError("a model without positions fits any size: pass image_size=(height, width)")
        return stated, True
    count = tensors["pos_embed"].shape[1]
    for slots in (prefix, 0):
        if stated is not None and stated[0] * stated[1] == count - slots:
            return stated, slots == prefix
    for slots in (prefix, 0):
        if (side := isqrt(max(count - slots, 0))) ** 2 == count - slots > 0:
            return (side, side), slots == prefix
    raise CheckpointError(
        f"{count} positions less {prefix} prefix token(s) make no square grid: pass trained_size=(height, width), the "
        "size of the images it was trained on"
    )


def infer_config(
    tensors: Tensors, format: Format, stated: Mapping[str, Any], hint: str, given: Mapping[str, Any]
) -> tuple[ViTConfig, dict[str, str]]:
    """Return the config of the checkpoint as it was trained, and the assumptions it needed.

    The user's `given` fields come first, then the shapes, then the fields `stated` in the config file, then the
    well-known variant of the same shape, then the defaults of the format's library. `hint` is a name that may be a
    variant's.
    """
    shapes = from_shapes(tensors)
    variant = find_variant(shapes, hint)
    assumed: dict[str, str] = {}
    known = {**stated, **shapes, **given}
    if "pos_embed" in tensors:
        known["position"] = "learned"
    if "heads" in given and stated.get("heads", given["heads"]) != given["heads"]:
        assumed["heads"] = f"{given['heads']} (as given; the files say {stated['heads']})"
    if shapes["fc_norm"] and "pool" not in stated and "pool" not in given:
        assumed["pool"] = "mean (it has a norm after pooling)"
    if not (shapes["final_norm"] or shapes["fc_norm"] or "final_norm" in stated or "final_norm" in given):
        raise CheckpointError(
            "there is no norm after the last block: the checkpoint is incomplete; if the model has none, pass "
            "final_norm=False"
        )

    grid, prefix_positions = trained_grid(tensors, known)
    known["image_size"] = (grid[0] * shapes["patch_size"][0], grid[1] * shapes["patch_size"][1])
    known["prefix_positions"] = prefix_positions
    if "image_size" not in stated and "image_size" not in given:
        size = "×".join(str(side) for side in known["image_size"])
        assumed["image size"] = f"{size} (its positions make a square of {grid[0]}×{grid[1]})"
        if not prefix_positions:
            square = f"{grid[0]}×{grid[1]}"
            assumed["prefix_positions"] = f"False (the positions make a square of {square} only without prefix tokens)"
    if "heads" not in known:
        if variant is None:
            raise CheckpointError(
                f"no file states the number of heads of this model of width {shapes['width']} and depth "
                f"{shapes['depth']}: pass heads=N, --model-heads N ({shapes['width'] // 64 or 1} would give the usual "
                "64 channels a head)"
            )
        known["heads"] = variant[1].heads
        assumed["heads"] = f"{variant[1].heads} (as {variant[0]} has)"
    for name, value in ({"pool": "token"} | format.defaults(tensors, variant[1] if variant else None)).items():
        if name not in known:
            known[name] = value
            assumed[name] = f"{value} ({format.name}'s default)"
    names = {field.name for field in fields(ViTConfig)}
    return ViTConfig(**{name: value for name, value in known.items() if name in names}), assumed


def find_variant(shapes: Mapping[str, Any], hint: str) -> tuple[str, ViTConfig] | None:
    """Return the well-known variant of this name, else one of the same width and depth."""
    plain = re.split(r"[./]", hint.removeprefix("timm/"))[0]
    candidates = [plain] if plain in VARIANTS else []
    candidates += [name for name in VARIANTS if VARIANTS[name].embedding_norm == shapes["embedding_norm"]]
    for name in candidates:
        if all(getattr(VARIANTS[name], field) == shapes[field] for field in ("width", "depth", "mlp_width")):
            return name, VARIANTS[name]
    return None


def build_vit(config: ViTConfig, tensors: Tensors, report: LoadReport, replaced: str | None = None) -> ViT:
    """Build the model that `config` describes and fill it with `tensors`.

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
    """Raise for a tensor that the model does not have, and for one of another shape."""
    for key, value in tensors.items():
        if key not in wanted:
            raise CheckpointError(f"the model that its config describes has no {key}: get both files again")
        if value.shape != wanted[key].shape:
            raise CheckpointError(f"{key} should be {tuple(wanted[key].shape)}, got {tuple(value.shape)}")


def data_types(tensors: Mapping[str, Tensor]) -> str:
    """Name the number formats of tensors, such as `float16, float32`."""
    return ", ".join(sorted({str(value.dtype).removeprefix("torch.") for value in tensors.values()}))
