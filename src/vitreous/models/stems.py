"""Networks before the patch embedding: the paper's hybrid (`HybridStem`, section 3.1) and MobileCLIP's `ConvStem`.

`HybridStem` is the first stages of BiT's ResNet (Kolesnikov et al., 2020): group norms, and convolutions whose weights
are standardised (Qiao et al., 2019). Patches are then cut from its feature map instead of the image.

`ConvStem` is MobileCLIP's (Vasu et al., 2024). Kernels are as large as their strides, so that none sees beyond a patch:
with the patch embedding, which is the last of them, they are an MLP over a pyramid of 4×4, 8×8 and 16×16 pixels. Batch
norms of a checkpoint are folded into the convolutions: a batch norm at inference is one scale and one shift for each
channel.

Shapes:  b images · c channels · H W pixels
"""

import math
from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    from vitreous.models.vit_config import ViTConfig

STEMS: dict[str, tuple[int, ...]] = {  # blocks of each stage
    "r": (),
    "r26": (2, 2, 2, 2),
    "r50-s16": (3, 4, 9),
    "r50-s32": (3, 4, 6, 3),
}
GROUPS = 32
STRIDES = (4, 2)  # of `ConvStem`


def pad_same(x: Tensor, kernel: int, stride: int, value: float = 0.0) -> Tensor:
    """Pad before the stem's convolutions as TensorFlow's SAME: ⌈side / stride⌉ positions, an odd pixel right and below.

    >>> import torch
    >>> pad_same(torch.ones(1, 1, 4, 4), 3, 2).shape
    torch.Size([1, 1, 5, 5])
    """
    down, right = (max((math.ceil(side / stride) - 1) * stride + kernel - side, 0) for side in x.shape[-2:])
    return F.pad(x, (right // 2, right - right // 2, down // 2, down - down // 2), value=value)


class StandardizedConv(nn.Conv2d):
    """A convolution whose filters have mean 0 and variance 1."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1) -> None:
        super().__init__(inputs, outputs, kernel, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = pad_same(x, self.kernel_size[0], self.stride[0])
        return F.conv2d(x, self.standardized(), stride=self.stride)

    def standardized(self) -> Tensor:
        """Standardise the weights of a stem's convolution, each filter by itself: `[out in height width]`."""
        filters = self.weight.reshape(1, self.out_channels, -1)
        return F.batch_norm(filters, None, None, training=True, eps=1e-8).reshape_as(self.weight)  # each by itself


class Bottleneck(nn.Module):
    """ResNet's block: 1×1, 3×3 and 1×1 convolutions with a residual connection."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        inner = outputs // 4
        self.downsample: nn.ModuleDict | None = None
        if inputs != outputs or stride > 1:
            conv = StandardizedConv(inputs, outputs, 1, stride)
            self.downsample = nn.ModuleDict({"conv": conv, "norm": nn.GroupNorm(GROUPS, outputs)})
        self.conv1, self.norm1 = StandardizedConv(inputs, inner, 1), nn.GroupNorm(GROUPS, inner)
        self.conv2, self.norm2 = StandardizedConv(inner, inner, 3, stride), nn.GroupNorm(GROUPS, inner)
        self.conv3, self.norm3 = StandardizedConv(inner, outputs, 1), nn.GroupNorm(GROUPS, outputs)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        y = self.norm3(self.conv3(y))
        if self.downsample is not None:
            x = self.downsample["norm"](self.downsample["conv"](x))
        return F.relu(y + x)


class HybridStem(nn.Module):
    """Images to a feature map: `[b c H W]` → `[b channels H/stride W/stride]`."""

    def __init__(self, kind: str, channels: int) -> None:
        super().__init__()
        first = nn.ModuleDict({"conv": StandardizedConv(channels, 64, 7, 2), "norm": nn.GroupNorm(GROUPS, 64)})
        self.channels, self.stride = 64, 4
        self.stages: nn.ModuleList | None = None
        if not STEMS[kind]:  # its layers have no name of their own in timm's checkpoints
            self.conv, self.norm = first["conv"], first["norm"]
            return
        self.stem, self.stages = first, nn.ModuleList()
        for number, depth in enumerate(STEMS[kind]):
            outputs, stride = 256 * 2**number, 1 if number == 0 else 2
            blocks = [Bottleneck(self.channels, outputs, stride)]
            blocks += [Bottleneck(outputs, outputs, 1) for _ in range(depth - 1)]
            self.stages.append(nn.ModuleDict({"blocks": nn.Sequential(*blocks)}))
            self.channels, self.stride = outputs, self.stride * stride

    @property
    def filters(self) -> Tensor:
        """The first weights of the stem before a hybrid's patch embedding, standardised: `[64 c 7 7]`."""
        return self._first()[0].standardized()

    def _first(self) -> tuple[StandardizedConv, nn.Module]:
        """Return the hybrid stem's first convolution and its norm."""
        held = self if self.stages is None else self.stem
        conv, norm = held.get_submodule("conv"), held.get_submodule("norm")
        assert isinstance(conv, StandardizedConv)
        return conv, norm

    def forward(self, x: Tensor) -> Tensor:
        conv, norm = self._first()
        x = F.relu(norm(conv(x)))
        x = F.max_pool2d(pad_same(x, 3, 2, value=-math.inf), 3, 2)
        for stage in self.stages or ():
            x = stage["blocks"](x)  # type: ignore[index]
        return x


class ConvStem(nn.ModuleList):
    """Images to a feature map: `[b c H W]` → `[b width/4 H/8 W/8]`."""

    def __init__(self, channels: int, width: int) -> None:
        sides = zip((channels, width // 4), STRIDES, strict=True)
        super().__init__(nn.Conv2d(inputs, width // 4, stride, stride) for inputs, stride in sides)
        self.channels = width // 4

    @property
    def filters(self) -> Tensor:
        """The first weights of the convolutional stem, which read the image: `[width/4 c 4 4]`."""
        return next(self.parameters())

    def forward(self, x: Tensor) -> Tensor:
        for convolution in self:
            x = F.gelu(convolution(x))
        return x


def build_stem(config: "ViTConfig") -> HybridStem | ConvStem | None:
    """Build the stem, the network that a model has before its patch embedding, if it has one."""
    if config.stem == "mobileclip":
        return ConvStem(config.channels, config.width)
    return None if config.stem == "none" else HybridStem(config.stem, config.channels)
