"""Resolve a checkpoint's `ViTConfig` from its tensors, its config file, known models and the user.

Tensors state what their shapes show. A config file, an architecture's name or the known models of a library state which
values each field may have (`Allowed`). A field on which two of them disagree is an error that names both, and so is a
field for which several values are left; a single one that no file states is assumed and reported.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch

from vitreous.models.stems import STEMS, STRIDES
from vitreous.models.vit_config import ViTConfig
from vitreous.weights.assume import as_flag
from vitreous.weights.keymap import Allowed, Format, Tensors
from vitreous.weights.positions import RELATIVE, trained_grid
from vitreous.weights.safety import CheckpointError
from vitreous.weights.timm_architectures import ROTATION, STRUCTURE, UNSEEN, known_depths, known_heads, normalise

STEM_KEYS = (
    *("patch_embed.backbone.conv.weight", "patch_embed.backbone.stem.conv.weight"),
    "patch_embed.backbone.0.weight",  # MobileCLIP's
)
STAGE = r"patch_embed\.backbone\.stages\.(\d+)\.blocks\.(\d+)\."


def from_shapes(tensors: Tensors) -> dict[str, Any]:
    """Infer every config field that follows from a checkpoint's keys and shapes."""
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
    head, hidden = tensors.get("head.weight"), tensors.get("head.hidden.weight")
    for key in ("blocks.0.mlp.fc1.weight", "blocks.0.mlp.fc2.weight", "head.weight", "head.hidden.weight"):
        if key in tensors and tensors[key].dim() != 2:
            raise CheckpointError(f"{key} should be [out in], got {tuple(tensors[key].shape)}")
    if "head.norms.0.weight" in tensors:
        raise CheckpointError("it has a dense head, and no file says which blocks that reads: add its config.json")
    for key in ("pos_embed", "reg_token"):
        if key in tensors and tensors[key].dim() != 3:
            raise CheckpointError(f"{key} should be [1 tokens width], got {tuple(tensors[key].shape)}")
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
        "position": "learned" if "pos_embed" in tensors else "none",
        "patch_bias": "patch_embed.proj.bias" in tensors,
        "qkv_bias": "blocks.0.attn.qkv.bias" in tensors,
        "qv_bias": "blocks.0.attn.qkv.q_bias" in tensors,
        "qk_norm": "blocks.0.attn.q_norm.weight" in tensors,
        "embedding_norm": "norm_pre.weight" in tensors,
        "final_norm": "norm.weight" in tensors,
        "fc_norm": "fc_norm.weight" in tensors,
        "patch_norm": "patch_embed.norm.weight" in tensors,
        "norm": "layer" if "blocks.0.norm1.bias" in tensors else "rms",
        "branch_bias": "blocks.0.attn.proj.bias" in tensors,
        "attention_norm": "blocks.0.attn.norm.weight" in tensors,
        "mlp_norm": "blocks.0.mlp.norm.weight" in tensors,
        "talking_heads": "blocks.0.attn.talk.proj_l.weight" in tensors,
        "pool_layers": 0,
        "layer_scale": 1e-5 if "blocks.0.ls1.gamma" in tensors else 0.0,
        "classes": 0 if head is None else head.shape[0],
        "representation_size": 0 if hidden is None else hidden.shape[0],
        "head_norm": "head.norm.weight" in tensors,
        "dense": "none",
        "dense_blocks": (),
    }
    if "attn_pool.mlp.fc1.weight" in tensors:
        known |= {"pool": "attention", "pool_mlp_width": tensors["attn_pool.mlp.fc1.weight"].shape[0]}
    elif "attn_pool.cls_token" in tensors:
        known |= _class_attention(tensors)
    else:
        known |= {"pool_heads": 0, "pool_mlp_width": 0, "pool_prefix": False}
    if (talk := tensors.get("blocks.0.attn.talk.proj_l.weight")) is not None:
        known["heads"] = talk.shape[0]
    known |= _relative_position(tensors)
    known |= _stem(tensors, known["patch_size"])
    if "rope.freqs" in tensors:
        known |= {"rope": "mixed"}
    if head is not None:
        known["head_bias"] = "head.bias" in tensors
    first = hidden if hidden is not None else head
    if first is not None and first.shape[1] == 2 * width:
        known["pool"] = "token+mean"
    return known


def _stem(tensors: Tensors, kernel: tuple[int, int]) -> dict[str, Any]:
    """Infer what the tensors of a convolutional stem state; the patch embedding's kernel counts its positions."""
    first = next((tensors[key] for key in STEM_KEYS if key in tensors), None)
    if first is None:
        return {"stem": "none"}
    if STEM_KEYS[2] in tensors and first.dim() == 4:
        patch = kernel[0] * math.prod(STRIDES), kernel[1] * math.prod(STRIDES)
        return {"stem": "mobileclip", "channels": first.shape[1], "patch_size": patch}
    blocks = {(match[1], match[2]) for key in tensors if (match := re.match(STAGE, key))}
    layers = tuple(sum(stage == str(number) for stage, _ in blocks) for number in range(len({s for s, _ in blocks})))
    kind = next((kind for kind, known in STEMS.items() if known == layers), None)
    if kind is None or first.dim() != 4:
        raise CheckpointError(f"its stem has {layers or 'no'} blocks, unlike the known stems: it is incomplete")
    stride = 4 * 2 ** max(len(layers) - 1, 0)
    patch = kernel[0] * stride, kernel[1] * stride
    return {"stem": kind, "channels": first.shape[1], "patch_size": patch}


def _class_attention(tensors: Tensors) -> dict[str, Any]:
    """Infer what the tensors of layers of class attention state."""
    numbers = {int(match[1]) for key in tensors if (match := re.match(r"attn_pool\.layers\.(\d+)\.", key))}
    hidden = tensors.get("attn_pool.layers.0.mlp.fc1.weight")
    if numbers != set(range(len(numbers))) or hidden is None or hidden.dim() != 2:
        raise CheckpointError("a layer of its class attention is missing: the checkpoint is incomplete")
    return {"pool": "class-attention", "pool_layers": len(numbers), "pool_mlp_width": hidden.shape[0]}


def _relative_position(tensors: Tensors) -> dict[str, Any]:
    """Infer what the tensors of a relative position bias state: its kind, hidden width and number of heads."""
    found = [kind for kind, key in RELATIVE.items() if key in tensors]
    if len(found) > 1:
        raise CheckpointError(f"it has {' and '.join(RELATIVE[kind] for kind in found)}: one of them is supported")
    if not found:
        return {"relative_position": "none", "relative_width": 0}
    first = tensors[RELATIVE[found[0]]]
    last = tensors.get(RELATIVE[found[0]].replace("fc1", "fc2"), torch.empty(0))
    if first.dim() != 2 or last.dim() != 2:
        raise CheckpointError(f"{RELATIVE[found[0]]} should have two dimensions, got {tuple(first.shape)}")
    if found[0].endswith("mlp"):
        return {"relative_position": found[0], "relative_width": first.shape[0], "heads": last.shape[0]}
    return {"relative_position": found[0], "relative_width": 0, "heads": first.shape[1]}


def count_blocks(tensors: Mapping[str, Any]) -> int:
    """Count the blocks in a checkpoint's keys; a gap in their numbers is an error."""
    numbers = {int(match[1]) for key in tensors if (match := re.match(r"blocks\.(\d+)\.", key))}
    if numbers != set(range(len(numbers))):
        absent = sorted(set(range(max(numbers) + 1)) - numbers)
        raise CheckpointError(f"block {absent[0]} is missing: the checkpoint is incomplete")
    return len(numbers)


def infer_config(
    tensors: Tensors, format: Format, stated: Allowed, source: str, assume: Mapping[str, Any]
) -> tuple[ViTConfig, dict[str, str]]:
    """Infer a checkpoint's `ViTConfig` as it was trained, and list what was assumed for it: field → value and reason.

    `stated` is what the config file or the architecture `source` says, `assume` what the user says: it overrules the
    files, but not the tensors.
    """
    shapes = from_shapes(tensors)
    names = {field.name for field in fields(ViTConfig)}
    assume = {name: value for name, value in assume.items() if name in names}
    unplaced = shapes["position"] == "none" and shapes["relative_position"] == "none"
    if unplaced and "none" not in stated.get("position", ()) and "position" not in assume:
        raise CheckpointError(
            "it has no position embeddings: if they are rotary, say which model it is by --assume architecture=NAME"
        )
    size = assume.get("image_size", stated.get("image_size", (None,))[0])
    said = "your assumption" if "image_size" in assume else source
    grid, shapes["prefix_positions"] = trained_grid(tensors, shapes, size, said)
    shapes["image_size"] = size or (grid[0] * shapes["patch_size"][0], grid[1] * shapes["patch_size"][1])
    whole = all(side % patch == 0 for side, patch in zip(shapes["image_size"], shapes["patch_size"], strict=True))
    shapes["partial_patches"] = not whole
    for name, value in assume.items():
        if name in shapes and normalise(name, shapes[name], shapes) != normalise(name, value, shapes):
            raise CheckpointError(f"you assume {name}={value}, but its tensors say {name}={shapes[name]}")
    _compare(shapes, stated, source, assume)
    values = shapes | {name: allowed[0] for name, allowed in stated.items() if len(allowed) == 1} | assume
    values |= {name: shapes[name] for name in ("image_size", "prefix_positions")}
    reasons = {
        name: said_by_user(value, stated.get(name, (None,))[0], source)
        if name in stated or name not in shapes
        else said_by_user(value, value, "its tensors")
        for name, value in assume.items()
    }
    if source != "config.json":
        named = [name for name in UNSEEN if name in stated and name not in reasons and not _plain(name, values)]
        reasons |= {name: f"{values[name]} (as {source} has)" for name in named if source and name in values}
    if size is None:
        prefixed = shapes["prefix_positions"] or not (shapes["class_token"] or shapes["registers"])
        square = f"a square of {grid[0]}×{grid[1]}{'' if prefixed else ', none of them for other tokens'}"
        reasons["image size"] = f"{_sides(shapes['image_size'])} (its positions make {square})"
    if set(STRUCTURE) - {"prefix_positions"} <= set(stated) and set(_unseen(values)) <= set(values):
        return ViTConfig(**values), reasons

    if source == "config.json" and "classes" not in stated and "classes" not in assume:
        raise CheckpointError("config.json does not say which head the model has: pass --assume classes=N, 0 for none")
    known, like = format.known(shapes, assume)
    if "depth" not in stated and "depth" not in assume and (depths := known_depths(shapes)):
        raise CheckpointError(
            f"it has {shapes['depth']} blocks, and known models of width {shapes['width']} have {depths}: blocks are "
            f"missing; if not, pass --assume depth={shapes['depth']}"
        )
    if len(set(shapes["patch_size"])) > 1 and "patch_size" not in {*stated, *assume}:
        raise CheckpointError(
            f"its patches are {_sides(shapes['patch_size'])}, and those of all known models are square: it is damaged; "
            f"if not, pass --assume patch_size={as_flag(shapes['patch_size'])}"
        )
    known = {name: allowed for name, allowed in known.items() if name not in stated}
    _compare(shapes, known, like or f"the format {format.name}", assume)
    for name in UNSEEN:
        if name in values or name not in _unseen(values):
            continue
        allowed = known.get(name) or (known_heads(shapes) if name == "heads" else ())
        if len(allowed) != 1:
            raise CheckpointError(_question(name, allowed, shapes))
        values[name] = allowed[0]
        if _plain(name, values):
            continue
        reasons[name] = f"{allowed[0]} ({f'as {like} has' if like else 'as the known models of this format have'})"
    if not shapes["classes"] and "classes" not in stated and "classes" not in assume:
        reasons["head"] = "none (the file has none)"
    return ViTConfig(**values), reasons


def _unseen(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the config fields that cannot be inferred from tensors; those of rotation only if queries are rotated."""
    return UNSEEN if values.get("rope", "none") != "none" else tuple(name for name in UNSEEN if name not in ROTATION)


def _plain(name: str, values: Mapping[str, Any]) -> bool:
    """Return whether an inferred config field stands for a part that neither the paper's ViT nor this model has.

    The report leaves such a field out.
    """
    absent = values.get("rope") == "none" and name in ROTATION
    return absent or (name not in ("heads", "norm_eps") and values.get(name) in (False, 0, "none"))


def _compare(shapes: Mapping[str, Any], allowed: Allowed, source: str, assume: Mapping[str, Any]) -> None:
    """Compare the inferred config fields with those of `source`; raise for one that differs, unless the user set it."""
    for name, values in allowed.items():
        if name in assume or name not in shapes:
            continue
        mine = normalise(name, shapes[name], shapes)
        if mine not in [normalise(name, value, shapes) for value in values]:
            said = " or ".join(str(value) for value in values)
            raise CheckpointError(
                f"{source} says {name}={said}, but its tensors say {name}={mine}: the file is incomplete or another "
                f"model's; if the tensors are right, pass --assume {name}={as_flag(mine)}"
            )


def said_by_user(value: Any, stated: Any, source: str) -> str:
    """Write the reason for a field of the inferred config that the user set: the value, and what the file says of it.

    `stated` is None if the file says nothing.
    """
    also = "" if stated is None else f", and {source} too" if value == stated else f"; {source} says {stated}"
    return f"{as_flag(value)} (as you said{also})"


def _question(name: str, allowed: tuple[Any, ...], shapes: Mapping[str, Any]) -> str:
    """Write the error for a config field that cannot be inferred: no file states it, and known models differ in it."""
    known = f" (known models have {' or '.join(str(value) for value in allowed)})" if 1 < len(allowed) < 5 else ""
    what = f"a model of width {shapes['width']} and depth {shapes['depth']}"
    value = {"heads": "N", "norm_eps": "EPS", "post_norm": "False"}.get(name, "NAME")
    if name.startswith(("rope", "pool_")):  # several fields belong together
        return f"no file states {name} of {what}{known}: pass --assume architecture=NAME, timm's name of the model"
    return f"no file states {name} of {what}{known}: pass --assume {name}={value}, or assume={{'{name}': …}} in Python"


def _sides(size: tuple[int, int]) -> str:
    """Write an inferred image or patch size as height × width."""
    return f"{size[0]}×{size[1]}"
