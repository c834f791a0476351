"""Relative position bias: a number for each head and offset of two patches, added to their attention score.

`RelativeTable` learns the numbers (T5, Raffel et al., 2020; on images BEiT, Bao et al., 2022); the class token, which
has no position, has three of its own. `RelativeMLP` computes them from the logarithm of the offset by a small network
(Swin Transformer V2, Liu et al., 2022), which fits any grid; the class token has none. Each block has a bias of its
own, or all share one: `share` then tells the blocks, so that a block computes the same alone as inside the network.

Shapes:  h heads · r c rows and columns of patches · n patches · t tokens
"""

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.models.hooks import masked


def spread(values: Tensor) -> Tensor:
    """Look up the relative position bias of each pair of patches: of each offset, `[h 2r-1 2c-1]`, → `[h n n]`.

    >>> spread(torch.tensor([[[-1, 0, 1]]]))  # one row of two patches: column of the query minus column of the key
    tensor([[[ 0, -1],
             [ 1,  0]]])
    """
    places = [torch.arange((side + 1) // 2, device=values.device) for side in values.shape[1:]]
    apart = [place[:, None] - place + len(place) - 1 for place in places]  # [r r], [c c]
    pairs = values[:, apart[0][:, None, :, None], apart[1][None, :, None, :]]  # [h r c r c]
    return pairs.flatten(1, 2).flatten(2, 3)


class RelativeTable(nn.Module):
    """Relative position bias from a learned number for each offset and head, three for the class token: `[h t t]`."""

    def __init__(self, grid: tuple[int, int], heads: int, class_token: bool) -> None:
        super().__init__()
        self.offsets = tuple(2 * side - 1 for side in grid)
        count = self.offsets[0] * self.offsets[1] + 3 * class_token
        self.relative_position_bias_table = nn.Parameter(torch.zeros(count, heads))

    def forward(self) -> Tensor:
        count = self.offsets[0] * self.offsets[1]
        table = self.relative_position_bias_table.T  # [h offsets]
        bias = spread(table[:, :count].unflatten(1, self.offsets))  # [h n n]
        if table.shape[1] == count:
            return bias
        from_class, to_class, itself = table[:, count:, None].unbind(1)  # [h 1]
        rows = torch.cat([to_class[:, None].expand(-1, bias.shape[1], -1), bias], dim=2)  # [h n t]
        first = torch.cat([itself, from_class.expand(-1, bias.shape[1])], dim=1)  # [h t]
        return torch.cat([first[:, None], rows], dim=1)


class RelativeMLP(nn.Module):
    """Relative position bias computed from the logarithm of each offset, none for the class token: `[h t t]`."""

    def __init__(self, grid: tuple[int, int], heads: int, class_token: bool, hidden: int) -> None:
        super().__init__()
        self.grid, self.class_token = grid, class_token
        self.mlp = nn.ModuleDict({"fc1": nn.Linear(2, hidden), "fc2": nn.Linear(hidden, heads)})

    def forward(self) -> Tensor:
        weight = next(self.parameters())
        rows, columns = (torch.arange(1 - side, side, device=weight.device) for side in self.grid)
        apart = torch.stack(torch.meshgrid(rows, columns, indexing="ij"), dim=-1).to(weight.dtype)  # [2r-1 2c-1 2]
        numbers = self.mlp["fc2"](F.relu(self.mlp["fc1"](apart.sign() * apart.abs().log1p())))  # [2r-1 2c-1 h]
        bias = spread(numbers.permute(2, 0, 1))
        return F.pad(bias, (1, 0, 1, 0)) if self.class_token else bias


class FixedBias(nn.Module):
    """A relative position bias that was computed once, for inference: `[h t t]`."""

    def __init__(self, bias: Tensor) -> None:
        super().__init__()
        self.register_buffer("bias", bias)

    def forward(self) -> Tensor:
        bias: Tensor = self.get_buffer("bias")
        return bias


def relative_position(config: Any, shared: bool = False) -> RelativeTable | RelativeMLP | None:
    """Build the relative position bias of one block, or the `shared` one, as a `ViTConfig` says; None without one."""
    kind = config.relative_position.removeprefix("shared-" if shared else "")
    parts = config.grid, config.heads, config.class_token
    if kind == config.relative_position and shared:
        return None
    if kind == "mlp":
        return RelativeMLP(*parts, config.relative_width)
    return RelativeTable(*parts) if kind == "table" else None


def share(bias: nn.Module | None, blocks: Iterable[Any]) -> nn.Module | None:
    """Let the attention of every block use one relative position bias, which belongs to the network; return it."""
    for block in blocks:
        block.attn.shared_rel_pos = () if bias is None else (bias,)  # in a tuple: it is not a part of the block
    return bias


def add_relative_position(attention: Any, mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Add the relative position bias to a mask, if there is one: `[1 h t t]`, or the mask as it is."""
    source = attention.rel_pos if attention.rel_pos is not None else next(iter(attention.shared_rel_pos), None)
    return mask if source is None else masked(source()[None].to(dtype), mask)
