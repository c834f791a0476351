"""What a checkpoint needs done to a picture before the model sees it.

In goes a Pillow picture; out comes a float tensor `[c h w]`. A `Preprocess` is read from what timm, Hugging
Face or torchvision say about a checkpoint, and saved with ours: a wrong one costs accuracy without a word.

Shapes: c colours (3, or 1 for a model of grey pictures), h height, w width.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitreous.data.pictures import LIMIT_PIXELS, PictureError, read_picture

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

# How Pillow computes new pixels. It averages over all that a new pixel covers, which others call antialias.
INTERPOLATIONS = {
    "nearest": Image.Resampling.NEAREST,
    "box": Image.Resampling.BOX,
    "bilinear": Image.Resampling.BILINEAR,
    "hamming": Image.Resampling.HAMMING,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}

# Where the centre begins when an odd number of pixels is cut off: torchvision and timm round half a pixel to
# the even side, Hugging Face rounds it down. One crop in four begins a pixel apart.
CROP_ROUNDINGS = ("even", "down")


@dataclass(frozen=True, kw_only=True)
class Preprocess:
    """From any picture to what the model gets: resize, crop the centre, subtract mean, divide by std.

    >>> preprocess = Preprocess(size=(4, 4), resize=5, mean=HALF, std=HALF)
    >>> preprocess(Image.new("RGB", (30, 20), "white"))[:, 0, 0]  # [c h w], here one corner
    tensor([1., 1., 1.])
    >>> preprocess.describe()
    'shorter side to 5 (bicubic), centre crop 4×4, mean 0.5 0.5 0.5, std 0.5 0.5 0.5'
    """

    size: tuple[int, int]
    """Height and width the model gets: the picture's centre, with black edges where that is too small."""

    resize: int | tuple[int, int] | None
    """Before the crop: the shorter side's new length, or height and width, or None for no resize."""

    mean: tuple[float, ...]
    """Subtracted from each colour, which runs from 0 to 1. A single value: the model takes grey pictures."""

    std: tuple[float, ...]
    """What each colour is divided by after that; as many values as `mean`."""

    interpolation: str = "bicubic"
    """How new pixels are computed: nearest, box, bilinear, hamming, bicubic or lanczos."""

    cover: bool = False
    """When `resize` is height and width: keep the proportions and just cover them, rather than squash."""

    crop_rounding: str = "even"
    """Where half a pixel goes when the centre is cropped: even (torchvision, timm) or down (Hugging Face)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _pair("size", self.size))
        if self.resize is not None:
            one = isinstance(self.resize, Integral)
            resize = _square("resize", self.resize)[0] if one else _pair("resize", self.resize)
            object.__setattr__(self, "resize", resize)
        object.__setattr__(self, "mean", _colours("mean", self.mean))
        object.__setattr__(self, "std", _colours("std", self.std))
        if len(self.mean) != len(self.std):
            got = f"mean has {len(self.mean)} values and std has {len(self.std)}"
            raise ValueError(f"{got}: give both 3 for colour, or both 1 for grey")
        if min(self.std) <= 0:
            raise ValueError(f"std is divided by, so each value has to be above 0, got {self.std}")
        _one_of("interpolation", self.interpolation, tuple(INTERPOLATIONS))
        _one_of("crop_rounding", self.crop_rounding, CROP_ROUNDINGS)
        if not isinstance(self.cover, bool):
            raise ValueError(f"cover has to be true or false, got {self.cover!r}")
        if self.cover and not isinstance(self.resize, tuple):
            raise ValueError(f"cover needs height and width in resize, got {self.resize}: set cover to false")

    # --- doing it -----------------------------------------------------------------------------------------

    def __call__(self, picture: Image.Image) -> Tensor:
        """The picture as the model gets it: `[c h w]`, float32."""
        pixels = torch.from_numpy(np.array(self.view(picture)))  # [h w c], or [h w] when grey
        pixels = pixels.view(*self.size, -1).permute(2, 0, 1).contiguous()  # [c h w]
        # divided by 255, not multiplied by 1/255: so do timm and torchvision, and the last bit differs
        return (pixels.to(torch.float32) / 255 - _column(self.mean)) / _column(self.std)

    def view(self, picture: Image.Image) -> Image.Image:
        """What the model sees of the picture, at the size it sees it: RGB, or L for a grey model.

        >>> Preprocess(size=(4, 6), resize=8, mean=HALF, std=HALF).view(Image.new("L", (9, 20))).size
        (6, 4)
        """
        mode = "RGB" if len(self.mean) == 3 else "L"
        if picture.mode != mode or picture.info:  # `read_picture` leaves nothing behind that needs a second look
            picture = read_picture(picture).convert(mode)
        height, width = self._resized(picture.height, picture.width)
        if height * width > LIMIT_PIXELS:
            grown = f"{picture.width}×{picture.height} would grow to {width}×{height} before the crop"
            raise PictureError("picture", f"too long and thin: {grown}; cut a piece out of it first")
        if (width, height) != picture.size:
            picture = picture.resize((width, height), INTERPOLATIONS[self.interpolation])
        top, left = self._offset(height, self.size[0]), self._offset(width, self.size[1])
        return picture.crop((left, top, left + self.size[1], top + self.size[0]))  # black beyond the edges

    def to_pixels(self, tensor: Tensor) -> Tensor:
        """Back from what the model gets, `[... c h w]`, to pixels that can be shown: uint8 `[... h w c]`.

        >>> preprocess = Preprocess(size=(2, 2), resize=2, mean=IMAGENET_MEAN, std=IMAGENET_STD)
        >>> preprocess.to_pixels(preprocess(Image.new("RGB", (2, 2), (9, 99, 199))))[0, 0]
        tensor([  9,  99, 199], dtype=torch.uint8)
        """
        if tensor.ndim < 3 or tensor.shape[-3] != len(self.mean):
            raise ValueError(f"expected a tensor [... {len(self.mean)} h w], got {list(tensor.shape)}")
        mean, std = _column(self.mean).to(tensor.device), _column(self.std).to(tensor.device)
        colours = (tensor.to(torch.float32) * std + mean) * 255  # [... c h w]
        return colours.round().clamp(0, 255).to(torch.uint8).movedim(-3, -1)  # [... h w c]

    def _resized(self, height: int, width: int) -> tuple[int, int]:
        """Height and width after the resize, before the crop."""
        if self.resize is None:
            return height, width
        if isinstance(self.resize, int):  # the longer side is rounded down, as in torchvision
            longer = int(self.resize * max(height, width) / min(height, width))
            return (self.resize, longer) if height <= width else (longer, self.resize)
        if self.cover:  # both sides are rounded to the nearest, as in timm
            ratio = min(height / self.resize[0], width / self.resize[1])
            return round(height / ratio), round(width / ratio)
        return self.resize

    def _offset(self, length: int, wanted: int) -> int:
        """Where the crop begins along one side; below 0 where the picture is too small."""
        if length <= wanted:
            return -((wanted - length) // 2)
        return round((length - wanted) / 2) if self.crop_rounding == "even" else (length - wanted) // 2

    # --- saying it ----------------------------------------------------------------------------------------

    def describe(self) -> str:
        """All of it in one line, sizes as height×width."""
        steps = []
        if isinstance(self.resize, int):
            steps.append(f"shorter side to {self.resize} ({self.interpolation})")
        elif self.resize is not None:
            verb = "cover" if self.cover else "squash to"
            steps.append(f"{verb} {self.resize[0]}×{self.resize[1]} ({self.interpolation})")
        if self.cover or self.resize != self.size:
            steps.append(f"centre crop {self.size[0]}×{self.size[1]}")
        if len(self.mean) == 1:
            steps.append("grey")
        for name, values in (("mean", self.mean), ("std", self.std)):
            steps.append(" ".join([name, *(f"{value:g}" for value in values)]))
        return ", ".join(steps)

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, numbers and words, for a config.json.

        >>> preprocess = Preprocess(size=(224, 224), resize=248, mean=HALF, std=HALF)
        >>> Preprocess.from_dict(preprocess.to_dict()) == preprocess
        True
        """
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """What `to_dict` wrote; unknown, missing or ill-typed fields are refused."""
        if not isinstance(values, Mapping):
            raise ValueError(f"preprocess has to be a table of fields, got {type(values).__name__}")
        known = [field.name for field in fields(cls)]
        if unknown := [str(name) for name in values if name not in known]:
            raise ValueError(f"preprocess has no field {', '.join(unknown)}: it has {', '.join(known)}")
        if missing := [name for name in ("size", "resize", "mean", "std") if name not in values]:
            raise ValueError(f"preprocess lacks {', '.join(missing)}: add what the model was trained with")
        return cls(**values)

    def with_size(self, size: int | tuple[int, int]) -> Self:
        """The same recipe for a model that gets another size: the resize grows or shrinks along.

        >>> Preprocess(size=(224, 224), resize=256, mean=HALF, std=HALF).with_size(448).resize
        512
        """
        height, width = _square("size", size)
        tall, wide = height / self.size[0], width / self.size[1]
        if self.resize is None:
            return replace(self, size=(height, width))
        if isinstance(self.resize, int) and tall == wide:
            return replace(self, size=(height, width), resize=max(1, round(self.resize * tall)))
        old = _square("resize", self.resize)
        resize = (max(1, round(old[0] * tall)), max(1, round(old[1] * wide)))
        cover = self.cover or isinstance(self.resize, int)  # no one length is the shorter side's any more
        return replace(self, size=(height, width), resize=resize, cover=cover)

    # --- reading what other libraries say -----------------------------------------------------------------

    @classmethod
    def from_timm(cls, pretrained_cfg: Mapping[str, Any], image_size: int | tuple[int, int] | None = None) -> Self:
        """What timm's evaluation does for a `pretrained_cfg`, at its own size or at `image_size`.

        >>> Preprocess.from_timm({"crop_pct": 0.9, "mean": HALF, "std": HALF}).resize
        248
        """
        config = {name: value for name, value in pretrained_cfg.items() if value is not None}
        channels, *size = config.get("input_size", (3, 224, 224))
        crop_share = config.get("crop_pct", 0.875)
        if image_size is not None:
            size = list(_square("image_size", image_size))
            if list(config.get("test_input_size", ()))[1:] == size:
                crop_share = config.get("test_crop_pct", crop_share)
        height, width = _pair("input_size", size)
        crop_mode = config.get("crop_mode", "center")
        if crop_mode == "border":
            raise ValueError("crop_mode border (shrink, then pad) is not supported: use center or squash")
        _one_of("crop_mode", crop_mode, ("center", "squash"))
        resize = (math.floor(height / crop_share), math.floor(width / crop_share))
        cover = crop_mode == "center" and resize[0] != resize[1]
        interpolation = config.get("interpolation", "bicubic")
        return cls(
            size=(height, width),
            resize=resize[0] if crop_mode == "center" and not cover else resize,
            mean=_for_channels("mean", config.get("mean", IMAGENET_MEAN), channels),
            std=_for_channels("std", config.get("std", IMAGENET_STD), channels),
            # timm loses the interpolation on its way when a centre crop is not square, and falls back to this
            interpolation="bilinear" if cover else interpolation,
            cover=cover,
        )

    @classmethod
    def from_huggingface(
        cls, preprocessor_config: Mapping[str, Any], image_size: int | tuple[int, int] | None = None
    ) -> Self:
        """What the image processor of a `preprocessor_config.json` does, at its own size or at `image_size`.

        >>> dinov2 = {"image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 256}}
        >>> Preprocess.from_huggingface(dinov2).describe()[:50]
        'shorter side to 256 (bicubic), centre crop 224×224'
        """
        config, kind = _huggingface_config(preprocessor_config)
        resize = _huggingface_size(config["size"], kind) if config.get("do_resize", True) else None
        if config.get("do_center_crop"):
            size = _square("crop_size", _huggingface_size(config.get("crop_size", 224)))
        elif isinstance(resize, tuple):
            size = resize
        elif image_size is not None:
            size = _square("image_size", image_size)
        else:
            raise ValueError("the preprocessor config leads to no one height and width: pass image_size")
        mean, std = _huggingface_colours(config)
        interpolation = _pillow_name(config["resample"])
        preprocess = cls(
            size=size, resize=resize, mean=mean, std=std, interpolation=interpolation, crop_rounding="down"
        )
        return preprocess if image_size is None else preprocess.with_size(image_size)

    @classmethod
    def from_torchvision(cls, transforms: Any) -> Self:
        """What torchvision's `ImageClassification` does: what `transforms()` of its weights gives.

        >>> from torchvision.models import ViT_B_16_Weights
        >>> Preprocess.from_torchvision(ViT_B_16_Weights.IMAGENET1K_V1.transforms()).resize
        256
        """
        names = ("crop_size", "resize_size", "mean", "std", "interpolation")
        if not all(hasattr(transforms, name) for name in names):
            kind = type(transforms).__name__
            raise ValueError(f"expected what weights.transforms() of a torchvision model gives, got {kind}")
        crop, resize = tuple(transforms.crop_size), tuple(transforms.resize_size)
        return cls(
            size=_square("crop_size", crop[0] if len(crop) == 1 else crop),
            resize=resize[0] if len(resize) == 1 else resize,
            mean=tuple(transforms.mean),
            std=tuple(transforms.std),
            interpolation=transforms.interpolation.value.removesuffix("-exact"),  # Pillow's nearest is exact
        )


# --- how Hugging Face says it -------------------------------------------------------------------------------

_SQUASH, _SHORTER_SIDE = {"height": 224, "width": 224}, {"shortest_edge": 224}
_CROP = {"do_center_crop": True, "crop_size": 224}
_HALVES = {"image_mean": HALF, "image_std": HALF}
_CLIP = {"image_mean": CLIP_MEAN, "image_std": CLIP_STD}

# What each image processor takes for the fields that a preprocessor_config.json leaves out.
_HUGGINGFACE: dict[str, dict[str, Any]] = {
    "ViT": {"size": _SQUASH, "resample": 2, **_HALVES},
    "DeiT": {"size": {"height": 256, "width": 256}, "resample": 3, **_CROP, **_HALVES},
    "Bit": {"size": _SHORTER_SIDE, "resample": 3, **_CROP, **_CLIP},  # the one that DINOv2 uses
    "CLIP": {"size": _SHORTER_SIDE, "resample": 3, **_CROP, **_CLIP},
    "Siglip": {"size": _SQUASH, "resample": 3, **_HALVES},
}

# Steps of other image processors that change the pixels and that no `Preprocess` takes.
_FOREIGN_STEPS = ("do_pad", "do_thumbnail", "do_align_long_axis", "do_flip_channel_order", "crop_pct")


def _huggingface_config(given: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The config with nothing left out, and which image processor it is for."""
    config = given.get("image_processor", given)  # processor_config.json holds it a level deeper
    config = {name: value for name, value in config.items() if value is not None}
    # ViTImageProcessorFast, ViTFeatureExtractor → ViT; the oldest configs, which name nothing, are ViT's
    name = config.get("image_processor_type", config.get("feature_extractor_type", "ViT"))
    kind = re.sub(r"(ImageProcessor|FeatureExtractor)(Fast|Pil)?$", "", str(name))
    config = {**_HUGGINGFACE.get(kind, {}), **config}
    if missing := [name for name in ("size", "resample", "image_mean", "image_std") if name not in config]:
        known = f"the defaults of {kind} are not known here, only those of {', '.join(_HUGGINGFACE)}"
        raise ValueError(f"the preprocessor config lacks {', '.join(missing)}: add them ({known})")
    if foreign := [name for name in _FOREIGN_STEPS if config.get(name)]:
        raise ValueError(f"the preprocessor config asks for {', '.join(foreign)}, which is not supported")
    return config, kind


def _huggingface_size(size: Any, kind: str = "") -> int | tuple[int, int]:
    """One number for the shorter side, or a height and width."""
    if isinstance(size, Mapping):
        size = {name: value for name, value in size.items() if value is not None}
        if set(size) == {"shortest_edge"} and _is_count(size["shortest_edge"]):
            return int(size["shortest_edge"])
        if set(size) == {"height", "width"}:
            return _pair("size", (size["height"], size["width"]))
        raise ValueError(f"size has to be height and width, or shortest_edge, got {size}")
    if _is_count(size) and kind in ("Bit", "CLIP", "Siglip"):  # in old configs; for all others it is a square
        return int(size)
    return _square("size", size)


def _huggingface_colours(config: Mapping[str, Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std for pixels from 0 to 1: another rescale factor, or none, amounts to others of these."""
    factor = config.get("rescale_factor", 1 / 255) if config.get("do_rescale", True) else 1.0
    share = 1.0 if math.isclose(factor * 255, 1, rel_tol=1e-6) else 1 / (factor * 255)
    if not config.get("do_normalize", True):
        return (0.0, 0.0, 0.0), (share, share, share)
    both = [
        _colours(name, config[name] if isinstance(config[name], Sequence) else [config[name]] * 3)
        for name in ("image_mean", "image_std")
    ]
    mean, std = (tuple(value * share for value in values) for values in both)
    return mean, std


def _pillow_name(resample: Any) -> str:
    names = {int(number): name for name, number in INTERPOLATIONS.items()}
    if resample not in names:
        raise ValueError(f"resample has to be one of Pillow's numbers {sorted(names)}, got {resample!r}")
    return names[resample]


# --- checking -----------------------------------------------------------------------------------------------


def _column(values: tuple[float, ...]) -> Tensor:
    return torch.tensor(values, dtype=torch.float32).view(-1, 1, 1)  # [c 1 1]


def _is_count(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) > 0


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def _pair(name: str, value: Any) -> tuple[int, int]:
    if not isinstance(value, (tuple, list)) or len(value) != 2 or not all(_is_count(side) for side in value):
        one = " (or one length for the shorter side, or null)" if name == "resize" else ""
        raise ValueError(f"{name} has to be height and width in whole pixels above 0{one}, got {value!r}")
    return int(value[0]), int(value[1])


def _square(name: str, size: Any) -> tuple[int, int]:
    return (int(size), int(size)) if _is_count(size) else _pair(name, size)


def _colours(name: str, values: Any) -> tuple[float, ...]:
    is_list = isinstance(values, (tuple, list)) and len(values) in (1, 3)
    if not is_list or not all(_is_number(value) for value in values):
        raise ValueError(f"{name} has to be 3 numbers (red, green, blue), or 1 for grey, got {values!r}")
    return tuple(float(value) for value in values)


def _for_channels(name: str, values: Any, channels: int) -> tuple[float, ...]:
    """As many values as the model has input channels; where all are alike, their number does not matter."""
    values = _colours(name, values)
    if len(set(values)) == 1:
        values = values[:1] * channels
    if len(values) != channels:
        raise ValueError(f"{name} has {len(values)} values, the model {channels} channels: give as many")
    return values


def _one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{name} has to be one of {', '.join(known)}, got {value!r}")
