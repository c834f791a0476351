"""`TokenLayout`: the order of a ViT's tokens, and the conversion between token indices and the grid of patches.

A ViT's sequence is, in this order, the class token, the distillation token, the registers (each only if the model has
it) and then the patches, row by row. All code that maps tokens to the image uses `TokenLayout`, so that every family
and non-square images are handled in the same way.
"""

from dataclasses import dataclass

from torch import Tensor


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
