"""Read other libraries' preprocessing configs (timm, Hugging Face, OpenCLIP, torchvision) into a `Preprocess`.

timm has a `pretrained_cfg`, Hugging Face a `preprocessor_config.json`, OpenCLIP a `preprocess_cfg`, torchvision a
transform.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from vitreous.data.preprocess import (
    CLIP_MEAN,
    CLIP_STD,
    HALF,
    IMAGENET_MEAN,
    IMAGENET_STD,
    INTERPOLATIONS,
    Preprocess,
    colours,
    is_count,
    one_of,
    pair,
    square,
)


def from_timm(pretrained_cfg: Mapping[str, Any], image_size: int | tuple[int, int] | None = None) -> Preprocess:
    """Read the preprocessing in timm's `pretrained_cfg`, at its own size or at `image_size`.

    >>> from_timm({"crop_pct": 0.9, "mean": HALF, "std": HALF}).resize
    248
    """
    config = {name: value for name, value in pretrained_cfg.items() if value is not None}
    channels, *size = config.get("input_size", (3, 224, 224))
    crop_share = config.get("crop_pct", 0.875)
    if image_size is not None:
        size = list(square("image_size", image_size))
        if list(config.get("test_input_size", ()))[1:] == size:
            crop_share = config.get("test_crop_pct", crop_share)
    height, width = pair("input_size", size)
    crop_mode = config.get("crop_mode", "center")
    if crop_mode == "border":
        raise ValueError("crop_mode border (shrink, then pad) is not supported: use center or squash")
    one_of("crop_mode", crop_mode, ("center", "squash"))
    resize = (math.floor(height / crop_share), math.floor(width / crop_share))
    cover = crop_mode == "center" and resize[0] != resize[1]
    return Preprocess(
        size=(height, width),
        resize=resize[0] if crop_mode == "center" and not cover else resize,
        mean=for_channels("mean", config.get("mean", IMAGENET_MEAN), channels),
        std=for_channels("std", config.get("std", IMAGENET_STD), channels),
        interpolation=config.get("interpolation", "bicubic"),
        cover=cover,
    )


def from_huggingface(
    preprocessor_config: Mapping[str, Any], image_size: int | tuple[int, int] | None = None
) -> Preprocess:
    """Read the preprocessing in Hugging Face's `preprocessor_config.json`, at its own size or at `image_size`.

    >>> dinov2 = {"image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 256}}
    >>> from_huggingface(dinov2).describe()[:50]
    'shorter side to 256 (bicubic), centre crop 224×224'
    """
    config, kind = _huggingface_config(preprocessor_config)
    resize = _huggingface_size(config["size"], kind) if config.get("do_resize", True) else None
    if resize is None and not config.get("do_center_crop"):
        raise ValueError("the preprocessor config neither resizes nor crops: images of any size would reach the model")
    crop = square("crop_size", _huggingface_size(config.get("crop_size", 224)))  # checked even if it is not used
    if config.get("do_center_crop"):
        size = crop
    elif isinstance(resize, tuple):
        size = resize
    elif image_size is not None:
        size = square("image_size", image_size)
    else:
        raise ValueError("the preprocessor config gives no fixed height and width: pass image_size")
    mean, std = _huggingface_colours(config)
    interpolation = _pillow_name(config["resample"])
    preprocess = Preprocess(
        size=size, resize=resize, mean=mean, std=std, interpolation=interpolation, crop_rounding="down"
    )
    return preprocess if image_size is None else preprocess.with_size(image_size)


def from_open_clip(preprocess_cfg: Mapping[str, Any], image_size: int | tuple[int, int]) -> Preprocess:
    """Read the preprocessing in OpenCLIP's `preprocess_cfg` for `image_size`; what it leaves out is OpenAI's.

    >>> from_open_clip({"interpolation": "bicubic", "resize_mode": "squash"}, 224).describe()[:31]
    'squash to 224×224 (bicubic), me'
    """
    usual = {"mean": CLIP_MEAN, "std": CLIP_STD, "interpolation": "bicubic", "resize_mode": "shortest", "mode": "RGB"}
    config = usual | dict(preprocess_cfg)
    if unknown := sorted(config.keys() - usual.keys() - {"size", "fill_color"}):
        raise ValueError(f"preprocess_cfg has the field {unknown[0]}, which is not known to be harmless")
    one_of("resize_mode", config["resize_mode"], ("shortest", "squash"))  # `longest` pads, which is not supported
    one_of("mode", config["mode"], ("RGB",))
    if "size" in config and square("size", config["size"]) != square("image_size", image_size):
        raise ValueError(
            f"preprocess_cfg says size={config['size']}, the model takes {image_size}: get both files again"
        )
    crop_mode = "squash" if config["resize_mode"] == "squash" else "center"
    timms = {name: config[name] for name in ("mean", "std", "interpolation")}
    return from_timm(timms | {"crop_pct": 1.0, "crop_mode": crop_mode}, image_size=image_size)


def from_torchvision(transforms: Any) -> Preprocess:
    """Read the preprocessing in torchvision's `ImageClassification`, the result of its weights' `transforms()`.

    >>> from torchvision.models import ViT_B_16_Weights
    >>> from_torchvision(ViT_B_16_Weights.IMAGENET1K_V1.transforms()).resize
    256
    """
    names = ("crop_size", "resize_size", "mean", "std", "interpolation")
    if not all(hasattr(transforms, name) for name in names):
        kind = type(transforms).__name__
        raise ValueError(f"expected the result of weights.transforms() of a torchvision model, got {kind}")
    crop, resize = tuple(transforms.crop_size), tuple(transforms.resize_size)
    return Preprocess(
        size=square("crop_size", crop[0] if len(crop) == 1 else crop),
        resize=resize[0] if len(resize) == 1 else resize,
        mean=tuple(transforms.mean),
        std=tuple(transforms.std),
        interpolation=transforms.interpolation.value.removesuffix("-exact"),  # Pillow's nearest is exact
    )


def for_channels(name: str, values: Any, channels: int) -> tuple[float, ...]:
    """Spread the mean or std of timm's config over the model's input channels; equal values are repeated as needed."""
    found = colours(name, values)
    if len(set(found)) == 1 and len(found) in (1, 3):
        found = found[:1] * channels
    if len(found) != channels:
        raise ValueError(f"{name} has {len(found)} values, the model {channels} channels: give as many")
    return found


# --- Hugging Face -------------------------------------------------------------------------------------------

_SQUASH, _SHORTER_SIDE = {"height": 224, "width": 224}, {"shortest_edge": 224}
_CROP = {"do_center_crop": True, "crop_size": 224}
_HALVES = {"image_mean": HALF, "image_std": HALF}
_CLIP = {"image_mean": CLIP_MEAN, "image_std": CLIP_STD}

# Defaults of each image processor, for the fields that a preprocessor_config.json leaves out.
_HUGGINGFACE: dict[str, dict[str, Any]] = {
    "ViT": {"size": _SQUASH, "resample": 2, **_HALVES},
    "DeiT": {"size": {"height": 256, "width": 256}, "resample": 3, **_CROP, **_HALVES},
    "Bit": {"size": _SHORTER_SIDE, "resample": 3, **_CROP, **_CLIP},  # the one that DINOv2 uses
    "CLIP": {"size": _SHORTER_SIDE, "resample": 3, **_CROP, **_CLIP},
    "Siglip": {"size": _SQUASH, "resample": 3, **_HALVES},
    "Siglip2": {"patch_size": 16, "max_num_patches": 256, "resample": 2, **_HALVES},
    "Beit": {"size": _SQUASH, "resample": 3, **_HALVES},
    "DPT": {"size": {"height": 384, "width": 384}, "resample": 3, "ensure_multiple_of": 1, **_HALVES},
}

_USUAL = {"do_resize": True, "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True}  # of all

# Fields that are read, and fields that do not change the pixels of an RGB image. Any other that is not false or null
# could be a step that `Preprocess` does not have, such as do_pad or do_flip_channel_order.
_READ = (
    *("image_processor_type", "feature_extractor_type", "do_resize", "size", "resample", "do_center_crop", "crop_size"),
    *("do_rescale", "rescale_factor", "do_normalize", "image_mean", "image_std"),
)
_HARMLESS = (
    "do_reduce_labels",
    "reduce_labels",
    "do_convert_rgb",
    "processor_class",
    "data_format",
    "input_data_format",
    "device",
    "return_tensors",
)


def _huggingface_config(given: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Return Hugging Face's preprocessor config with defaults filled in, and the kind of its image processor."""
    config = given.get("image_processor", given)  # processor_config.json holds it a level deeper
    named = config.get("image_processor_type", "ViTImageProcessor")
    if not re.fullmatch(r"\w+(ImageProcessor|FeatureExtractor)(Fast|Pil)?", str(named)):
        raise ValueError(f"image_processor_type has to be a name such as ViTImageProcessor, got {named!r:.40}")
    nulls = [name for name, value in config.items() if value is None]
    config = {name: value for name, value in config.items() if value is not None}
    # ViTImageProcessorFast, ViTFeatureExtractor → ViT; the oldest configs, which name nothing, are ViT's
    name = config.get("image_processor_type", config.get("feature_extractor_type", "ViT"))
    if name == "":
        raise ValueError("the preprocessor config names no image_processor_type: get it again")
    kind = re.sub(r"(ImageProcessor|FeatureExtractor)(Fast|Pil)?$", "", str(name))
    usual = _USUAL | _HUGGINGFACE.get(kind, {})
    if unclear := [name for name in nulls if usual.get(name)]:  # null: the default in some versions, off in others
        raise ValueError(f"the preprocessor config has {unclear[0]}=null: give it a value, or leave it out")
    config = {**usual, **config}
    if kind == "Siglip2":  # it keeps each image's shape and fills a number of patches: a square of as many is read
        config["size"] = math.isqrt(config.pop("max_num_patches")) * config.pop("patch_size")
    if kind == "DPT":  # it can keep each image's shape, in sides that a number divides: its square is read
        config.pop("keep_aspect_ratio", None)
        multiple, sides = config.pop("ensure_multiple_of"), square("size", _huggingface_size(config["size"]))
        if not is_count(multiple) or any(side % multiple for side in sides):
            raise ValueError(f"ensure_multiple_of has to divide the sides {sides}, got {multiple!r:.40}")
    if missing := [name for name in ("size", "resample", "image_mean", "image_std") if name not in config]:
        known = f"the defaults of {kind} are unknown, only those known are of {', '.join(_HUGGINGFACE)}"
        raise ValueError(f"the preprocessor config lacks {', '.join(missing)}: add them ({known})")
    if unsupported := [name for name in config if name not in (*_READ, *_HARMLESS) and config[name]]:
        raise ValueError(f"the preprocessor config asks for {', '.join(unsupported)}, which is not supported")
    return config, kind


def _huggingface_size(size: Any, kind: str = "") -> int | tuple[int, int]:
    """Read Hugging Face's image size: one number for the shorter side, or a height and width."""
    if isinstance(size, Mapping):
        size = {name: value for name, value in size.items() if value is not None}
        if set(size) == {"shortest_edge"} and is_count(size["shortest_edge"]):
            return int(size["shortest_edge"])
        if set(size) == {"height", "width"}:
            return pair("size", (size["height"], size["width"]))
        raise ValueError(f"size has to be height and width, or shortest_edge, got {size}")
    if is_count(size) and kind in ("Bit", "CLIP", "Siglip"):  # in old configs; for all others it is a square
        return int(size)
    return square("size", size)


def _huggingface_colours(config: Mapping[str, Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Read Hugging Face's mean and std for pixels from 0 to 1; another rescale factor, or none, is folded in."""
    factor = config.get("rescale_factor", 1 / 255) if config.get("do_rescale", True) else 1.0
    share = 1.0 if math.isclose(factor * 255, 1, rel_tol=1e-6) else 1 / (factor * 255)
    if not config.get("do_normalize", True):
        return (0.0, 0.0, 0.0), (share, share, share)
    both = [
        colours(name, config[name] if isinstance(config[name], Sequence) else [config[name]] * 3)
        for name in ("image_mean", "image_std")
    ]
    mean, std = (tuple(value * share for value in values) for values in both)
    return mean, std


def _pillow_name(resample: Any) -> str:
    """Name the interpolation in Hugging Face's config, which is Pillow's number."""
    names = {int(number): name for name, number in INTERPOLATIONS.items()}
    if resample not in names:
        raise ValueError(f"resample has to be one of Pillow's numbers {sorted(names)}, got {resample!r}")
    return names[resample]
