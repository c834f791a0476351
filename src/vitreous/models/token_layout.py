"""`TokenLayout`: the order of a ViT's tokens, and the conversion between token indices and the grid of patches.

A ViT's sequence is, in this order, the class token, the distillation token, the registers (each only if the model has
it) and then the patches, row by row. All code that maps tokens to the image uses `TokenLayout`, so that every family
and non-square images are handled in the same way, and images that patches do not fill: patches begin at the top left,
and pixels that are left over at the right and the bottom are read by none.
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class TokenLayout:
    """The order of a model's tokens.

    >>> layout = TokenLayout(grid=(2, 3), registers=4)
    >>> layout.tokens, layout.prefix, layout.index(row=1, column=2)
    (11, 5, 10)
    """

    grid: tuple[int, int]
    """Rows and columns of patches."""
    class_token: bool = True
    distillation_token: bool = False
    registers: int = 0
    patch_size: tuple[int, int] = (1, 1)
    """Height and width of a patch in pixels."""

    @property
    def prefix(self) -> int:
        """Number of tokens that stand before the first patch in a model's layout of tokens."""
        return self.class_token + self.distillation_token + self.registers

    @property
    def patches(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def tokens(self) -> int:
        return self.prefix + self.patches

    @property
    def covered(self) -> tuple[int, int]:
        """Height and width of the part of the image that patches read, from its top left."""
        return self.grid[0] * self.patch_size[0], self.grid[1] * self.patch_size[1]

    @property
    def class_index(self) -> int | None:
        return 0 if self.class_token else None

    @property
    def distillation_index(self) -> int | None:
        return int(self.class_token) if self.distillation_token else None

    def index(self, row: int, column: int) -> int:
        """Return the index of the token of the patch at this row and column."""
        rows, columns = self.grid
        if not (0 <= row < rows and 0 <= column < columns):
            raise ValueError(f"patch ({row}, {column}) lies outside the {rows}×{columns} grid")
        return self.prefix + row * columns + column

    def patch(self, index: int) -> tuple[int, int] | None:
        """Convert a model's token index to row and column in the grid of patches; None if it is no patch."""
        if not 0 <= index < self.tokens:
            raise ValueError(f"token {index} does not exist: this model has tokens 0 to {self.tokens - 1}")
        return None if index < self.prefix else divmod(index - self.prefix, self.grid[1])

    def box(self, patch: int) -> tuple[int, int, int, int]:
        """Return left, top, right and bottom of the pixels that a patch reads; patches are counted row by row.

        >>> TokenLayout(grid=(2, 3), patch_size=(16, 14)).box(4)
        (14, 16, 28, 32)
        """
        if not 0 <= patch < self.patches:
            raise ValueError(f"there is no patch {patch}: this model has 0 to {self.patches - 1}")
        (row, column), (height, width) = divmod(patch, self.grid[1]), self.patch_size
        return column * width, row * height, (column + 1) * width, (row + 1) * height

    def name(self, index: int) -> str:
        """Name a token by its index in the model's layout: class, distillation, a register, or a patch."""
        if (position := self.patch(index)) is not None:
            return f"patch ({position[0]}, {position[1]})"
        if index == self.class_index:
            return "class"
        if index == self.distillation_index:
            return "distillation"
        return f"register {index - self.class_token - self.distillation_token}"

    def to_grid(self, values: Tensor, dim: int = -1) -> Tensor:
        """Arrange one value for each token on the grid of patches: `[… t …]` → `[… rows columns …]`.

        `values` holds all tokens, or only the patches.

        >>> import torch
        >>> TokenLayout(grid=(2, 2)).to_grid(torch.arange(5))
        tensor([[1, 2],
                [3, 4]])
        """
        count = values.shape[dim]
        if count == self.tokens:
            values = values.narrow(dim, self.prefix, self.patches)
        elif count != self.patches:
            raise ValueError(f"expected {self.tokens} tokens or {self.patches} patches, got {count}")
        result: Tensor = values.unflatten(dim, self.grid)
        return result


def covered(model: nn.Module, size: tuple[int, ...]) -> tuple[int, int]:
    """Return height and width of what a model's maps lie over in an image of this size, from its top left.

    It is what a ViT's patches read, and the whole image of another network.
    """
    layout: TokenLayout | None = getattr(model, "layout", None)
    return (size[0], size[1]) if layout is None else layout.covered


def to_pixels(kept: Tensor, size: tuple[int, ...], model: nn.Module) -> Tensor:
    """Mark the pixels that are shown where some cells of a grid are kept: bool `[k rows columns]` → `[k 1 H W]`.

    Cells divide what a ViT's patches read, and the whole image of another network; all other pixels are shown.

    >>> import torch
    >>> to_pixels(torch.tensor([[[True, False]]]), (1, 4), nn.Flatten())
    tensor([[[[ True,  True, False, False]]]])
    """
    height, width = covered(model, size)
    shown = F.interpolate(kept[:, None].float(), size=(height, width), mode="nearest-exact")
    return F.pad(shown, (0, size[1] - width, 0, size[0] - height), value=1.0) > 0
