"""`DenseHead`: a class for each pixel, read from patch tokens of several blocks; `at_pixel`: one pixel's as a ViT.

`linear` is the head that DINOv2 is evaluated with (Oquab et al., 2024): patch tokens of several blocks side by side,
one linear layer, its logits upsampled. `decoder` sums projections of these tokens and refines them by two convolutions
at twice and four times the resolution of the patches, a small relative of SETR's (Zheng et al., 2021).

Shapes:  b images · d width · m blocks · w width of the decoder · H W pixels
"""

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.models.hooks import hook

if TYPE_CHECKING:
    from vitreous.models.vit import ViT
    from vitreous.models.vit_config import ViTConfig

DECODER_WIDTH = 128
"""Channels that a decoder projects each block's tokens to; its last convolution halves them."""
GROUPS = 8
BLOCKS_READ = 4
"""Blocks that a new dense head reads, unless others are asked for."""


def spread_blocks(depth: int) -> tuple[int, ...]:
    """Choose the blocks that a new dense head reads: four spread evenly, the last among them.

    >>> spread_blocks(12), spread_blocks(2)
    ((2, 5, 8, 11), (0, 1))
    """
    count = min(BLOCKS_READ, depth)
    return tuple(i * depth // count - 1 for i in range(1, count + 1))


class DenseHead(nn.Module):
    """Patch tokens of several blocks to the logits of each pixel: m times `[b d rows columns]` → `[b classes H W]`.

    The last layer starts at zero, as that of a classifier. A pixel that fills no patch has its neighbour's logits.

    >>> from vitreous.models.vit_config import ViTConfig
    >>> config = ViTConfig(image_size=(32, 48), patch_size=8, width=24, classes=5, dense="linear", dense_blocks=(5, 11))
    >>> DenseHead(config)([torch.randn(2, 24, 4, 6)] * 2, (32, 48)).shape
    torch.Size([2, 5, 32, 48])
    """

    def __init__(self, config: "ViTConfig") -> None:
        super().__init__()
        self.blocks, self.patch, self.partial = config.dense_blocks, config.patch, config.partial_patches
        count, width = len(config.dense_blocks), config.width
        self.norms = nn.ModuleList(nn.LayerNorm(width, eps=config.norm_eps) for _ in range(count))
        inputs = count * width
        self.projections, self.convolutions, self.group_norms = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        if config.dense == "decoder":
            inputs = DECODER_WIDTH // 2
            self.projections.extend(nn.Linear(width, DECODER_WIDTH) for _ in range(count))
            for outputs in (DECODER_WIDTH, inputs):
                self.convolutions.append(
                    nn.Conv2d(DECODER_WIDTH, outputs, 3, padding=1, padding_mode="replicate", bias=False)
                )
                self.group_norms.append(nn.GroupNorm(GROUPS, outputs))
        self.weight = nn.Parameter(torch.zeros(config.classes, inputs))
        self.bias = nn.Parameter(torch.zeros(config.classes))

    def forward(self, tokens: Sequence[Tensor], size: tuple[int, int]) -> Tensor:
        if len(tokens) != len(self.norms):
            numbers = ", ".join(str(number) for number in self.blocks)
            raise ValueError(f"a dense head reads the tokens of blocks {numbers}, got those of {len(tokens)} blocks")
        grids = zip(self.norms, tokens, strict=True)
        read = [norm(hook(norm, "norm_input", x.permute(0, 2, 3, 1))) for norm, x in grids]  # [b rows columns d] each
        x = self.decode(read) if self.projections else torch.cat(read, dim=-1)
        x = F.linear(x, self.weight, self.bias).permute(0, 3, 1, 2)  # [b classes rows columns], finer after a decoder
        return self.upsample(x, size)

    def upsample(self, x: Tensor, size: tuple[int, int]) -> Tensor:
        """Resize a dense head's logits `[b classes rows columns]` to the image; edges are repeated beyond patches."""
        height, width = covered = tuple(side // patch * patch for side, patch in zip(size, self.patch, strict=True))
        x = F.interpolate(x, size=covered, mode="bilinear", align_corners=False)
        return F.pad(x, (0, size[1] - width, 0, size[0] - height), mode="replicate") if self.partial else x

    def decode(self, read: Sequence[Tensor]) -> Tensor:
        """Fuse a dense head's normalised tokens and refine them: `[b rows columns d]`s → `[b 4·rows 4·columns w/2]`."""
        x = torch.stack([project(y) for project, y in zip(self.projections, read, strict=True)]).sum(dim=0)
        x = x.permute(0, 3, 1, 2)
        for stage, (convolve, norm) in enumerate(zip(self.convolutions, self.group_norms, strict=True)):
            if 2 << stage <= min(self.patch):  # never finer than pixels
                x = F.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False)
            x = F.gelu(norm(convolve(x)))
        return x.permute(0, 2, 3, 1)


class RegionHead(nn.Module):
    """A dense head read at some pixels: the mean of their logits, `[b classes]`."""

    pixels: Tensor

    def __init__(self, head: DenseHead, mask: Tensor) -> None:
        super().__init__()
        self.head, self.size = head, (mask.shape[0], mask.shape[1])
        self.register_buffer(
            "pixels", mask.flatten().nonzero().flatten(), persistent=False
        )  # their indices, row by row

    @property
    def mask(self) -> Tensor:
        """The pixels whose logits from a dense head are averaged: True in a boolean `[H W]`."""
        mask = torch.zeros(self.size, dtype=torch.bool, device=self.pixels.device)
        mask.view(-1)[self.pixels] = True
        return mask

    @property
    def weight(self) -> Tensor:
        """The weight of a dense head's last layer, as other heads have it."""
        return self.head.weight

    def forward(self, tokens: Sequence[Tensor], size: tuple[int, int]) -> Tensor:
        logits: Tensor = self.head(tokens, size)
        return logits.flatten(2)[..., self.pixels].mean(dim=-1)

    def patch_shares(self, grid: tuple[int, int]) -> Tensor:
        """Compute each patch's weight in a dense head's pixels, by bilinear upsampling: `[rows columns]`, sum 1."""
        with torch.inference_mode(False), torch.enable_grad():
            patches = torch.zeros(1, 1, *grid, device=self.pixels.device, requires_grad=True)
            upsampled = self.head.upsample(patches, self.size).flatten()[self.pixels].mean()
            (shares,) = torch.autograd.grad(upsampled, patches)
        return shares[0, 0]


def at_region(model: "ViT", mask: Tensor) -> "ViT":
    """Read a dense head in a region, True in `mask` `[H W]`: return a ViT with the mean of its logits, `[b classes]`.

    It shares its weights with `model`, whose head is dense. Whatever explains a class then explains that of a region.

    >>> from vitreous.models.vit import ViT
    >>> from vitreous.models.vit_config import ViTConfig
    >>> config = ViTConfig(image_size=16, patch_size=8, width=24, depth=1, heads=2, classes=3)
    >>> dense = ViT(config)
    >>> dense.reset_dense(3, "linear")
    >>> at_region(dense, torch.ones(16, 16, dtype=torch.bool))(torch.randn(2, 3, 16, 16)).shape
    torch.Size([2, 3])
    """
    if not isinstance(model.head, DenseHead):
        raise ValueError("only a model with a dense head has a class for each pixel: this one has one for each image")
    if mask.dtype != torch.bool or tuple(mask.shape) != model.config.size or not mask.any():
        wanted = "×".join(str(side) for side in model.config.size)
        raise ValueError(
            f"expected a boolean mask of {wanted} pixels, some of them True, got {mask.dtype} {list(mask.shape)} with "
            f"{int(mask.bool().sum())} True"
        )
    region = copy.copy(model)
    region._modules = dict(model._modules)
    region._modules["head"] = RegionHead(model.head, mask.to(model.head.weight.device))
    if model.card is not None:
        region.card = replace(model.card, task="classify")
    return region


def at_pixel(model: "ViT", row: int, column: int) -> "ViT":
    """Read a dense head at one pixel: return a ViT with its logits `[b classes]`, which shares `model`'s weights."""
    height, width = model.config.size
    if not (0 <= row < height and 0 <= column < width):
        raise ValueError(f"pixel ({row}, {column}) lies outside the image of {height}×{width} pixels")
    mask = torch.zeros(height, width, dtype=torch.bool)
    mask[row, column] = True
    return at_region(model, mask)
