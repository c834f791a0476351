"""A ViT that takes images of any whole number of patches: its positions are resized in the forward pass.

`models/vit.py` has one size, which is the paper's; an image of another is refused there. Exported graphs, which
cannot be rebuilt by `load(image_size=…)`, want this instead.
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.models.vit import ViT, sines
from vitreous.speed.resampling import resample_offset
from vitreous.weights.positions import CONVENTIONS, Grid, resize_positions


class AnySize(nn.Module):
    """Images `[b c H W]` → logits `[b classes]`, H and W any multiples of the patch size.

    >>> from vitreous.models.variants import variant
    >>> model = ViT(variant("vit_femto_patch4_32")).eval()
    >>> AnySize(model, "timm")(torch.randn(2, 3, 40, 24)).shape
    torch.Size([2, 10])
    """

    def __init__(self, model: ViT, convention: str) -> None:
        super().__init__()
        if convention not in CONVENTIONS:
            raise ValueError(f"resize must be one of {', '.join(CONVENTIONS)}, got {convention!r}")
        self.model, self.convention = model, convention

    def forward(self, images: Tensor) -> Tensor:
        model, (p, q) = self.model, self.model.config.patch
        b, c, height, width = images.shape
        grid = height // p, width // q
        x = images.reshape(b, c, grid[0], p, grid[1], q)
        x = x.permute(0, 2, 4, 1, 3, 5).reshape(b, grid[0] * grid[1], c * p * q)  # [b n cpq]
        x = F.linear(x, model.patch_embed.proj.weight.flatten(1), model.patch_embed.proj.bias)  # [b n d]
        positions = self.positions(grid)
        if positions is not None and not model.config.prefix_positions:
            x = x + positions
        prefix = [token for token in (model.cls_token, model.dist_token, model.reg_token) if token is not None]
        x = torch.cat([token.expand(b, -1, -1) for token in prefix] + [x], dim=1)  # [b t d]
        if positions is not None and model.config.prefix_positions:
            x = x + positions
        x = model.norm_pre(x)
        for block in model.blocks:
            x = block(x)
        return model.forward_head(model.norm(x))

    def positions(self, grid: Grid) -> Tensor | None:
        """The position embedding for this grid: `[1 t d]`, or `[1 n d]` without slots for the prefix tokens."""
        config, table = self.model.config, self.model.pos_embed
        if table is None:
            return None
        prefix, count = config.positions - config.layout.patches, grid[0] * grid[1]
        if config.position == "sine-1d":
            return sines(prefix + count, config.width)[None]
        if config.position == "sine-2d":
            half = config.width // 2
            rows = sines(grid[0], half)[:, None].expand(grid[0], grid[1], half)
            columns = sines(grid[1], half)[None].expand(grid[0], grid[1], half)
            patches = torch.cat([rows, columns], dim=-1).reshape(1, count, config.width)
        else:
            resize = resample_offset if self.convention == "dinov2" else CONVENTIONS[self.convention]
            patches = table[:, prefix:].unflatten(1, config.grid).permute(0, 3, 1, 2)  # [1 d rows columns]
            patches = resize(patches, grid).permute(0, 2, 3, 1).reshape(1, count, config.width)
        return torch.cat([table[:, :prefix], patches], dim=1)


def at_size(model: ViT, size: tuple[int, int], convention: str) -> ViT:
    """The same weights in a model of another image size, as `load(image_size=…)` would make it.

    >>> from vitreous.models.variants import variant
    >>> at_size(ViT(variant("vit_femto_patch4_32")), (40, 24), "timm").layout.grid
    (10, 6)
    """
    config = replace(model.config, image_size=size)
    tensors = dict(model.state_dict())
    if config.position == "learned":
        prefix = config.positions - config.layout.patches
        tensors["pos_embed"] = resize_positions(
            tensors["pos_embed"], model.config.grid, config.grid, convention, prefix
        )
    with torch.device("meta"):
        other = ViT(config)
    other.load_state_dict(tensors, assign=True)
    return other.train(model.training)
