"""`DynamicSizeViT`: a ViT whose forward pass resizes positions, so that an exported graph takes images of any size.

`models/vit.py` has one image size, as in the paper, and `load(image_size=…)` builds a model of another. An exported
graph cannot be rebuilt, so it needs this. DINOv2's convention is computed as two matrix products: the other conventions
of `weights/positions.py` pass `interpolate` a size, which exporters support; DINOv2 passes a scale, which tracing would
freeze. Resizing is linear and separable: the new table is `rows @ table @ columns.T`, and both matrices are arithmetic
on the new sizes without branches, so that sizes may be symbols.

Shapes:  b images · n patches · t tokens · d width · r c old rows and columns
"""

from contextlib import nullcontext

import torch
from torch import Tensor, nn

from vitreous.models.vit import ViT, sine_positions
from vitreous.weights.positions import CONVENTIONS, OFFSET, Grid


class DynamicSizeViT(nn.Module):
    """A ViT for images of any size: `[b c H W]`, H and W any multiples of the patch size → logits `[b classes]`.

    A dense head gives them for each pixel, `[b classes H W]`.

    >>> from vitreous.models.variants import variant
    >>> model = ViT(variant("vit_femto_patch4_32")).eval()
    >>> DynamicSizeViT(model, "timm")(torch.randn(2, 3, 40, 24)).shape
    torch.Size([2, 10])
    """

    def __init__(self, model: ViT, convention: str) -> None:
        super().__init__()
        if convention not in CONVENTIONS:
            raise ValueError(f"resize must be one of {', '.join(CONVENTIONS)}, got {convention!r}")
        if model.config.relative_position != "none":
            raise ValueError("a relative position bias has one size in a graph: export without a dynamic size")
        if convention.startswith("naflex"):
            raise ValueError("NaFlex models differ in how they resize positions: export without a dynamic size")
        self.model, self.convention = model, convention

    def forward(self, images: Tensor) -> Tensor:
        model, (p, q) = self.model, self.model.config.patch
        grid = images.shape[2] // p, images.shape[3] // q
        x = model.assemble(model.patch_embed.project(images), self.positions(grid))
        with model.rope.at(grid) if model.rope is not None else nullcontext():
            tokens = model.run_blocks(x)
        if model.config.dense == "none":
            return model.forward_head(*tokens)
        first, count = model.layout.prefix, len(model.config.dense_blocks)
        grids = [y[:, first:].transpose(1, 2).unflatten(2, grid) for y in tokens[:count]]  # [b d rows columns] each
        logits: Tensor = model.head(grids, (images.shape[2], images.shape[3]))
        return logits

    def positions(self, grid: Grid) -> Tensor | None:
        """Compute positions for a dynamic size's grid: `[1 t d]`, or `[1 n d]` without slots for the prefix tokens."""
        config, table = self.model.config, self.model.pos_embed
        if table is None or config.position != "learned":
            return None if table is None else sine_positions(config, grid)
        prefix = config.positions - config.layout.patches
        resize = resample_offset if self.convention == "dinov2" else CONVENTIONS[self.convention]
        patches = table[:, prefix:].unflatten(1, config.grid).permute(0, 3, 1, 2)  # [1 d rows columns]
        patches = resize(patches, grid).permute(0, 2, 3, 1).reshape(1, grid[0] * grid[1], config.width)
        return torch.cat([table[:, :prefix], patches], dim=1)


# --- DINOv2's convention ----------------------------------------------------------------------------------------------


def resample_offset(table: Tensor, size: Grid) -> Tensor:
    """Resize positions `[1 d r c]` as DINOv2 does, to a `size` that may be a graph's symbols.

    >>> resample_offset(torch.randn(1, 8, 37, 37), (24, 16)).shape
    torch.Size([1, 8, 24, 16])
    """
    r, c = table.shape[-2:]
    rows, columns = (torch.arange(new, device=table.device, dtype=table.dtype) for new in size)
    unchanged = (rows[-1:] == r - 1) & (columns[-1:] == c - 1)  # [1]; then DINOv2 keeps the table
    offset = torch.where(unchanged, 0.0, OFFSET)
    return axis_weights(rows, r, offset) @ table @ axis_weights(columns, c, offset).T


def axis_weights(positions: Tensor, old: int, offset: Tensor) -> Tensor:
    """Compute for a dynamic size, without branches, the weight of old positions in new ones: `[n]` → `[n old]`.

    Four samples around a position count, by Keys' cubic kernel with a = -0.75; edge samples are repeated.
    """
    step = old / (positions[-1:] + 1 + offset)
    at = (positions + 0.5) * step - 0.5  # [n]
    low, samples = at.floor(), torch.arange(old, device=positions.device, dtype=positions.dtype)
    weights = torch.zeros_like(at[:, None] - samples)  # [n old]
    for tap in (-1, 0, 1, 2):
        nearest = (low + tap).clamp(0, old - 1)
        weights = weights + _keys(at - low - tap)[:, None] * (nearest[:, None] == samples)
    return weights


def _keys(x: Tensor, a: float = -0.75) -> Tensor:
    """Compute the weights of cubic interpolation (Keys, 1981), by which positions of a dynamic size are resized."""
    x = x.abs()
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return torch.where(x < 1, near, torch.where(x < 2, far, 0.0))
