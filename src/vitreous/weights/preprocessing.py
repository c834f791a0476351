"""The preprocessing of a checkpoint: what files next to its weights state, else what its family or library assumes."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from vitreous.data.preprocess import CLIP_MEAN, CLIP_STD, HALF, IMAGENET_MEAN, IMAGENET_STD, Preprocess
from vitreous.data.preprocess_configs import from_huggingface, from_open_clip, from_timm, from_torchvision
from vitreous.weights.card import LoadReport
from vitreous.weights.config_files import read_json
from vitreous.weights.fetch import CheckpointFiles
from vitreous.weights.names import TORCHVISION_MODELS
from vitreous.weights.safety import CheckpointError

STATISTICS = {  # mean and standard deviation of transformers' families, by the name of their format
    "huggingface-siglip": (HALF, HALF, "SigLIP"),
    "huggingface-beit": (HALF, HALF, "BEiT"),
    "huggingface-dpt": (HALF, HALF, "DPT"),
    "huggingface-aimv2": (CLIP_MEAN, CLIP_STD, "AIMv2"),
    "huggingface-dinov3": (IMAGENET_MEAN, IMAGENET_STD, "DINOv3"),
}
SQUASHED = {  # transformers resizes both sides, by this interpolation
    **dict.fromkeys(("huggingface-siglip", "huggingface-beit", "huggingface-dpt"), "bicubic"),
    "huggingface-dinov3": "bilinear",
}


def preprocessing(
    files: CheckpointFiles,
    sidecar: Mapping[str, Any],
    size: tuple[int, int],
    channels: int,
    report: LoadReport,
    inside: Mapping[str, Any] = MappingProxyType({}),
) -> Preprocess:
    """Return a checkpoint's preprocessing for a model of this size; if it is assumed, the report states it.

    `inside` is what timm's training script says in the file of weights.
    """
    preprocess = _preprocessing(files, sidecar, size, channels, report, inside)
    if rounding := (sidecar.get("vitreous") or {}).get("crop_rounding"):  # `convert` writes it
        preprocess = replace(preprocess, crop_rounding=rounding)
    return preprocess


def _preprocessing(
    files: CheckpointFiles,
    sidecar: Mapping[str, Any],
    size: tuple[int, int],
    channels: int,
    report: LoadReport,
    inside: Mapping[str, Any],
) -> Preprocess:
    """Read a checkpoint's preprocessing from its config files, or assume the family's usual one."""
    if files.weights_enum is not None:
        return from_torchvision(files.weights_enum.transforms())
    if files.preprocessor is not None:
        stated = read_json(files.preprocessor)
        kinds = [stated.get(name) for name in ("image_processor_type", "feature_extractor_type", "image_processor")]
        if not any(kinds) and report.format != "huggingface":  # only the oldest ViTs name no processor
            raise CheckpointError(f"{files.preprocessor.name} names no image_processor_type: get it again")
        preprocess = from_huggingface(stated, image_size=size)
        if isinstance(preprocess.resize, int) and not stated.get("do_center_crop", True):
            report.assumed["preprocessing"] = f"{preprocess.describe()} (its own has no fixed size: a crop is added)"
        if any(str(kind).startswith("Siglip2") for kind in kinds) or stated.get("keep_aspect_ratio"):
            report.assumed["preprocessing"] = f"{preprocess.describe()} (its own keeps the shape of each image)"
        return preprocess
    if "model_cfg" in sidecar:
        return from_open_clip(sidecar.get("preprocess_cfg") or {}, image_size=size)
    pretrained = sidecar.get("pretrained_cfg") or sidecar
    if "architecture" in sidecar or ("mean" in pretrained and "std" in pretrained):  # else timm's own defaults
        return from_timm(dict(pretrained), image_size=size)
    if report.format.startswith("torchvision"):
        if (member := torchvision_weights(files.weights[0].name)) is not None:
            return from_torchvision(member.transforms())
        preprocess, family = usual_torchvision(size, files.weights[0].name), "torchvision's models"
        if stated := inside.get("pretrained_cfg", {}):
            settings: dict[str, Any] = {"mean": preprocess.mean, "std": preprocess.std, "input_size": (channels, *size)}
            settings["crop_pct"] = 1.0 if preprocess.resize == size else 0.875
            settings["interpolation"] = preprocess.interpolation
            preprocess, family = from_timm(settings | stated), f"{family}, {_but_for(stated)}"
    else:
        mean, std, family = usual_statistics(report.format, inside.get("architecture") or files.name)
        if channels != len(mean):
            mean, std, family = (0.5,) * channels, (0.5,) * channels, f"a model of {channels} channel(s)"
        settings = {"mean": mean, "std": std, "crop_pct": 0.9, "input_size": (channels, *size)}
        if report.format == "huggingface" or report.format.startswith(tuple(SQUASHED)):
            resample = next((name for start, name in SQUASHED.items() if report.format.startswith(start)), "bilinear")
            settings |= {"crop_pct": 1.0, "crop_mode": "squash", "interpolation": resample}
        if stated := inside.get("pretrained_cfg", {}):
            settings, family = settings | stated, f"{family}, {_but_for(stated)}"
        preprocess = from_timm(settings)
    report.assumed["preprocessing"] = f"{preprocess.describe()} (usual for {family})"
    return preprocess


def _but_for(stated: Mapping[str, Any]) -> str:
    """Say which of the assumed preprocessing a training script states in the file of weights."""
    return f"but for {', '.join(stated)}: its args state them"


def torchvision_weights(file_name: str) -> Any:
    """Look up the preprocessing of a file by its name in torchvision: the `WeightsEnum` member with it, or None."""
    if not re.fullmatch(r"(vit|resnet)\w*-[0-9a-f]{8}\.pth", file_name):
        return None
    from torchvision.models import get_model_weights

    members = (member for model in TORCHVISION_MODELS for member in get_model_weights(model))
    return next((member for member in members if member.url.endswith(f"/{file_name}")), None)


def usual_torchvision(size: tuple[int, int], file_name: str) -> Preprocess:
    """Assume the preprocessing that is usual at torchvision, by image size and file name: resize, crop, mean, std.

    SWAG's is bicubic and has no crop.
    """
    swag = "swag" in file_name or size[0] in (384, 512, 518)
    resize = size if swag else (max(1, round(size[0] * 256 / 224)), max(1, round(size[1] * 256 / 224)))
    return Preprocess(
        size=size,
        resize=resize[0] if size[0] == size[1] else resize,
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        interpolation="bicubic" if swag else "bilinear",
        cover=size[0] != size[1],
    )


def processor_size(files: CheckpointFiles, trained_size: tuple[int, int]) -> tuple[int, int] | None:
    """Return the image size in a checkpoint's preprocessing file (Hugging Face's), if trained at another.

    DINOv2 was trained at 518 px, but its processor crops to 224 and its library resizes positions as it runs.
    """
    if files.preprocessor is None:
        return None
    try:
        size = from_huggingface(read_json(files.preprocessor)).size
    except ValueError:  # a processor without one fixed size
        return None
    return size if size != trained_size else None


def usual_statistics(format: str, name: str) -> tuple[tuple[float, ...], tuple[float, ...], str]:
    """Return the mean and std of the preprocessing that is usual for a checkpoint's family, and the family's name.

    They are assumed where no file states them.
    """
    name = name.lower()
    if (known := next((value for start, value in STATISTICS.items() if format.startswith(start)), None)) is not None:
        return known
    if "clip" in format or "clip" in name:
        return CLIP_MEAN, CLIP_STD, "CLIP"
    google = format.startswith("google") or "augreg" in name or "flexivit" in name
    if google or (format == "huggingface" and "deit" not in name):
        return HALF, HALF, "Google's ViTs"
    if format == "timm" and Path(name).name.startswith("vit_") and "dino" not in name and "mae" not in name:
        return HALF, HALF, "timm's vit_* models"
    return IMAGENET_MEAN, IMAGENET_STD, "models trained with ImageNet's statistics"
