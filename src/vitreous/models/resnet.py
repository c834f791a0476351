"""ResNet, the baseline: torchvision's ResNets (18 to 152) with the interface of `ViT`.

On images of 64 pixels and less the usual stem (7×7 with stride 2, then a max-pool) drops fifteen sixteenths of the
positions before the first block, which would make an unfairly weak baseline. The `small` stem (3×3 with stride 1, no
pool) is the ResNet paper's own for CIFAR-10. `width` makes a narrow ResNet, and 14 layers have three stages, as that
paper's for CIFAR-10 (6n + 2 layers): `resnet14_small:width=9` has as many parameters as `vit_femto_patch4_32`. All
other keys and shapes are torchvision's.
"""

import re
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock, Bottleneck
from torchvision.models.resnet import ResNet as TorchvisionResNet

from vitreous.models.variants import split_changes
from vitreous.models.vit import check_batch

DEPTHS: dict[int, tuple[type[BasicBlock | Bottleneck], list[int]]] = {
    14: (BasicBlock, [2, 2, 2, 0]),
    18: (BasicBlock, [2, 2, 2, 2]),
    34: (BasicBlock, [3, 4, 6, 3]),
    50: (Bottleneck, [3, 4, 6, 3]),
    101: (Bottleneck, [3, 4, 23, 3]),
    152: (Bottleneck, [3, 8, 36, 3]),
}


@dataclass(frozen=True)
class ResNetConfig:
    """A ResNet's shape."""

    depth: int = 50
    """14, 18, 34, 50, 101 or 152 layers."""
    classes: int = 1000
    """Outputs of the head; 0 means no head: the model returns its pooled features."""
    image_size: int | tuple[int, int] = 224
    """Image size that the preprocessing produces; the network itself takes any."""
    stem: Literal["imagenet", "small"] = "imagenet"
    """First layers: 7×7 with stride 2 and a max-pool, or for small images 3×3 with stride 1 and no pool."""
    channels: int = 3
    """Colour channels of an image."""
    width: int = 64
    """Channels of the first stage; each later stage has twice as many as the one before."""

    def __post_init__(self) -> None:
        if self.depth not in DEPTHS:
            known = ", ".join(str(depth) for depth in DEPTHS)
            raise ValueError(f"a ResNet has {known} layers, got depth={self.depth}")
        if self.stem not in ("imagenet", "small"):
            raise ValueError(f"stem must be imagenet or small, got {self.stem!r}")
        if self.width < 1 or self.channels < 1:
            raise ValueError(f"width and channels must be at least 1, got {self.width} and {self.channels}")

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of a ResNet's image."""
        return (self.image_size, self.image_size) if isinstance(self.image_size, int) else self.image_size

    @property
    def stride(self) -> int:
        """Pixels between two positions of a ResNet's last feature map."""
        stride: int = (32 if self.stem == "imagenet" else 8) >> DEPTHS[self.depth][1].count(0)
        return stride

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of a ResNet's last feature map."""
        return -(-self.size[0] // self.stride), -(-self.size[1] // self.stride)

    @property
    def feature_width(self) -> int:
        """Length of a ResNet's pooled features."""
        block, layers = DEPTHS[self.depth]
        count: int = self.width * 2 ** (3 - layers.count(0)) * block.expansion
        return count


class ResNet(TorchvisionResNet):  # type: ignore[misc]  # torchvision has no types
    """torchvision's ResNet with its state-dict keys: images `[b 3 H W]` → logits `[b classes]`.

    >>> model = ResNet(ResNetConfig(depth=18, classes=10)).eval()
    >>> model(torch.randn(1, 3, 64, 64)).shape, model.features(torch.randn(1, 3, 64, 64)).shape
    (torch.Size([1, 10]), torch.Size([1, 512]))
    """

    card: Any = None

    def __init__(self, config: ResNetConfig) -> None:
        block, layers = DEPTHS[config.depth]
        super().__init__(block, layers, num_classes=max(config.classes, 1))
        self.config, small = config, config.stem == "small"
        changed = small or config.channels != 3
        if config.width != 64 or 0 in layers:
            self.inplanes, changed = config.width, True
            self.bn1 = nn.BatchNorm2d(config.width)
            for i, count in enumerate(layers):
                made = self._make_layer(block, config.width << i, count, stride=1 + (i > 0)) if count else nn.Identity()
                setattr(self, f"layer{i + 1}", _initialised(made))
            self.fc: nn.Module = nn.Linear(config.feature_width, max(config.classes, 1))
        if changed:
            kernel, stride, padding = (3, 1, 1) if small else (7, 2, 3)
            first = nn.Conv2d(config.channels, config.width, kernel, stride, padding, bias=False)
            self.conv1: Any = _initialised(first)
        if small:
            self.maxpool: nn.Module = nn.Identity()
        if not config.classes:
            self.reset_classifier(0)

    def forward(self, x: Tensor) -> Tensor:
        check_batch(x)
        logits: Tensor = super().forward(x)
        return logits

    def features(self, x: Tensor) -> Tensor:
        """Compute a ResNet's pooled features, without the head: `[b 3 H W]` → `[b feature_width]`."""
        return torch.flatten(self.avgpool(self.feature_map(x)), 1)

    def feature_map(self, x: Tensor) -> Tensor:
        """Compute a ResNet's last feature map, before it is pooled: `[b 3 H W]` → `[b feature_width rows columns]`."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        features: Tensor = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return features

    def reset_classifier(self, classes: int) -> None:
        """Replace a ResNet's head by a new linear one: `classes` outputs, or none for 0."""
        self.config, self.card = replace(self.config, classes=classes), self.card and self.card.with_new_head(classes)
        self.fc = nn.Linear(self.config.feature_width, classes) if classes else nn.Identity()
        self.fc.to(next(self.parameters()))


def _initialised(part: Any) -> Any:
    """Draw the convolutions of a ResNet's new part as torchvision does."""
    for module in part.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return part


def resnet_config(name: str, **changes: Any) -> ResNetConfig | None:
    """Look up the config of `resnet14` to `resnet152`, or of `resnet18_small` and so on; None for any other name.

    >>> resnet_config("resnet14_small:width=9,channels=1").feature_width
    36
    >>> resnet_config("resnet50").image_size, resnet_config("resnet18_small").image_size, resnet_config("vit_b_16")
    (224, 32, None)
    """
    if (match := re.fullmatch(r"resnet(\d+)(_small)?(:.+)?", name)) is None:
        return None
    _, stated = split_changes(name, ResNetConfig)
    if match[3] and not stated:
        raise ValueError(f"{name}: fields follow a name as in resnet14_small:width=9,channels=1")
    usual = ResNetConfig(int(match[1]), image_size=32 if match[2] else 224, stem="small" if match[2] else "imagenet")
    return replace(usual, **(stated | changes))
