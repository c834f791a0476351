"""Shift, mirror, crop (RandomResizedCrop) and erase (RandomErasing) each image of a batch with its own numbers.

Shifts and mirrors copy whole pixels; only the crop, which is resized, interpolates.

Shapes:  b images   c colours   h height   w width   a attempts
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.data.counter_random import CounterRandom, hash32

ATTEMPTS = 10  # to draw a box that fits, as torchvision

Box = tuple[Tensor, Tensor, Tensor, Tensor]  # top, left, height, width: int64 [b] each


def move(pixels: Tensor, down: Tensor, right: Tensor, mirrored: Tensor) -> Tensor:
    """Shift images by whole pixels, the gap black, then mirror some left-right: `[b c h w]` → `[b c h w]`.

    >>> image = torch.arange(1, 4).reshape(1, 1, 1, 3)
    >>> move(image, torch.tensor([0]), torch.tensor([1]), torch.tensor([False]))
    tensor([[[[0, 1, 2]]]])
    """
    _, _, height, width = pixels.shape
    x, y = torch.arange(width, device=pixels.device), torch.arange(height, device=pixels.device)
    columns = torch.where(mirrored[:, None], width - 1 - x, x) - right[:, None]  # [b w]: the source columns
    rows = y - down[:, None]  # [b h]
    inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None, :]  # [b h w]
    source = rows.clamp(0, height - 1)[:, :, None] * width + columns.clamp(0, width - 1)[:, None, :]
    flat = pixels.flatten(2)  # [b c h·w]
    moved = flat.gather(2, source.flatten(1)[:, None].expand(flat.shape)).view(pixels.shape)
    return moved.masked_fill(~inside[:, None], 0)


def draw_shift(rng: CounterRandom, purpose: str, share: float, side: int) -> Tensor:
    """Draw each image's random shift, at most `share` of the side, in whole pixels: int64 `[b]`."""
    return ((2.0 * rng.uniform(purpose).double() - 1.0) * (share * side)).round().long()


def draw_box(
    rng: CounterRandom,
    purpose: str,
    size: tuple[int, int],
    area: tuple[float, float],
    ratio: tuple[float, float],
    spare: int = 0,
) -> tuple[Box, Tensor]:
    """Draw a random box to crop or erase, its area within `area` and width/height within `ratio`; say whether it fits.

    Ten boxes are drawn for each image; the first that leaves `spare` pixels of both sides of `size` is taken.
    """
    height, width = size
    attempt = torch.arange(ATTEMPTS, device=rng.keys.device)
    tries = CounterRandom(hash32(rng.keys[:, None] ^ attempt))  # [b a]; below in float64: alike on every device
    pixels = height * width * (area[0] + (area[1] - area[0]) * tries.uniform(f"{purpose} area").double())
    low, high = math.log(ratio[0]), math.log(ratio[1])
    shape = (low + (high - low) * tries.uniform(f"{purpose} ratio").double()).exp()
    widths, heights = (pixels * shape).sqrt().round().long(), (pixels / shape).sqrt().round().long()  # [b a]
    fits = (widths > 0) & (widths <= width - spare) & (heights > 0) & (heights <= height - spare)
    first = attempt.expand(fits.shape).masked_fill(~fits, ATTEMPTS).amin(1, keepdim=True)  # [b 1]
    found = first[:, 0] < ATTEMPTS
    chosen = first.clamp(max=ATTEMPTS - 1)
    tall = heights.gather(1, chosen)[:, 0].clamp(1, height)  # [b]; the clamp is for those that do not fit
    wide = widths.gather(1, chosen)[:, 0].clamp(1, width)
    top = (rng.uniform(f"{purpose} top").double() * (height - tall + 1)).long()
    left = (rng.uniform(f"{purpose} left").double() * (width - wide + 1)).long()
    return (top, left, tall, wide), found


def draw_crop(rng: CounterRandom, size: tuple[int, int], area: tuple[float, float]) -> Box:
    """Draw RandomResizedCrop's box: width/height from 3/4 to 4/3; if none fits, the largest such box in the middle."""
    height, width = size
    ratio = (3 / 4, 4 / 3)
    box, found = draw_box(rng, "crop", size, area, ratio)
    largest = min(height, round(width / ratio[0])), min(width, round(height * ratio[1]))
    middle = ((height - largest[0]) // 2, (width - largest[1]) // 2, *largest)
    top, left, tall, wide = (side.masked_fill(~found, whole) for side, whole in zip(box, middle, strict=True))
    return top, left, tall, wide


def crop_and_resize(pixels: Tensor, box: Box, size: tuple[int, int]) -> Tensor:
    """Crop each image's box and resize it, bilinear without antialias: uint8 `[b c H W]` → uint8 `[b c h w]`.

    The box is cropped first: no pixel outside it counts. A box much larger than `size` is sampled, not averaged.
    """
    top, left, tall, wide = box
    rows = interpolate(top, tall, size[0], pixels.shape[2])  # [b h]
    columns = interpolate(left, wide, size[1], pixels.shape[3])  # [b w]
    shape = (len(pixels), *size)
    grid = torch.stack([columns[:, None, :].expand(shape), rows[:, :, None].expand(shape)], dim=-1)  # [b h w 2]
    cropped = F.grid_sample(pixels.float(), grid, mode="bilinear", padding_mode="border", align_corners=False)
    return cropped.round_().clamp_(0, 255).to(torch.uint8)


def crop_nearest(pixels: Tensor, box: Box, size: tuple[int, int]) -> Tensor:
    """Crop each mask's box and resize it by nearest neighbour, in whole numbers: `[b c H W]` → `[b c h w]`.

    >>> box = (torch.tensor([0]), torch.tensor([1]), torch.tensor([1]), torch.tensor([2]))
    >>> crop_nearest(torch.arange(4).reshape(1, 1, 1, 4), box, (1, 4))
    tensor([[[[1, 1, 2, 2]]]])
    """
    sides = ((box[0], box[2], size[0]), (box[1], box[3], size[1]))
    rows, columns = (
        start[:, None] + (2 * torch.arange(steps, device=start.device) + 1) * length[:, None] // (2 * steps)
        for start, length, steps in sides
    )  # [b h], [b w]: the pixel in which the middle of a new one lies
    source = rows[:, :, None] * pixels.shape[3] + columns[:, None, :]  # [b h w]
    flat = pixels.flatten(2)  # [b c H·W]
    return flat.gather(2, source.flatten(1)[:, None].expand(-1, flat.shape[1], -1)).view(*flat.shape[:2], *size)


def interpolate(start: Tensor, length: Tensor, steps: int, side: int) -> Tensor:
    """Return the positions of a crop's new pixels on a side, in `grid_sample`'s units (-1 to 1): float `[b steps]`."""
    middle = torch.arange(steps, device=start.device) + 0.5
    start, length = start[:, None], length[:, None]
    position = start + (middle * length / steps - 0.5).clamp(min=0.0).minimum(length - 1.0)
    return (2.0 * position + 1.0) / side - 1.0


def draw_erasure(rng: CounterRandom, size: tuple[int, int], share: float) -> tuple[Box, Tensor]:
    """Draw RandomErasing's box, and whether to erase it; its ratio is height/width, and it never spans a whole side."""
    box, found = draw_box(rng, "erasing", size, (0.02, 0.33), (1 / 3.3, 1 / 0.3), spare=1)
    return box, found & (rng.uniform("erasing at all") < share)


def fill_box(box: Box, size: tuple[int, int]) -> Tensor:
    """Turn each image's box, four numbers (top, left, height, width), into the pixels it covers: bool `[b 1 h w]`.

    RandomErasing erases these pixels, and CutMix takes them from another image.
    """
    y = torch.arange(size[0], device=box[0].device)[:, None]  # [h 1]
    x = torch.arange(size[1], device=box[0].device)  # [w]
    top, left, height, width = (side[:, None, None, None] for side in box)
    return (y >= top) & (y < top + height) & (x >= left) & (x < left + width)
