"""`ConvStem`: MobileCLIP's convolutions before the patch embedding (Vasu et al., 2024), and which stem a config has.

Kernels are as large as their strides, so that none sees beyond a patch: with the patch embedding, which is the last of
them, they are an MLP over a pyramid of 4×4, 8×8 and 16×16 pixels. Batch norms of a checkpoint are folded into the
convolutions: a batch norm at inference is one scale and one shift for each channel.

Shapes:  b images · c channels · H W pixels
"""

from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.models.hybrid_stem import HybridStem

if TYPE_CHECKING:
    from vitreous.models.vit_config import ViTConfig

STRIDES = (4, 2)


class ConvStem(nn.ModuleList):
    """Images to a feature map: `[b c H W]` → `[b width/4 H/8 W/8]`."""

    def __init__(self, channels: int, width: int) -> None:
        sides = zip((channels, width // 4), STRIDES, strict=True)
        super().__init__(nn.Conv2d(inputs, width // 4, stride, stride) for inputs, stride in sides)
        self.channels = width // 4

    @property
    def filters(self) -> Tensor:
        """The filters of the first convolution: `[width/4 c 4 4]`."""
        return next(self.parameters())

    def forward(self, x: Tensor) -> Tensor:
        for convolution in self:
            x = F.gelu(convolution(x))
        return x


def build_stem(config: "ViTConfig") -> HybridStem | ConvStem | None:
    """Build the network that a model has before its patch embedding, if it has one."""
    if config.stem == "mobileclip":
        return ConvStem(config.channels, config.width)
    return None if config.stem == "none" else HybridStem(config.stem, config.channels)
