"""`RotaryPositions`: queries and keys rotated by the position of their patch; scores see offsets (Su et al., 2021).

Each head's channels are taken in pairs; a pair is rotated by an angle that grows with the row or the column of the
patch, at another rate for each pair. The product of a query and a key then depends on the difference of their angles.
Three kinds: "axial" has fixed rates and coordinates in patches (EVA-02, Fang et al., 2023; Perception Encoder, Bolya et
al., 2025), "mixed" learns the rates of both axes for each block and head (Heo et al., 2024, "Rotary Position Embedding
for Vision Transformer"), and "dinov3" has coordinates from -1 to 1 across the image, whatever its size (Siméoni et al.,
2025). Class token and registers have no position and are not rotated.

Shapes:  b images · h heads · t tokens · n patches · k width of one head · l blocks
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from vitreous.models.vit_config import ViTConfig

Grid = tuple[int, int]


class RotaryPositions(nn.Module):
    """The rotation of a model's queries and keys, which all blocks share."""

    rotation: Tensor | None
    """Sine and cosine of each patch and channel, `[2 n k]`; None if the rates are learned."""

    def __init__(self, config: "ViTConfig") -> None:
        super().__init__()
        self.config, self.grid, self.prefix = config, config.grid, config.layout.prefix
        width = config.width // config.heads
        self.halves = config.rope == "dinov3"  # it pairs channel i with i + k/2, the others 2i with 2i + 1
        self.freqs: nn.Parameter | None = None
        if config.rope == "mixed":
            self.freqs = nn.Parameter(torch.zeros(2, config.depth, config.heads, width // 2))
        with torch.device("cpu"):  # real values even if the model is built on the meta device
            angles = None if config.rope == "mixed" else self.fixed_angles(self.grid)
        self.register_buffer("rotation", None if angles is None else self.sines(angles), persistent=False)

    def reset_parameters(self) -> None:
        """Draw the learned rates of rotary positions: a random direction for each block and head, as the authors do."""
        if self.freqs is None:
            return
        quarter = self.freqs.shape[-1] // 2
        rates = self.config.rope_temperature ** -(torch.arange(quarter, device=self.freqs.device) / quarter)
        turn = torch.rand(*self.freqs.shape[1:3], 1, device=self.freqs.device) * 2 * math.pi
        turns = torch.cat([turn.expand(-1, -1, quarter), turn.expand(-1, -1, quarter) + math.pi / 2], dim=-1)
        with torch.no_grad():
            self.freqs.copy_(torch.stack([turns.cos(), turns.sin()]) * torch.cat([rates, rates]))

    def coordinates(self, grid: Grid) -> list[Tensor]:
        """Row and column of each patch for rotary positions, `[n]` each, in the order in which channels take them."""
        config = self.config
        device = None if self.freqs is None else self.freqs.device
        axes = [torch.arange(side, device=device, dtype=torch.float32) + config.rope_offset for side in grid]
        if config.rope == "dinov3":
            axes = [2 * (axis + 0.5) / side - 1 for axis, side in zip(axes, grid, strict=True)]
        elif config.rope_reference:  # as if the image had the size that the model was trained with
            axes = [axis / side * config.rope_reference for axis, side in zip(axes, grid, strict=True)]
        rows, columns = (axis.flatten() for axis in torch.meshgrid(*axes, indexing="ij"))
        return [columns, rows] if config.rope_order == "xy" else [rows, columns]

    def fixed_angles(self, grid: Grid) -> Tensor:
        """The angle by which rotary positions turn each pair of channels: `[n k/2]`, one half for each coordinate."""
        quarter = self.config.width // self.config.heads // 4
        periods = self.config.rope_temperature ** (torch.arange(quarter, dtype=torch.float32) / quarter)
        rates = 2 * math.pi / periods if self.config.rope == "dinov3" else 1 / periods
        return torch.cat([axis[:, None] * rates for axis in self.coordinates(grid)], dim=-1)

    def learned_angles(self, grid: Grid, layer: int) -> Tensor:
        """The angle by which rotary positions turn each pair of channels in each head of a block: `[h n k/2]`."""
        assert self.freqs is not None
        first, second = (axis[:, None] for axis in self.coordinates(grid))  # [n 1]
        rates = self.freqs[:, layer, :, None].float()  # [2 h 1 k/2]
        return first * rates[0] + second * rates[1]

    def sines(self, angles: Tensor) -> Tensor:
        """Sine and cosine of rotary positions for each channel: `[… n k/2]` → `[2 … n k]`."""
        angles = torch.cat([angles, angles], dim=-1) if self.halves else angles.repeat_interleave(2, dim=-1)
        return torch.stack([angles.sin(), angles.cos()])

    @contextmanager
    def at(self, grid: Grid) -> Iterator[None]:
        """Rotate the patches of another grid inside the `with`; the grid's sides may be a graph's symbols."""
        before = self.grid, self.rotation
        self.grid = grid
        if self.rotation is not None:
            self.rotation = self.sines(self.fixed_angles(grid)).to(self.rotation)
        try:
            yield
        finally:
            self.grid, self.rotation = before

    def forward(self, x: Tensor, layer: int = 0) -> Tensor:
        """Rotate queries or keys of a block, `[b h t k]`; the first tokens, which are no patches, stay as they are."""
        patches = x[:, :, self.prefix :]
        if patches.shape[2] == 0:  # only prefix tokens are asked for
            return x
        rotation = self.rotation
        if rotation is None:
            rotation = self.sines(self.learned_angles(self.grid, layer)).to(x.dtype)
        sine, cosine = rotation.unbind(0)  # [n k] or [h n k]
        rotated = patches * cosine + self.quarter_turn(patches) * sine
        return torch.cat([x[:, :, : self.prefix], rotated.to(x.dtype)], dim=2)

    def quarter_turn(self, x: Tensor) -> Tensor:
        """Rotate each pair of channels by 90 degrees, for rotary positions: (a, b) → (-b, a)."""
        if self.halves:
            a, b = x.chunk(2, dim=-1)
            return torch.cat([-b, a], dim=-1)
        return torch.stack([-x[..., 1::2], x[..., ::2]], dim=-1).flatten(-2)


def share_rotation(rope: RotaryPositions | None, blocks: Iterable[Any]) -> RotaryPositions | None:
    """Let the attention of every block rotate queries and keys alike; return the rotation, which is the network's."""
    for layer, block in enumerate(blocks):
        block.attn.rotary = () if rope is None else (rope, layer)  # in a tuple: it is not a part of the block
    return rope


def rotate(attention: Any, x: Tensor) -> Tensor:
    """Rotate queries or keys `[b h t k]` as an attention layer does; they stay as they are if it has no rotation."""
    if not attention.rotary:
        return x
    rope, layer = attention.rotary
    rotated: Tensor = rope(x, layer)
    return rotated
