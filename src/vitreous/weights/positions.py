"""Infer the grid of position embeddings, or of tables of relative positions; resize them by the maker's convention.

Each library interpolates differently, and the wrong convention costs accuracy without an error. `dinov2-registers` and
`timm` are the same formula today and keep separate names, since they belong to different code bases.
"""

from collections.abc import Callable, Mapping
from functools import partial
from math import isqrt
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.weights.keymap import Tensors
from vitreous.weights.safety import CheckpointError

Grid = tuple[int, int]
OFFSET = 0.1
"""Added to the new size before DINOv2 computes the scale."""
ALIKE = 5.0
"""Standard errors, of noise, by which the cosines of neighbours in two grids differ: 14 and more in a ViT-Ti."""
RELATIVE = {  # what a relative position bias is called in the tensors, of the first block or shared by all
    "table": "blocks.0.attn.rel_pos.relative_position_bias_table",
    "mlp": "blocks.0.attn.rel_pos.mlp.fc1.weight",
    "shared-table": "shared_rel_pos.relative_position_bias_table",
    "shared-mlp": "shared_rel_pos.mlp.fc1.weight",
}


def trained_grid(tensors: Tensors, shapes: Mapping[str, Any], size: Grid | None, source: str) -> tuple[Grid, bool]:
    """Return the grid that position embeddings were trained on, and whether prefix tokens have positions too.

    `size` is the image size that `source` states; without one the grid has to be a square.
    """
    prefix = shapes["class_token"] + shapes["distillation_token"] + shapes["registers"]
    stated = None
    if size is not None:
        stated = (size[0] // shapes["patch_size"][0], size[1] // shapes["patch_size"][1])
    if "pos_embed" not in tensors:
        if shapes["relative_position"].endswith("table"):
            return _grid_of_table(tensors[RELATIVE[shapes["relative_position"]]].shape[0], shapes, stated, source), True
        if stated is None:
            raise CheckpointError(
                "its tensors fit any image size: pass --assume image_size=HEIGHTxWIDTH, the size that it was trained at"
            )
        return stated, True
    count = tensors["pos_embed"].shape[1]
    if stated is not None:
        for slots in (prefix, 0):
            if stated[0] * stated[1] == count - slots:
                return stated, slots == prefix
        text = f"{size[0]}×{size[1]}, which makes {stated[0]}×{stated[1]} patches" if size else ""
        raise CheckpointError(
            f"{source} says image_size={text}, but the tensors have {count} positions with {prefix} prefix token(s): "
            "if the tensors are right, pass --assume image_size=HEIGHTxWIDTH, the size that it was trained at"
        )
    squares = [slots for slots in (prefix, 0) if isqrt(max(count - slots, 0)) ** 2 == count - slots > 0]
    if not squares or len(set(squares)) > 1:
        grid = "two square grids" if squares else "no square grid"
        raise CheckpointError(
            f"{count} positions and {prefix} prefix token(s) make {grid}: pass --assume image_size=HEIGHTxWIDTH, the "
            "size that it was trained at"
        )
    side = isqrt(count - squares[0])
    if prefix > squares[0] and (other := _other_grid(tensors["pos_embed"], side)):
        raise CheckpointError(
            f"{count} positions make a square of {side}×{side} if none is the class token's, but neighbours in a grid "
            f"of {other} are more alike: pass --assume image_size=HEIGHTxWIDTH, the size that it was trained at"
        )
    return (side, side), squares[0] == prefix


def _other_grid(positions: Tensor, side: int) -> str:
    """Return the grid that trained positions fit better than a square one without the class token; else nothing.

    n² positions are a square of n×n, or one for the class token and (n-1)×(n+1). A trained position resembles the one
    below it most, so the distance of rows shows; positions without any such order are no evidence.
    """
    directions = F.normalize(positions[0].float() - positions[0].float().mean(dim=0), dim=-1)
    alike = {
        gap: (directions[:-gap] * directions[gap:]).sum(dim=-1).mean().item()
        for gap in range(side - 1, side + 2)
        if gap
    }
    gap = max(alike, key=alike.__getitem__)
    error = directions.numel() ** -0.5  # of the mean cosine of unrelated vectors
    return f"{2 * side - gap}×{gap} beside the class token" if alike[gap] > alike[side] + ALIKE * error else ""


def _grid_of_table(count: int, shapes: Mapping[str, Any], stated: Grid | None, source: str) -> Grid:
    """Infer the grid of a checkpoint's positions, if they are relative, from the number of rows in their table.

    It has a row for each offset, and three for the class token.
    """
    offsets = count - 3 * shapes["class_token"]
    side = (isqrt(max(offsets, 0)) + 1) // 2
    rows, columns = grid = stated or (side, side)
    if offsets < 1 or (2 * rows - 1) * (2 * columns - 1) != offsets:
        says = f"{source} says {rows}×{columns} patches" if stated else "no square grid has so many"
        raise CheckpointError(
            f"its relative positions have {count} rows, but {says}: if the tensors are right, pass --assume "
            "image_size=HEIGHTxWIDTH, the size that it was trained at"
        )
    return grid


def _offset_scale(x: Tensor, size: Grid) -> Tensor:
    """Resize positions as DINO and DINOv2 do: a slightly larger scale guards against rounding, and moves samples."""
    factors = [(new + OFFSET) / old for new, old in zip(size, x.shape[-2:], strict=True)]
    return F.interpolate(x, scale_factor=factors, mode="bicubic")


def _square(x: Tensor, size: Grid, mode: str, antialias: bool) -> Tensor:
    """Resize position embeddings to a square grid, where only that is certain; raise for other grids.

    timm's NaFlex ViTs have two ways for others. No tensor tells which of the two a model uses.
    """
    if size[0] != size[1]:
        raise ValueError(
            f"NaFlex models differ in how they resize positions to {size[0]}×{size[1]}: pass a square image_size, or "
            "resize='timm' if its name has no 'par'"
        )
    return F.interpolate(x, size, mode=mode, antialias=antialias)


CONVENTIONS: dict[str, Callable[[Tensor, Grid], Tensor]] = {  # [1 d rows columns], new grid → [1 d rows' columns']
    # Google's code calls scipy.ndimage.zoom with order 1: bilinear, corners on corners
    "google": lambda x, size: F.interpolate(x, size, mode="bilinear", align_corners=True),
    "timm": lambda x, size: F.interpolate(x, size, mode="bicubic", antialias=True),
    "flexivit": lambda x, size: F.interpolate(x, size, mode="bilinear"),  # timm's, as RADIO
    "radio": lambda x, size: F.interpolate(x, size, mode="bilinear"),
    "radio-corners": lambda x, size: F.interpolate(x, size, mode="bilinear", align_corners=True),
    "torchvision": lambda x, size: F.interpolate(x, size, mode="bicubic", align_corners=True),
    "huggingface": lambda x, size: F.interpolate(x, size, mode="bicubic"),
    "dpt": lambda x, size: F.interpolate(x, size, mode="bilinear"),  # transformers' DPT
    "siglip2": lambda x, size: F.interpolate(x, size, mode="bilinear", antialias=True),
    "dinov2": _offset_scale,
    "naflex": partial(_square, mode="bicubic", antialias=True),
    "naflex-factorized": partial(_square, mode="bilinear", antialias=False),  # equal to that of rows plus columns
    "dinov2-registers": lambda x, size: F.interpolate(x, size, mode="bicubic", antialias=True),
}


def resize_positions(positions: Tensor, old: Grid, new: Grid, convention: str, prefix: int = 0) -> Tensor:
    """Resize `[1 prefix+n d]` from one grid to another; the first `prefix` rows stay as they are.

    >>> resize_positions(torch.randn(1, 1 + 14 * 14, 8), (14, 14), (24, 16), "timm", prefix=1).shape
    torch.Size([1, 385, 8])
    """
    if convention not in CONVENTIONS:
        raise ValueError(f"resize must be one of {', '.join(CONVENTIONS)}, got {convention!r}")
    if positions.shape[1] != prefix + old[0] * old[1]:
        raise ValueError(
            f"expected {prefix} + {old[0]}×{old[1]} positions, got {positions.shape[1]}: "
            "pass the image_size that the checkpoint was trained with"
        )
    if old == new:
        return positions
    table = positions[:, prefix:].float().reshape(1, *old, -1).permute(0, 3, 1, 2)  # [1 d rows columns]
    table = CONVENTIONS[convention](table, new).flatten(2).transpose(1, 2)  # [1 n d]
    return torch.cat([positions[:, :prefix], table.to(positions.dtype)], dim=1)


def resize_relative_positions(table: Tensor, old: Grid, new: Grid, convention: str) -> Tensor:
    """Resize a checkpoint's positions to another grid, if they are relative: a table `[offsets + extra h]`.

    The class token's rows stay. transformers interpolates linearly. The others stretch the offsets, so that near ones
    keep their own numbers and far ones lie further apart (BEiT's authors), and timm then interpolates linearly too.

    >>> resize_relative_positions(torch.randn(27 * 27 + 3, 12), (14, 14), (24, 16), "timm").shape
    torch.Size([1460, 12])
    """
    sizes, wanted = (tuple(2 * side - 1 for side in grid) for grid in (old, new))
    count = sizes[0] * sizes[1]
    values = table[:count].float().T.unflatten(1, sizes)  # [h 2r-1 2c-1]
    if convention == "huggingface":
        values = F.interpolate(values[None], wanted, mode="bilinear")[0]
    elif old != new:
        rows, columns = (_stretched(*pair).to(values) for pair in zip(sizes, wanted, strict=True))
        values = rows @ values @ columns.T
    return torch.cat([values.flatten(1).T.to(table.dtype), table[count:]])


def _stretched(old: int, new: int) -> Tensor:
    """Compute how much of each old position along a side goes into each resized one, for relative ones: `[new old]`."""
    if old == 1:
        return torch.ones(new, 1)
    low, high = 1.01, 1.5
    while high - low > 1e-6:  # find the ratio whose progression ends where the new offsets do
        ratio = (low + high) / 2
        low, high = (low, ratio) if (1 - ratio ** (old // 2)) / (1 - ratio) > new // 2 else (ratio, high)
    steps = torch.cumsum(torch.tensor([ratio**i for i in range(old // 2)], dtype=torch.float64), dim=0).float()
    places = torch.cat([-steps.flip(0), torch.zeros(1), steps])  # of the old offsets
    targets = torch.arange(-(new // 2), new // 2 + 1).float()
    right = torch.bucketize(targets, places).clamp(1, old - 1)
    share = ((targets - places[right - 1]) / (places[right] - places[right - 1])).clamp(0, 1)[:, None]
    identity = torch.eye(old)
    return (1 - share) * identity[right - 1] + share * identity[right]


def fold_class_position(tensors: Tensors) -> Tensors:
    """Add the class token's position to the token itself, for models with registers: a format's `adjust` step.

    Registers stand between class token and patches and have no positions, so only patches keep theirs. The class
    token's position is a constant added to a constant: the sum is the same function.
    """
    if "reg_token" not in tensors:
        return tensors
    if absent := [key for key in ("cls_token", "pos_embed") if key not in tensors]:
        raise CheckpointError(f"the checkpoint has reg_token but not {', '.join(absent)}: it is incomplete")
    positions = tensors["pos_embed"]
    return tensors | {"cls_token": tensors["cls_token"] + positions[:, :1], "pos_embed": positions[:, 1:]}
