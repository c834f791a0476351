"""`Augment`: augment a whole batch on its device, each image with its own random numbers, and smooth its labels.

`Augment` turns uint8 pixels and labels into normalised images and soft targets. A mask, the last channel of the pixels,
is moved with its image. The result for an image depends on its seed, epoch and index alone, not on the batch; only
MixUp and CutMix use its neighbour. Nothing waits for the device or is copied to it, and no shape depends on random
numbers: a CUDA graph can record it, and a compiler can trace it.

Shapes:  b images   c colours   H W size as stored   h w size for the model   k classes
"""

import torch
from torch import Tensor, nn

from vitreous.data.augment.geometry import (
    crop_and_resize,
    crop_nearest,
    draw_crop,
    draw_erasure,
    draw_shift,
    fill_box,
    move,
)
from vitreous.data.augment.mixing import MixUpCutMix
from vitreous.data.augment.randaugment import SPACES, RandomOperations
from vitreous.data.counter_random import CounterRandom, allow_crc32_in_graph
from vitreous.data.masks import IGNORE


def soft_targets(labels: Tensor, classes: int, smoothing: float = 0.0) -> Tensor:
    """Make the one-hot targets of the augmentation pipeline, with label smoothing: int64 `[b]` → float32 `[b k]`.

    >>> soft_targets(torch.tensor([1]), 2, 0.5)
    tensor([[0.2500, 0.7500]])
    """
    hit = labels[:, None] == torch.arange(classes, device=labels.device)  # [b k]
    return hit.float() * (1.0 - smoothing) + smoothing / classes


class Augment(nn.Module):
    """Shift or crop, mirror, apply random operations, normalise, erase a box, mix with the neighbour; each is optional.

    >>> augment = Augment(size=(8, 8), mean=(0.5,), std=(0.5,), classes=10, shift=0.1, flip=True)
    >>> pixels, labels = torch.zeros(4, 1, 8, 8, dtype=torch.uint8), torch.arange(4)
    >>> images, targets = augment(pixels, labels, CounterRandom.of(seed=0, epoch=0, indices=labels))
    >>> images.shape, targets.shape
    (torch.Size([4, 1, 8, 8]), torch.Size([4, 10]))
    """

    mean: Tensor  # [c 1 1]
    std: Tensor

    def __init__(
        self,
        *,
        size: tuple[int, int],
        mean: tuple[float, ...],
        std: tuple[float, ...],
        classes: int,
        shift: float = 0.0,
        flip: bool = False,
        crop: tuple[float, float] | None = None,
        policy: str = "none",
        operations: int = 2,
        magnitude: int = 9,
        erasing: float = 0.0,
        mixup: float = 0.0,
        cutmix: float = 0.0,
        mix_share: float = 1.0,
        label_smoothing: float = 0.0,
        soft: bool = False,
        masks: bool = False,
    ) -> None:
        """Set up the options of augmentation.

        shift: the largest move as a share of the side, in whole pixels; the gap is black
        flip: mirror half of the images left-right
        crop: RandomResizedCrop's smallest and largest share of the area
        policy: none, trivial (TrivialAugmentWide) or rand (RandAugment: `operations` of strength `magnitude`)
        erasing: the probability to erase a box, which is filled with the mean
        mixup, cutmix: alpha of the Beta distribution; 0 for none; with both, each image gets either
        mix_share: the probability that an image is mixed
        label_smoothing: the share of a target that is spread over all classes
        soft: labels are targets already, float `[b k]`: several labels, or numbers
        masks: pixels have one more channel, a mask; its classes are the targets, and 255 is ignored
        """
        super().__init__()
        if len(mean) != len(std) or len(mean) not in (1, 3):
            raise ValueError(f"mean has {len(mean)} and std {len(std)} colours: both must have 1 or both 3")
        if policy not in ("none", *SPACES):
            raise ValueError(f"unknown policy {policy!r}: choose none, {' or '.join(SPACES)}")
        if crop is not None and not 0 < crop[0] <= crop[1] <= 1:
            raise ValueError(f"crop is {crop}: shares of the area, the smaller first, above 0 and up to 1")
        shares = {"shift": shift, "erasing": erasing, "mix_share": mix_share, "label_smoothing": label_smoothing}
        for name, share in shares.items():
            if not 0 <= share <= 1:
                raise ValueError(f"{name} is {share}: a share between 0 and 1 is expected")
        if soft and masks:
            raise ValueError("an image has soft targets or a mask: pass soft or masks, not both")
        if masks and (mixup or label_smoothing):
            name, advice = ("mixup", "cut with cutmix") if mixup else ("label_smoothing", "smooth in the loss")
            raise ValueError(f"{name} would blend the classes of a mask, which are whole numbers: {advice} instead")
        if soft and label_smoothing:
            raise ValueError("label_smoothing spreads a class over all, and soft targets are none: leave it out")
        self.size, self.classes, self.soft, self.masks = size, classes, soft, masks
        self.shift, self.flip, self.crop, self.erasing = shift, flip, crop, erasing
        self.label_smoothing = label_smoothing
        self.register_buffer("mean", torch.tensor(mean)[:, None, None], persistent=False)
        self.register_buffer("std", torch.tensor(std)[:, None, None], persistent=False)
        self.policy: RandomOperations | None = None
        if policy != "none":
            options = {"operations": operations, "magnitude": magnitude} if policy == "rand" else {}
            self.policy = RandomOperations(policy, size, masks=masks, **options)
        self.mix = MixUpCutMix(mixup, cutmix, mix_share) if mixup or cutmix else None
        allow_crc32_in_graph()

    def forward(self, pixels: Tensor, labels: Tensor, rng: CounterRandom) -> tuple[Tensor, Tensor]:
        """Augment a batch: uint8 `[b c H W]`, int64 `[b]` → float32 normalised `[b c h w]`, float32 targets `[b k]`.

        With `soft`, labels are float `[b k]`. With `masks`, pixels are `[b c+1 H W]`, and targets int64 `[b h w]`.
        """
        varied = self.vary(pixels, rng)
        images = self.plain(varied)
        targets = self.mask_of(varied) if self.masks else self.soften(labels)
        if self.erasing:
            box, drawn = draw_erasure(rng, self.size, self.erasing)
            erased = fill_box(box, self.size) & drawn[:, None, None, None]  # [b 1 h w]
            images = images.masked_fill(erased, 0.0)
            targets = targets.masked_fill(erased[:, 0], IGNORE) if self.masks else targets
        return self.mix(images, targets, rng) if self.mix is not None else (images, targets)

    def soften(self, labels: Tensor) -> Tensor:
        """Return the targets that the augmentation pipeline gives: smoothed labels, or soft ones as they are.

        Labels are int64 `[b]`, soft ones and targets float32 `[b k]`.
        """
        return labels if self.soft else soft_targets(labels, self.classes, self.label_smoothing)

    def vary(self, pixels: Tensor, rng: CounterRandom) -> Tensor:
        """Crop, shift, mirror and apply the policy of augmentation: uint8 `[b c H W]` → uint8 `[b c h w]`."""
        if self.masks:  # the mask as a negative: gaps are black, and so ignored
            pixels = torch.cat([pixels[:, :-1], IGNORE - pixels[:, -1:]], dim=1)
        if self.crop is not None:
            box = draw_crop(rng, (pixels.shape[2], pixels.shape[3]), self.crop)
            whole, colours = pixels, len(self.mean)
            pixels = crop_and_resize(whole[:, :colours], box, self.size)
            if self.masks:
                pixels = torch.cat([pixels, crop_nearest(whole[:, colours:], box, self.size)], dim=1)
        self.check_pixels(pixels, masks=self.masks)
        if self.shift or self.flip:
            down = draw_shift(rng, "shift down", self.shift, self.size[0])
            right = draw_shift(rng, "shift right", self.shift, self.size[1])
            pixels = move(pixels, down, right, rng.uniform("flip") < 0.5 * self.flip)
        pixels = pixels if self.policy is None else self.policy(pixels, rng)
        return torch.cat([pixels[:, :-1], IGNORE - pixels[:, -1:]], dim=1) if self.masks else pixels

    def plain(self, pixels: Tensor) -> Tensor:
        """Normalise a batch without augmenting it, for evaluation, and without masks: uint8 → float32 `[b c h w]`."""
        if self.masks and pixels.shape[1] == len(self.mean) + 1:
            pixels = pixels[:, :-1]
        self.check_pixels(pixels)
        return (pixels.float() * (1.0 / 255.0)).sub_(self.mean).div_(self.std)  # in torchvision's order, for its bits

    def mask_of(self, pixels: Tensor) -> Tensor:
        """Return a batch's masks without augmenting it, its last channel: uint8 `[b c+1 h w]` → int64 `[b h w]`."""
        self.check_pixels(pixels, masks=True)
        return pixels[:, -1].long()

    def check_pixels(self, pixels: Tensor, *, masks: bool = False) -> None:
        """Raise for pixels to augment that would be broadcast or misread silently."""
        expected = (len(self.mean) + masks, *self.size)
        if pixels.dtype != torch.uint8 or tuple(pixels.shape[1:]) != expected:
            raise ValueError(
                f"expected uint8 pixels [b {' '.join(map(str, expected))}], got {pixels.dtype} {list(pixels.shape)}: "
                "resize the images, or pass crop=(0.25, 1.0) to crop them to this size"
            )
