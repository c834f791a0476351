"""Artifacts: patch tokens whose norm stands far out, which a model uses as registers (Darcet et al., 2024)."""

from dataclasses import dataclass

from torch import Tensor

from vitreous.inside.representations import token_norms
from vitreous.models.tokens import TokenLayout

FACTOR = 4.0
"""How many times the median norm of a block's patches an outlier has. Ordinary patches stay below 2.5 times."""


@dataclass(frozen=True)
class Artifacts:
    """The artifacts of an image: patches whose tokens are outliers after some block."""

    patches: tuple[int, ...] = ()
    """Their indices among the patches, in rising order."""
    block: int = 0
    """The first block after which any of them stands out."""
    norm: float = 0.0
    """Their mean norm where it is largest, over the blocks."""
    usual: float = 0.0
    """The median norm of that block's patches."""

    def __bool__(self) -> bool:
        return bool(self.patches)


def find_artifacts(outputs: Tensor, layout: TokenLayout, factor: float = FACTOR) -> Artifacts:
    """Find artifacts: patches whose token is over `factor` times the median length after some block, `[blocks t d]`.

    >>> import torch
    >>> outputs = torch.ones(3, 5, 4)
    >>> outputs[1:, 2] *= 30
    >>> find_artifacts(outputs, TokenLayout(grid=(2, 2)))
    Artifacts(patches=(1,), block=1, norm=60.0, usual=2.0)
    """
    norms = token_norms(outputs.float(), layout).flatten(1)  # [blocks n]
    usual = norms.median(dim=1, keepdim=True).values
    outlying = norms > factor * usual  # [blocks n]
    patches = outlying.any(dim=0).nonzero().flatten()
    if not len(patches):
        return Artifacts()
    lengths = norms[:, patches].mean(dim=1)
    largest = int(lengths.argmax())
    return Artifacts(
        tuple(patches.tolist()),
        int(outlying.any(dim=1).nonzero()[0]),
        float(lengths[largest]),
        float(usual[largest]),
    )
