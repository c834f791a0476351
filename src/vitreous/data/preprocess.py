"""`Preprocess`: resize, crop and normalise an image to the tensor a checkpoint expects; the default of new models.

It is read from the configs of timm, Hugging Face or torchvision and saved with our checkpoints: a wrong one costs
accuracy silently.

Shapes: c colours (3, or 1 for a model of grey images), h height, w width.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from numbers import Integral, Real
from typing import Any, Literal, Self, get_args

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitreous.data.images import LIMIT_PIXELS, ImageError, ImageLike, read_image
from vitreous.models.vit_config import ViTConfig

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
HALF = (0.5, 0.5, 0.5)  # mean and std of the first ViTs: pixels from -1 to 1
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
STATISTICS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {  # name → mean and std
    "half": (HALF, HALF),
    "imagenet": (IMAGENET_MEAN, IMAGENET_STD),
    "clip": (CLIP_MEAN, CLIP_STD),
    "unit": ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),  # pixels from 0 to 1, as they are
}

# Pillow's interpolations. It averages over all that a new pixel covers, which others call antialias.
_NAMES = ("nearest", "box", "bilinear", "hamming", "bicubic", "lanczos")
INTERPOLATIONS = {name: Image.Resampling[name.upper()] for name in _NAMES}

# The start of a centre crop that cuts off an odd number of pixels: torchvision and timm round half a pixel to even,
# Hugging Face rounds it down. One crop in four differs by a pixel.
CROP_ROUNDINGS = ("even", "down")

Fit = Literal["crop", "squash", "pad"]
"""What becomes of an image whose sides are not the model's: the centre, all of it distorted, or all with edges."""


@dataclass(frozen=True, kw_only=True)
class Preprocess:
    """Resize an image, crop its centre, subtract mean and divide by std.

    >>> preprocess = Preprocess(size=(4, 4), resize=5, mean=HALF, std=HALF)
    >>> preprocess(Image.new("RGB", (30, 20), "white"))[:, 0, 0]  # [c h w], here one corner
    tensor([1., 1., 1.])
    >>> preprocess.describe()
    'shorter side to 5 (bicubic), centre crop 4×4, mean 0.5 0.5 0.5, std 0.5 0.5 0.5'
    """

    size: tuple[int, int]
    """Height and width of the model's input: the image's centre, with black edges if it is too small."""

    resize: int | tuple[int, int] | None
    """Before the crop: the shorter side's new length, or height and width, or None for no resize."""

    mean: tuple[float, ...]
    """Subtracted from each colour, which runs from 0 to 1. A single value: the model takes grey images."""

    std: tuple[float, ...]
    """Each colour is divided by this after that; as many values as `mean`."""

    interpolation: str = "bicubic"
    """Interpolation of the resize: nearest, box, bilinear, hamming, bicubic or lanczos."""

    cover: bool = False
    """When `resize` is height and width: keep the proportions and just cover them, rather than squash."""

    pad: bool = False
    """When `resize` is height and width: keep the proportions and fit inside them, with black edges."""

    crop_rounding: str = "even"
    """Where half a pixel goes when the centre is cropped: even (torchvision, timm) or down (Hugging Face)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", pair("size", self.size))
        if self.resize is not None:
            one = isinstance(self.resize, Integral)
            resize = square("resize", self.resize)[0] if one else pair("resize", self.resize)
            object.__setattr__(self, "resize", resize)
        object.__setattr__(self, "mean", colours("mean", self.mean))
        object.__setattr__(self, "std", colours("std", self.std))
        if len(self.mean) != len(self.std):
            got = f"mean has {len(self.mean)} values and std has {len(self.std)}"
            raise ValueError(f"{got}: give both 3 for colour, or both 1 for grey")
        if min(self.std) <= 0:
            raise ValueError(f"std is divided by, so each value has to be above 0, got {self.std}")
        one_of("interpolation", self.interpolation, tuple(INTERPOLATIONS))
        one_of("crop_rounding", self.crop_rounding, CROP_ROUNDINGS)
        for name, value in (("cover", self.cover), ("pad", self.pad)):
            if not isinstance(value, bool):
                raise ValueError(f"{name} has to be true or false, got {value!r}")
            if value and not isinstance(self.resize, tuple):
                raise ValueError(f"{name} needs height and width in resize, got {self.resize}: set {name} to false")
        if self.cover and self.pad:
            raise ValueError("an image covers height and width or is padded to them: set cover or pad to false")

    def __call__(self, image: ImageLike) -> Tensor:
        """Return the model's input for an image: `[c h w]`, float32."""
        return self.normalise(self.pixels(image))

    def pixels(self, image: ImageLike) -> Tensor:
        """Preprocess an image up to `normalise`: the resized and cropped pixels, uint8 `[c h w]`."""
        return self.pixels_of(self.view(image))

    def pixels_of(self, view: Image.Image) -> Tensor:
        """Return the pixels of an image that is resized and cropped already, a `view`: uint8 `[c h w]`."""
        pixels = torch.from_numpy(np.array(view))  # [h w c], or [h w] when grey
        return pixels.view(*self.size, -1).permute(2, 0, 1).contiguous()  # [c h w]

    def normalise(self, pixels: Tensor) -> Tensor:
        """Normalise uint8 pixels `[... c h w]` to the model's input: float32, on their device.

        >>> Preprocess(size=(1, 1), resize=1, mean=HALF, std=HALF).normalise(torch.full((3, 1, 1), 255).byte())[:, 0, 0]
        tensor([1., 1., 1.])
        """
        columns = (
            torch.tensor(values, dtype=torch.float32).view(-1, 1, 1) for values in ((255.0,), self.mean, self.std)
        )
        whole, mean, std = (column.to(pixels.device) for column in columns)  # [c 1 1]
        # divided by 255, not multiplied by 1/255: so do timm and torchvision, and the last bit differs (on a GPU torch
        # multiplies where the divisor is a plain number)
        return (pixels.to(torch.float32) / whole).sub_(mean).div_(std)

    def view(self, image: ImageLike) -> Image.Image:
        """Resize and crop an image, of any kind that `read_image` takes, by a `Preprocess`: RGB, or L for a grey model.

        >>> Preprocess(size=(4, 6), resize=8, mean=HALF, std=HALF).view(Image.new("L", (9, 20))).size
        (6, 4)
        """
        if len(self.mean) not in (1, 3):
            raise ValueError(f"this model takes {len(self.mean)} channels and images have 1 or 3: pass tensors to it")
        mode = "RGB" if len(self.mean) == 3 else "L"
        if not isinstance(image, Image.Image) or image.mode != mode or image.info:  # else `read_image` has read it
            image = read_image(image).convert(mode)
        height, width = self._resized(image.height, image.width)
        if height * width > LIMIT_PIXELS:
            grown = f"{image.width}×{image.height} would grow to {width}×{height} before the crop"
            raise ImageError("image", f"too long and thin: {grown}; cut a piece out of it first")
        if (width, height) != image.size:
            image = image.resize((width, height), INTERPOLATIONS[self.interpolation])
        top, left = self._offset(height, self.size[0]), self._offset(width, self.size[1])
        return image.crop((left, top, left + self.size[1], top + self.size[0]))  # black beyond the edges

    def crop_box(self, width: int, height: int) -> tuple[float, float, float, float]:
        """Return the part of an image of this size that a `Preprocess` keeps: left, top, right, bottom, in its pixels.

        >>> Preprocess(size=(4, 4), resize=4, mean=HALF, std=HALF).crop_box(20, 10)
        (5.0, 0.0, 15.0, 10.0)
        """
        resized, sides, found = self._resized(height, width), (height, width), []
        for length, new, wanted in zip(sides, resized, self.size, strict=True):
            start = self._offset(new, wanted)
            found.append((max(0, start) * length / new, min(new, start + wanted) * length / new))
        (top, bottom), (left, right) = found
        return left, top, right, bottom

    def view_box(self, width: int, height: int) -> tuple[int, int, int, int]:
        """Return where the part that a `Preprocess` keeps lies in its result, whose edges may be black: left, top, ….

        >>> Preprocess(size=(4, 4), resize=(4, 4), pad=True, mean=HALF, std=HALF).view_box(20, 10)
        (0, 1, 4, 3)
        """
        found = []
        for new, wanted in zip(self._resized(height, width), self.size, strict=True):
            start = self._offset(new, wanted)
            found.append((max(0, -start), min(wanted, new - start)))
        (top, bottom), (left, right) = found
        return left, top, right, bottom

    @property
    def squashes(self) -> bool:
        """Whether a `Preprocess` distorts an image to the model's proportions, so that nothing is cropped for them.

        >>> preprocess = Preprocess(size=(4, 4), resize=5, mean=HALF, std=HALF)
        >>> [preprocess.with_fit(fit).squashes for fit in ("crop", "squash", "pad")]
        [False, True, False]
        """
        return isinstance(self.resize, tuple) and not (self.cover or self.pad)

    def _resized(self, height: int, width: int) -> tuple[int, int]:
        """Return height and width after the resize of a `Preprocess`, before its crop."""
        if self.resize is None:
            return height, width
        if isinstance(self.resize, int):  # the longer side is rounded down, as in torchvision
            longer = int(self.resize * max(height, width) / min(height, width))
            return (self.resize, longer) if height <= width else (longer, self.resize)
        if self.cover or self.pad:  # both sides are rounded to the nearest, as in timm
            ratios = height / self.resize[0], width / self.resize[1]
            ratio = min(ratios) if self.cover else max(ratios)
            return max(1, round(height / ratio)), max(1, round(width / ratio))
        return self.resize

    def _offset(self, length: int, wanted: int) -> int:
        """Return the start of the crop of a `Preprocess` along one side; negative if the image is too small."""
        if length <= wanted:
            return -((wanted - length) // 2)
        return round((length - wanted) / 2) if self.crop_rounding == "even" else (length - wanted) // 2

    def describe(self) -> str:
        """Describe all steps of a `Preprocess` in one line, sizes as height×width."""
        steps = []
        if isinstance(self.resize, int):
            steps.append(f"shorter side to {self.resize} ({self.interpolation})")
        elif self.resize is not None:
            fit = "cover" if self.cover else "fit inside" if self.pad else "squash to"
            steps.append(f"{fit} {self.resize[0]}×{self.resize[1]} ({self.interpolation})")
        if self.pad and self.resize == self.size:
            steps.append("black edges")
        elif self.cover or self.resize != self.size:
            steps.append(f"centre crop {self.size[0]}×{self.size[1]}")
        if len(self.mean) == 1:
            steps.append("grey")
        for name, values in (("mean", self.mean), ("std", self.std)):
            steps.append(" ".join([name, *(f"{value:g}" for value in values)]))
        return ", ".join(steps)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields of this `Preprocess` as plain lists, numbers and words, to be saved as JSON.

        >>> preprocess = Preprocess(size=(224, 224), resize=248, mean=HALF, std=HALF)
        >>> Preprocess.from_dict(preprocess.to_dict()) == preprocess
        True
        """
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        if not self.pad:  # no library's config has it: it stands in files only where it is used
            del values["pad"]
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Read a `Preprocess` from the result of `to_dict`; unknown, missing or ill-typed fields raise."""
        if not isinstance(values, Mapping):
            raise ValueError(f"preprocess has to be a table of fields, got {type(values).__name__}")
        known = [field.name for field in fields(cls)]
        if unknown := [str(name) for name in values if name not in known]:
            raise ValueError(f"preprocess has no field {', '.join(unknown)}: it has {', '.join(known)}")
        if missing := [name for name in ("size", "resize", "mean", "std") if name not in values]:
            raise ValueError(f"preprocess lacks {', '.join(missing)}: add what the model was trained with")
        return cls(**values)

    def with_size(self, size: int | tuple[int, int]) -> Self:
        """Return the same `Preprocess` for another size; the resize is scaled along.

        >>> Preprocess(size=(224, 224), resize=256, mean=HALF, std=HALF).with_size(448).resize
        512
        """
        height, width = square("size", size)
        tall, wide = height / self.size[0], width / self.size[1]
        if self.resize is None:
            return replace(self, size=(height, width))
        if isinstance(self.resize, int) and tall == wide:
            return replace(self, size=(height, width), resize=max(1, round(self.resize * tall)))
        old = square("resize", self.resize)
        resize = (max(1, round(old[0] * tall)), max(1, round(old[1] * wide)))
        cover = self.cover or isinstance(self.resize, int)  # no one length is the shorter side's any more
        return replace(self, size=(height, width), resize=resize, cover=cover)

    def with_fit(self, fit: Fit | None) -> Self:
        """Return a `Preprocess` that crops, squashes or pads images to the model's size; None changes nothing.

        >>> preprocess = Preprocess(size=(4, 4), resize=5, mean=HALF, std=HALF)
        >>> preprocess.with_fit("pad").crop_box(20, 10), preprocess.with_fit("squash").describe()[:21]
        ((0.0, 0.0, 20.0, 10.0), 'squash to 4×4 (bicubi')
        """
        if fit is None:
            return self
        one_of("fit", fit, get_args(Fit))
        if fit != "crop":
            return replace(self, resize=self.size, cover=False, pad=fit == "pad")
        if isinstance(self.resize, tuple):
            return replace(self, cover=True, pad=False)
        return self if self.resize is not None else replace(self, resize=self.size, cover=True)


def default_preprocess(config: ViTConfig) -> Preprocess:
    """Make the default `Preprocess` of a new model: ImageNet's statistics for colour, 0.5 for grey, no crop."""
    mean, std = (HALF[:1], HALF[:1]) if config.channels == 1 else (IMAGENET_MEAN, IMAGENET_STD)
    return Preprocess(size=config.size, resize=config.size, mean=mean, std=std)


# --- checking -----------------------------------------------------------------------------------------------


def is_count(value: object) -> bool:
    """Return whether a field of a `Preprocess` is an integer above 0."""
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) > 0


def pair(name: str, value: Any) -> tuple[int, int]:
    """Check a field of a `Preprocess` that is a height and a width; raise a `ValueError` that names the field."""
    if not isinstance(value, (tuple, list)) or len(value) != 2 or not all(is_count(side) for side in value):
        one = " (or one length for the shorter side, or null)" if name == "resize" else ""
        raise ValueError(f"{name} has to be height and width in whole pixels above 0{one}, got {value!r}")
    return int(value[0]), int(value[1])


def square(name: str, size: Any) -> tuple[int, int]:
    """Check a field of a `Preprocess` that is a height and a width; one number means both."""
    return (int(size), int(size)) if is_count(size) else pair(name, size)


def colours(name: str, values: Any) -> tuple[float, ...]:
    """Check a field of a `Preprocess` with a number for each colour, mean or std; a `ValueError` names it."""
    is_list = isinstance(values, (tuple, list)) and 0 < len(values) < 1000
    if not is_list or not all(isinstance(x, Real) and not isinstance(x, bool) and math.isfinite(x) for x in values):
        raise ValueError(f"{name} has to be 3 numbers (red, green, blue), or 1 for grey, got {values!r:.80}")
    return tuple(float(value) for value in values)


def one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    """Raise for a word in a field of a `Preprocess` that is not known."""
    if value not in known:
        raise ValueError(f"{name} has to be one of {', '.join(known)}, got {value!r}")
