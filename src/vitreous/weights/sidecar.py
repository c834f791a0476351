"""Read config files next to the weights: unknown fields, size, preprocessing, class names; assume the family's."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from runpy import run_path
from types import MappingProxyType
from typing import Any

from vitreous.data.preprocess import CLIP_MEAN, CLIP_STD, HALF, IMAGENET_MEAN, IMAGENET_STD, Preprocess
from vitreous.data.preprocess_configs import from_huggingface, from_open_clip, from_timm, from_torchvision
from vitreous.weights.card import Card, LoadReport, stated_task
from vitreous.weights.fetch import CheckpointFiles
from vitreous.weights.names import TORCHVISION_MODELS
from vitreous.weights.safety import CheckpointError

Names = tuple[str, ...] | None
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
MAX_CONFIG_BYTES = 64 * 2**20  # the limit for a config file: one with 21,843 class names has about 2 MB


def read_json(path: Path | None) -> dict[str, Any]:
    """Read a config file next to the weights as a dict; return an empty one if `path` is None."""
    if path is None:
        return {}
    if path.stat().st_size > MAX_CONFIG_BYTES:
        raise CheckpointError(f"{path}: expected a config file of at most {MAX_CONFIG_BYTES >> 20} MiB: get it again")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(f"{path}: not valid JSON ({error}): get it again") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: expected a JSON object, got a {type(value).__name__}: get it again")
    return value


def check_fields(section: Any, known: Iterable[str], source: str) -> None:
    """Raise for a field of a checkpoint's config file that is neither read nor known to be harmless."""
    if not isinstance(section, Mapping):
        raise CheckpointError(f"{source} should be an object of fields, got {section!r:.40}: get it again")
    if unknown := [str(name) for name in section if name not in set(known)]:
        raise CheckpointError(
            f"{source} has the field {unknown[0][:60]}={section[unknown[0]]!r:.40}, which is not known to be harmless: "
            f"if it is, pass --assume ignored={unknown[0][:60]}"
        )


def imagenet_names() -> tuple[str, ...]:
    """Return ImageNet-1k's class names, which are assumed for 1000 classes, as torchvision spells them."""
    package = find_spec("torchvision")
    path = Path(package.origin).parent / "models/_meta.py" if package and package.origin else None
    if path is None or not path.is_file():
        from torchvision.models._meta import _IMAGENET_CATEGORIES

        return tuple(_IMAGENET_CATEGORIES)
    # run this one file, which holds nothing but lists: importing torchvision would take a second
    return tuple(run_path(str(path))["_IMAGENET_CATEGORIES"])


def imagenet_wordnet_ids() -> tuple[str, ...]:
    """Return ImageNet-1k's WordNet ids, such as n03028079, in class order."""
    return tuple((resources.files("vitreous.weights") / "imagenet_wordnet_ids.txt").read_text().split())


def class_names(files: CheckpointFiles, sidecar: Mapping[str, Any], classes: int, report: LoadReport) -> Names:
    """Return the class names; if they are assumed, the report states it."""
    names = _stated_names(files, sidecar)
    if names is not None or classes != 1000:  # names of another number of classes are those of another model
        return names if names is not None and len(names) == classes else None
    report.assumed["class names"] = "ImageNet-1k's names (there are 1,000 classes)"
    return imagenet_names()


def classifier_card(
    family: str,
    files: CheckpointFiles,
    sidecar: Mapping[str, Any],
    own: Mapping[str, Any],
    preprocess: Preprocess,
    report: LoadReport,
    config: Any,
    stored: int,
    *,
    replaced: bool,
) -> Card:
    """Make the card of a ResNet or a timm classifier of `stored` classes; of its old head nothing if it was `replaced`.

    `own` is the `"vitreous"` section of the config file, `config` the model's.
    """
    names = None if replaced else class_names(files, sidecar, stored, report)
    return Card(
        name=str(files.name),
        preprocess=preprocess,
        class_names=names,
        head="classifier" if config.classes else "none",
        origin=files.origin,
        revision=files.revision,
        files=tuple(str(path) for path in files.weights),
        family=family,
        report=report,
        training=None if replaced else own.get("training"),
        **({} if replaced else stated_task(sidecar, own, config)),
    )


def _stated_names(files: CheckpointFiles, sidecar: Mapping[str, Any]) -> Names:
    """Return the class names that the config files state."""
    if files.weights_enum is not None:
        return tuple(files.weights_enum.meta["categories"])
    by_index = sidecar.get("id2label")
    if isinstance(by_index, Mapping) and by_index and all(str(key).isdecimal() for key in by_index):
        names = tuple(str(by_index[key]) for key in sorted(by_index, key=int))
        return None if all(name.startswith("LABEL_") for name in names) else names
    for section in (sidecar, sidecar.get("pretrained_cfg") or {}):
        if isinstance(listed := section.get("label_names") or section.get("class_names"), list):
            return tuple(str(name) for name in listed)
    return None


def preprocessing(
    files: CheckpointFiles,
    sidecar: Mapping[str, Any],
    size: tuple[int, int],
    channels: int,
    report: LoadReport,
    inside: Mapping[str, Any] = MappingProxyType({}),
) -> Preprocess:
    """Return the preprocessing for a model of this size; if it is assumed, the report states it.

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
    """Read the preprocessing from the config files, or assume the family's usual one."""
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
    """Return torchvision's `WeightsEnum` member of a file's name, which states its preprocessing; None if unknown."""
    if not re.fullmatch(r"(vit|resnet)\w*-[0-9a-f]{8}\.pth", file_name):
        return None
    from torchvision.models import get_model_weights

    members = (member for model in TORCHVISION_MODELS for member in get_model_weights(model))
    return next((member for member in members if member.url.endswith(f"/{file_name}")), None)


def usual_torchvision(size: tuple[int, int], file_name: str) -> Preprocess:
    """Assume the usual preprocessing of torchvision's own weights: SWAG's are not cropped and resized bicubically."""
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
    """Return the size in Hugging Face's preprocessing file, if the model was trained at another.

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
    """Assume mean and std where no file states them: those that the checkpoint's family is usually trained with."""
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
