"""TrivialAugment and RandAugment on a batch, each image with its own operation, bit-equal to torchvision's.

An operation at one of its 31 strengths and with one of two signs is a row of a table. torchvision itself fills the
tables on the CPU: the source of each pixel (shear, translate, rotate) and the new value of each brightness (brightness,
posterize, solarize). A look-up gives the same bits on every device, compiled or not; computing again would not: in
shears and rotations many pixels lie half-way between two, and rounding decides.

Every image goes through all stages, and all but its own leave it unchanged: no shape depends on random numbers. With
`masks`, the last channel of the pixels is a mask (or its negative), which is moved and otherwise left alone.

Shapes:  b images   c colours, 1 or 3   h height   w width   p = h·w pixels   r rows of the table
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.data.counter_random import CounterRandom

BINS = 31
# Bytes of pixels at a time: each needs about 30 more in between. On a CPU, what its caches hold is fastest.
PIECE, PIECE_ON_CPU = 1 << 24, 1 << 20

OPERATIONS = (  # in torchvision's order, which both spaces share
    *("Identity", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate"),
    *("Brightness", "Color", "Contrast", "Sharpness", "Posterize", "Solarize", "AutoContrast", "Equalize"),
)
BLENDS = ("Brightness", "Color", "Contrast", "Sharpness")
SHEARS, MOVES = ("ShearX", "ShearY"), ("TranslateX", "TranslateY")
GEOMETRY = (*SHEARS, *MOVES, "Rotate")
SIGNED = (*GEOMETRY, *BLENDS)
RED, GREEN, BLUE = torch.tensor([0.2989, 0.587, 0.114]).tolist()  # of grey, as float32 has them

# space → the strongest shear, translation (height and width → pixels down and right), rotation, blend, bits taken away
Limits = tuple[float, Callable[[int, int], tuple[float, float]], float, float, int]
SPACES: dict[str, Limits] = {
    "trivial": (0.99, lambda height, width: (32.0, 32.0), 135.0, 0.99, 6),
    "rand": (0.3, lambda height, width: (150.0 / 331.0 * height, 150.0 / 331.0 * width), 30.0, 0.9, 4),
}


def list_strengths(space: str, operation: str, size: tuple[int, int]) -> list[float]:
    """List the 31 strengths of a RandAugment operation, from none to the strongest; zeros if it has none.

    >>> list_strengths("trivial", "Rotate", (32, 32))[::10]
    [0.0, 45.0, 90.0, 135.0]
    """
    shear, translation, rotation, blend, bits = SPACES[space]
    if operation == "Posterize":
        return (8 - torch.arange(BINS) / ((BINS - 1) / bits)).round().tolist()
    if operation == "Solarize":
        return torch.linspace(1.0, 0.0, BINS).tolist()
    down, right = translation(*size)
    limits = {"TranslateX": right, "TranslateY": down, "Rotate": rotation}
    limits |= dict.fromkeys(SHEARS, shear) | dict.fromkeys(BLENDS, blend)
    return torch.linspace(0.0, limits.get(operation, 0.0), BINS).tolist()


def trace_pixels(operation: str, strength: float, size: tuple[int, int]) -> Tensor:
    """Make RandAugment's table for one of its operations at a strength: the source of each pixel, int32 `[p]`.

    The operation shears, translates or rotates; the source is -1 where a pixel comes from outside.

    torchvision moves an image whose values are the indices of its own pixels, counted from 1; outside is its black, 0.
    """
    from torchvision.transforms.v2 import functional as torchvision  # imported late: it takes a second

    height, width = size
    indices = torch.arange(1.0, height * width + 1).reshape(1, height, width)  # exact in float32 up to 4096² pixels
    if operation == "Rotate":
        moved = torchvision.rotate(indices, strength)
    elif operation in MOVES:
        translate = [int(strength), 0] if operation == "TranslateX" else [0, int(strength)]
        moved = torchvision.affine(indices, angle=0.0, translate=translate, scale=1.0, shear=[0.0, 0.0])
    else:
        degrees = math.degrees(math.atan(strength))
        shear = [degrees, 0.0] if operation == "ShearX" else [0.0, degrees]
        moved = torchvision.affine(indices, angle=0.0, translate=[0, 0], scale=1.0, shear=shear, center=[0.0, 0.0])
    source: Tensor = moved.flatten().to(torch.int32) - 1
    return source


def trace_tones(operation: str, strength: float) -> Tensor:
    """Return the new value of each brightness, for RandAugment's operations that ignore the image: uint8 `[256]`."""
    from torchvision.transforms.v2 import functional as torchvision

    tones = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 256)
    if operation == "Brightness":
        tones = torchvision.adjust_brightness(tones, 1.0 + strength)
    elif operation == "Posterize":
        tones = torchvision.posterize(tones, int(strength))
    elif operation == "Solarize":
        tones = torchvision.solarize(tones, 255.0 * strength)
    return tones.flatten()


def multiply_add(x: Tensor, factor: Tensor | float, addend: Tensor) -> Tensor:
    """Return x · factor + addend, rounded once, as the CPU's fused instruction does in torchvision's RandAugment.

    Blending a grey pixel with its own grey gives an integer or just below it, and is then truncated: the one rounding
    decides. In float64 the product is exact, and so the sum is the same on every device. (torchvision rounds twice in
    the few pixels that its vector instructions leave over, if an image's pixels are no multiple of 32: these may be off
    by one from ours, and from their own neighbours.)
    """
    return x.double().mul_(factor).add_(addend).float()


def to_bytes(x: Tensor) -> Tensor:
    """Truncate pixel values to integers from 0 to 255, as RandAugment does in torchvision."""
    return x.clamp_(0, 255).to(torch.uint8)


def to_grey(pixels: Tensor) -> Tensor:
    """Return the grey value of each pixel for RandAugment's operations: uint8 `[b c h w]` → float32 `[b h w]`."""
    if pixels.shape[1] == 1:
        return pixels[:, 0].float()
    red, green, blue = pixels.float().unbind(1)  # [b h w] each
    return multiply_add(blue, BLUE, multiply_add(green, GREEN, red * RED)).floor()


def count_darker(pixels: Tensor) -> Tensor:
    """Count a channel's pixels darker than 0, 1, … 255, for Equalize: uint8 `[n p]` → int64 `[n 256]`.

    By counting on a CPU, and by sorting on other devices: CUDA counts by atomic additions, which PyTorch's
    deterministic mode replaces by something slow.
    """
    if pixels.device.type == "cpu":
        counts = torch.zeros(len(pixels), 256, dtype=torch.int64)
        counts.scatter_add_(1, pixels.long(), torch.ones((), dtype=torch.int64).expand(pixels.shape))
        return counts.cumsum(1) - counts
    darker: Tensor = count_by_sorting(pixels)
    return darker


@torch.library.custom_op("vitreous::count_by_sorting", mutates_args=())
def count_by_sorting(pixels: Tensor) -> Tensor:
    """Count a channel's darker pixels by sorting, for Equalize. Opaque to the compiler: torch 2.11 breaks it."""
    tones = torch.arange(256, dtype=torch.uint8, device=pixels.device).repeat(len(pixels), 1)
    return torch.searchsorted(pixels.sort(1).values, tones)


@count_by_sorting.register_fake
def _(pixels: Tensor) -> Tensor:
    return pixels.new_empty(len(pixels), 256, dtype=torch.int64)


def stretch_tones(darker: Tensor, pixels: int) -> Tensor:
    """Return AutoContrast's curve, from the darkest tone to the brightest: `[… 256]` → uint8 `[… 256]`."""
    tones = torch.arange(256, device=darker.device, dtype=torch.float32)
    lowest = ((darker == 0).sum(-1, keepdim=True) - 1).float()
    highest = ((darker < pixels).sum(-1, keepdim=True) - 1).float()
    flat = lowest == highest
    scale = ((highest - lowest) * (1.0 / 255.0)).masked_fill(flat, 1.0)
    # a float32 quotient rounds the same through float64, and compiled kernels do not approximate that
    return to_bytes(((tones - lowest.masked_fill(flat, 0.0)).double() / scale).float())


def equalize_tones(darker: Tensor, pixels: int) -> Tensor:
    """Return Equalize's curve, in Pillow's integer arithmetic: `[… 256]` → uint8 `[… 256]`."""
    below_brightest = darker.masked_fill(darker == pixels, 0).amax(-1, keepdim=True)
    step = below_brightest // 255
    tones = torch.arange(256, device=darker.device)
    curve = (darker + step // 2) // step.clamp(min=1)
    return torch.where(step == 0, tones, curve.clamp(0, 255)).to(torch.uint8)  # too few pixels: unchanged


def smoothing_change(pixels: Tensor) -> Tensor:
    """Return what a 3×3 average (centre weight 5) adds to each inner pixel, for Sharpness: float `[b c h w]`."""
    if min(pixels.shape[-2:]) <= 2:
        return torch.zeros_like(pixels)
    rows = (pixels[..., :-2, :] + pixels[..., 1:-1, :]).add_(pixels[..., 2:, :])
    box = (rows[..., :-2] + rows[..., 1:-1]).add_(rows[..., 2:])  # [b c h-2 w-2]
    inner = pixels[..., 1:-1, 1:-1]
    # thirteenths are never half-way between integers, so any order of sums gives torchvision's average
    return F.pad(box.add_(inner, alpha=4).mul_(1 / 13).round_().sub_(inner), (1, 1, 1, 1))


class RandomOperations(nn.Module):
    """Apply `operations` random operations of a space to each image, one after another."""

    frames: Tensor  # int32 [frames p]: the source of each pixel; the first frame is the identity
    frame: Tensor  # int64 [r]
    curves: Tensor  # uint8 [r 256]
    operation: Tensor  # int64 [r]
    factor: Tensor  # float32 [r]: the image's share in a blend
    rest: Tensor  # float32 [r]: the other's share

    def __init__(
        self,
        name: str,
        size: tuple[int, int],
        operations: int = 1,
        magnitude: int | None = None,
        *,
        masks: bool = False,
    ) -> None:
        super().__init__()
        if name not in SPACES:
            raise ValueError(f"unknown policy {name!r}: choose from {', '.join(SPACES)}")
        if magnitude is not None and not 0 <= magnitude < BINS:
            raise ValueError(f"magnitude is {magnitude}, and the strengths are 0 to {BINS - 1}")
        self.size, self.operations, self.masks = size, operations, masks
        self.bins = range(BINS) if magnitude is None else range(magnitude, magnitude + 1)
        height, width = size
        frames = [torch.arange(height * width, dtype=torch.int32)]
        frame, curves, operation, factor, rest = [], [], [], [], []
        for index, title in enumerate(OPERATIONS):
            strengths = list_strengths(name, title, size)
            for bin in self.bins:
                for sign in (1, -1) if title in SIGNED else (1, 1):
                    strength = sign * strengths[bin]
                    frame.append(len(frames) if title in GEOMETRY else 0)
                    if title in GEOMETRY:
                        frames.append(trace_pixels(title, strength, size))
                    curves.append(trace_tones(title, strength))
                    operation.append(index)
                    factor.append(1.0 + strength if title in BLENDS else 1.0)
                    rest.append(1.0 - factor[-1])
        shares = {"factor": torch.tensor(factor, dtype=torch.float32), "rest": torch.tensor(rest, dtype=torch.float32)}
        tables = {"frames": torch.stack(frames), "frame": torch.tensor(frame), "curves": torch.stack(curves)}
        for key, table in (tables | {"operation": torch.tensor(operation)} | shares).items():
            self.register_buffer(key, table, persistent=False)

    def draw_rows(self, rng: CounterRandom, turn: int = 0) -> Tensor:
        """Draw each image's row of RandAugment's table, int64 `[b]`: operation, strength, sign, all equally likely."""
        operation = rng.integers(f"policy {turn} operation", 0, len(OPERATIONS) - 1)
        bin = rng.integers(f"policy {turn} strength", 0, len(self.bins) - 1)
        return (operation * len(self.bins) + bin) * 2 + rng.integers(f"policy {turn} sign", 0, 1)

    def forward(self, pixels: Tensor, rng: CounterRandom) -> Tensor:
        """Apply RandAugment's random operations: uint8 `[b c h w]` → uint8 `[b c h w]`."""
        for turn in range(self.operations):
            pixels = self.apply_rows(pixels, self.draw_rows(rng, turn))
        return pixels

    def apply_rows(self, pixels: Tensor, rows: Tensor) -> Tensor:
        """Apply each image's operation that RandAugment drew; large batches are split into pieces."""
        piece = PIECE_ON_CPU if pixels.device.type == "cpu" else PIECE
        share = max(1, piece // pixels[0].numel())
        if len(pixels) <= share:
            return self.apply_piece(pixels, rows)
        pieces = zip(torch.split(pixels, share), torch.split(rows, share), strict=True)
        return torch.cat([self.apply_piece(piece, its_rows) for piece, its_rows in pieces])

    def apply_piece(self, pixels: Tensor, rows: Tensor) -> Tensor:
        """Apply RandAugment to a piece of a batch: move pixels, change tones, blend with grey or neighbours."""
        pixels = self.move_pixels(pixels, rows)
        colours = pixels[:, :-1] if self.masks else pixels
        grey = to_grey(colours)  # [b h w]
        changed = self.blend(self.change_tones(colours, grey, rows), grey, rows)
        return torch.cat([changed, pixels[:, -1:]], dim=1) if self.masks else changed

    def move_pixels(self, pixels: Tensor, rows: Tensor) -> Tensor:
        """Apply RandAugment's shears, translations and rotations by one look-up."""
        source = self.frames[self.frame[rows]].long()[:, None]  # [b 1 p]
        flat = pixels.flatten(2)  # [b c p]
        moved = flat.gather(2, source.clamp(min=0).expand(flat.shape))
        return moved.masked_fill(source < 0, 0).view(pixels.shape)

    def change_tones(self, pixels: Tensor, grey: Tensor, rows: Tensor) -> Tensor:
        """Apply RandAugment's brightness, contrast, posterize, solarize, autocontrast and equalize, tone by tone."""
        operation = self.operation[rows][:, None, None]  # [b 1 1]
        flat = pixels.flatten(2)  # [b c p]
        darker = count_darker(flat.flatten(0, 1)).view(*flat.shape[:2], 256)
        tones = torch.arange(256, device=pixels.device, dtype=torch.float32)
        # sums of integers are exact in torchvision's float32 up to 256 · 256 pixels
        mean = (grey.sum((1, 2), dtype=torch.float64) / flat.shape[2]).float()[:, None]  # [b 1]
        factor, rest = self.factor[rows][:, None], self.rest[rows][:, None]  # [b 1]
        contrast = to_bytes(multiply_add(mean.expand(-1, 256), rest, tones * factor))  # [b 256]
        curves = self.curves[rows][:, None].expand(darker.shape)  # [b c 256]
        curves = torch.where(operation == OPERATIONS.index("Contrast"), contrast[:, None], curves)
        stretched, equalized = stretch_tones(darker, flat.shape[2]), equalize_tones(darker, flat.shape[2])
        curves = torch.where(operation == OPERATIONS.index("AutoContrast"), stretched, curves)
        curves = torch.where(operation == OPERATIONS.index("Equalize"), equalized, curves)
        return curves.gather(2, flat.long()).view(pixels.shape)

    def blend(self, pixels: Tensor, grey: Tensor, rows: Tensor) -> Tensor:
        """Apply RandAugment's colour (blend with the grey; none in grey images) and sharpness (with the neighbours)."""
        operation = self.operation[rows][:, None, None, None]  # [b 1 1 1]
        colour = (operation == OPERATIONS.index("Color")) & (pixels.shape[1] > 1)
        sharpness = operation == OPERATIONS.index("Sharpness")
        x = pixels.float()
        # torchvision's two formulas, alike but for rounding: colour x·f + grey·(1-f), sharpness x + (smooth-x)·(1-f)
        other = torch.where(colour, grey[:, None], smoothing_change(x).mul_(sharpness))
        own = x * self.factor[rows][:, None, None, None].masked_fill(~colour, 1.0)
        return to_bytes(multiply_add(other, self.rest[rows][:, None, None, None], own))
