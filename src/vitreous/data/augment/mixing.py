"""MixUp and CutMix: each image is mixed with the one before it in the batch, and so are their targets.

Each image has a mix of its own; torchvision draws one a batch. The rest is torchvision's, and equal to it.

Shapes:  b images   c colours   h height   w width   k classes
"""

import torch
from torch import Tensor, nn

from vitreous.data.augment.geometry import Box, fill_box
from vitreous.data.counter_random import Chance

QUANTILES = 4096


def list_quantiles(alpha: float) -> Tensor:
    """Equally likely values of Beta(alpha, alpha), in order: float64 `[4096]`.

    >>> list_quantiles(1.0)[:2] * 4096
    tensor([0.5000, 1.5000], dtype=torch.float64)
    """
    from scipy.special import betaincinv  # scikit-learn brings scipy; here, to start without it

    ranks = (torch.arange(QUANTILES, dtype=torch.float64) + 0.5) / QUANTILES
    return torch.as_tensor(betaincinv(alpha, alpha, ranks.numpy()))


def place_box(kept: Tensor, x: Tensor, y: Tensor, size: tuple[int, int]) -> Box:
    """CutMix's box around (x, y), cut off at the edges, for keeping about `kept` of the image outside it."""
    height, width = size
    reach = 0.5 * (1.0 - kept).sqrt()
    across, along = (reach * width).long(), (reach * height).long()
    top, left = (y - along).clamp(min=0), (x - across).clamp(min=0)
    return top, left, (y + along).clamp(max=height) - top, (x + across).clamp(max=width) - left


def mix(x: Tensor, own: Tensor, other: Tensor) -> Tensor:
    """`own` of each entry and `other` of the one before it."""
    return x.roll(1, 0) * other + x * own


class Mix(nn.Module):
    """MixUp with Beta(`mixup`, `mixup`), CutMix with Beta(`cutmix`, `cutmix`), or for each image one of the two."""

    mixup_quantiles: Tensor  # float64 [4096]
    cutmix_quantiles: Tensor

    def __init__(self, mixup: float, cutmix: float, share: float = 1.0) -> None:
        super().__init__()
        if min(mixup, cutmix) < 0 or max(mixup, cutmix) == 0:
            raise ValueError(f"mixup is {mixup} and cutmix {cutmix}: one must be above 0 and none below")
        self.mixup, self.cutmix, self.share = mixup, cutmix, share
        for name, alpha in (("mixup_quantiles", mixup), ("cutmix_quantiles", cutmix)):
            self.register_buffer(name, list_quantiles(alpha) if alpha else torch.zeros(0), persistent=False)

    def forward(self, images: Tensor, targets: Tensor, chance: Chance) -> tuple[Tensor, Tensor]:
        """Float `[b c h w]` and `[b k]` → the same, mixed."""
        rank = (chance.uniform("mix quantile") * QUANTILES).long()
        whole = chance.uniform("mix at all") >= self.share  # these keep all of themselves
        if not self.cutmix:
            return self.blend(images, targets, self.mixup_quantiles[rank].masked_fill(whole, 1.0))
        kept = self.cutmix_quantiles[rank].masked_fill(whole, 1.0)  # an empty box
        cut, kept = self.draw_cut(kept, (images.shape[2], images.shape[3]), chance)
        if not self.mixup:
            return torch.where(cut, images.roll(1, 0), images), self.blend_targets(targets, kept)
        blended = chance.uniform("mix by blending") < 0.5
        kept = torch.where(blended, self.mixup_quantiles[rank].masked_fill(whole, 1.0), kept)
        faded = self.blend(images, targets, kept)
        patched = torch.where(cut, images.roll(1, 0), images)
        return torch.where(blended[:, None, None, None], faded[0], patched), faded[1]

    def draw_cut(self, kept: Tensor, size: tuple[int, int], chance: Chance) -> tuple[Tensor, Tensor]:
        """The pixels of each image's box, bool `[b 1 h w]`, and what is truly kept outside it, float64 `[b]`."""
        x, y = chance.whole("mix x", 0, size[1] - 1), chance.whole("mix y", 0, size[0] - 1)
        box = place_box(kept, x, y, size)
        kept = 1.0 - (box[2] * box[3]).double() / (size[0] * size[1])
        return fill_box(box, size), kept

    def blend(self, images: Tensor, targets: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
        """MixUp."""
        own, other = kept.float()[:, None, None, None], (1.0 - kept).float()[:, None, None, None]
        return mix(images, own, other), self.blend_targets(targets, kept)

    def blend_targets(self, targets: Tensor, kept: Tensor) -> Tensor:
        """The targets of both images by their shares."""
        return mix(targets, kept.float()[:, None], (1.0 - kept).float()[:, None])
