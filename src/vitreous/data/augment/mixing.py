"""MixUp and CutMix: mix each image, and its target or mask, with the one before it in the batch.

Each image has a mix of its own; torchvision draws one a batch. The rest equals torchvision's.

Shapes:  b images   c colours   h height   w width   k classes
"""

import torch
from torch import Tensor, nn

from vitreous.data.augment.geometry import Box, fill_box
from vitreous.data.counter_random import CounterRandom

QUANTILES = 4096


def list_quantiles(alpha: float) -> Tensor:
    """List 4096 quantiles of Beta(alpha, alpha), from which MixUp and CutMix draw their shares: float64 `[4096]`.

    >>> list_quantiles(1.0)[:2] * 4096
    tensor([0.5000, 1.5000], dtype=torch.float64)
    """
    from scipy.special import betaincinv  # imported late, for a faster start

    ranks = (torch.arange(QUANTILES, dtype=torch.float64) + 0.5) / QUANTILES
    return torch.as_tensor(betaincinv(alpha, alpha, ranks.numpy()))


def cutmix_box(kept: Tensor, x: Tensor, y: Tensor, size: tuple[int, int]) -> Box:
    """Return CutMix's box around (x, y), clipped at the edges; it leaves about `kept` of the image outside."""
    height, width = size
    reach = 0.5 * (1.0 - kept).sqrt()
    across, along = (reach * width).long(), (reach * height).long()
    top, left = (y - along).clamp(min=0), (x - across).clamp(min=0)
    return top, left, (y + along).clamp(max=height) - top, (x + across).clamp(max=width) - left


def mix(x: Tensor, own: Tensor, other: Tensor) -> Tensor:
    """Add `own` times each entry of a batch and `other` times the one before it (MixUp)."""
    return x.roll(1, 0) * other + x * own


class MixUpCutMix(nn.Module):
    """MixUp with Beta(`mixup`, `mixup`), CutMix with Beta(`cutmix`, `cutmix`), or for each image one of the two."""

    mixup_quantiles: Tensor  # float64 [4096]
    cutmix_quantiles: Tensor
    share: Tensor  # [], of the images that are mixed; a tensor, so that a captured step can follow a schedule

    def __init__(self, mixup: float, cutmix: float, share: float = 1.0) -> None:
        super().__init__()
        if min(mixup, cutmix) < 0 or max(mixup, cutmix) == 0:
            raise ValueError(f"mixup is {mixup} and cutmix {cutmix}: one must be above 0 and none below")
        self.mixup, self.cutmix = mixup, cutmix
        self.register_buffer("share", torch.tensor(share), persistent=False)
        for name, alpha in (("mixup_quantiles", mixup), ("cutmix_quantiles", cutmix)):
            self.register_buffer(name, list_quantiles(alpha) if alpha else torch.zeros(0), persistent=False)

    def forward(self, images: Tensor, targets: Tensor, rng: CounterRandom) -> tuple[Tensor, Tensor]:
        """Mix float images `[b c h w]` and targets `[b k]`; by CutMix alone, masks `[b h w]` for targets."""
        rank = (rng.uniform("mix quantile") * QUANTILES).long()
        whole = rng.uniform("mix at all") >= self.share  # these images are not mixed
        if not self.cutmix:
            return self.blend(images, targets, self.mixup_quantiles[rank].masked_fill(whole, 1.0))
        kept = self.cutmix_quantiles[rank].masked_fill(whole, 1.0)  # an empty box
        cut, kept = self.draw_cut(kept, (images.shape[2], images.shape[3]), rng)
        if not self.mixup:
            patched = torch.where(cut, images.roll(1, 0), images)
            if targets.dim() == 3:
                return patched, torch.where(cut[:, 0], targets.roll(1, 0), targets)
            return patched, self.blend_targets(targets, kept)
        blended = rng.uniform("mix by blending") < 0.5
        kept = torch.where(blended, self.mixup_quantiles[rank].masked_fill(whole, 1.0), kept)
        faded = self.blend(images, targets, kept)
        patched = torch.where(cut, images.roll(1, 0), images)
        return torch.where(blended[:, None, None, None], faded[0], patched), faded[1]

    def draw_cut(self, kept: Tensor, size: tuple[int, int], rng: CounterRandom) -> tuple[Tensor, Tensor]:
        """Draw each image's box of CutMix, bool `[b 1 h w]`, and return the exact share outside it, float64 `[b]`."""
        x, y = rng.integers("mix x", 0, size[1] - 1), rng.integers("mix y", 0, size[0] - 1)
        box = cutmix_box(kept, x, y, size)
        kept = 1.0 - (box[2] * box[3]).double() / (size[0] * size[1])
        return fill_box(box, size), kept

    def blend(self, images: Tensor, targets: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
        """Blend images and targets (MixUp)."""
        own, other = kept.float()[:, None, None, None], (1.0 - kept).float()[:, None, None, None]
        return mix(images, own, other), self.blend_targets(targets, kept)

    def blend_targets(self, targets: Tensor, kept: Tensor) -> Tensor:
        """Blend the targets of both images by their shares, for MixUp and CutMix."""
        return mix(targets, kept.float()[:, None], (1.0 - kept).float()[:, None])
