"""A model to another library's files: what the library can hold, under its names, with its config beside."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from vitreous.data.preprocess import Preprocess
from vitreous.models.vit import ViT
from vitreous.weights import save
from vitreous.weights.adapt import PLAIN, Written, card_of, refuse, smoothed
from vitreous.weights.formats import google_npz, timm, torchvision
from vitreous.weights.formats.to_huggingface import to_huggingface
from vitreous.weights.keymap import Tensors, to_theirs


def convert(model: nn.Module, out: str | Path, to: str) -> list[Path]:
    """Write `model` for another library; `out` is a folder, or a file by its suffix.

    `to` is one of `TARGETS`. A folder gets `model.safetensors` (Google: `model.npz`) and the config files that the
    library reads. A `.safetensors`, `.pth`, `.pt` or `.npz` file gets the tensors alone; preprocessing and class names,
    for which such a file has no place, go to a `.json` of the same name, which `load` reads.
    """
    if to not in TARGETS:
        raise ValueError(f"the format must be one of {', '.join(TARGETS)}, got {to!r}")
    if not isinstance(model, ViT):
        raise ValueError(f"only ViTs are converted, got a {type(model).__name__}")
    out = Path(out)
    if to == "vitreous":
        if out.suffix:
            raise ValueError(f"our own format is a folder, got {out.name}: leave the suffix off")
        return save.save(model, out)
    if (out.suffix == ".npz") != (to == "google") and out.suffix:
        raise ValueError(f"{to} is not written as {out.suffix}: try {out.with_suffix(SUFFIX[to]).name}")
    written = TARGETS[to](model)
    travelling = {"vitreous": card_of(model).described()}  # what the format has no place for; we read it back
    if out.suffix in WRITERS:
        return [WRITERS[out.suffix](out, written.tensors), save.write_json(out.with_suffix(".json"), travelling)]
    if out.suffix:
        raise ValueError(f"{out.suffix} is no file format known here: {', '.join(WRITERS)}, or a folder")
    beside = written.beside or {"config.json": travelling}
    suffix = ".npz" if to == "google" else ".safetensors"
    paths = [WRITERS[suffix](out / f"model{suffix}", written.tensors)]
    return paths + [save.write_json(out / name, value) for name, value in beside.items()]


WRITERS: dict[str, Callable[[Path, Tensors], Path]] = {
    ".safetensors": save.write_safetensors,
    ".pth": save.write_pickle,
    ".pt": save.write_pickle,
    ".npz": save.write_npz,
}
SUFFIX = {"google": ".npz", "torchvision": ".pth", "timm": ".safetensors", "huggingface": ".safetensors"}


def to_timm(model: ViT) -> Written:
    """Keys are timm's already; `config.json` names the entry point that builds the model."""
    tensors, config = smoothed(model, class_slots=None)
    clip_like = config.embedding_norm
    refuse(config, "timm", {"representation_size": (0,), "pool": ("token", "mean"), "patch_bias": (not clip_like,)})
    if config.distillation_token:
        refuse(config, "timm", {"distillation_head": (bool(config.classes),), "registers": (0,), "pool": ("token",)})
    if config.fc_norm and config.final_norm:
        raise ValueError("timm cannot hold this model: it has a norm before or after pooling, not both")
    name, arguments = timm.architecture(config)
    card = card_of(model)
    described: dict[str, Any] = {
        "architecture": name,
        "num_classes": config.classes,
        "num_features": config.width,
        "global_pool": {"token": "token", "mean": "avg"}[config.pool],
        "pretrained_cfg": {
            "num_classes": config.classes,
            "input_size": [config.channels, *config.size],
            "first_conv": "patch_embed.proj",
            "classifier": ["head", "head_dist"] if config.distillation_head else "head",
            **_timm_preprocess(card.preprocess),
        },
    }
    if arguments:
        described["model_args"] = arguments
    if card.class_names:
        described["label_names"] = list(card.class_names)
    return Written(tensors, {"config.json": described})


def to_torchvision(model: ViT) -> Written:
    """A state dict alone: torchvision reads no config."""
    tensors, config = smoothed(model, class_slots=1)
    refuse(config, "torchvision", PLAIN | {"activation": ("gelu",), "qkv_bias": (True,), "patch_bias": (True,)})
    if not config.classes:
        raise ValueError("torchvision cannot hold this model: its ViTs always have a head, this one has none")
    return Written(to_theirs(tensors, torchvision.RULES, config), {})


def to_google(model: ViT) -> Written:
    """The arrays of the original release, which has no config either."""
    tensors, config = smoothed(model, class_slots=1)
    limits = PLAIN | {"activation": ("gelu", "gelu_tanh"), "qkv_bias": (True,), "patch_bias": (True,)}
    refuse(config, "Google's .npz", limits)
    return Written(to_theirs(tensors, google_npz.ORIGINAL_RULES, config), {})


TARGETS: dict[str, Callable[[ViT], Written]] = {
    "timm": to_timm,
    "torchvision": to_torchvision,
    "huggingface": to_huggingface,
    "google": to_google,
    "vitreous": lambda model: Written({}, {}),
}


def _timm_preprocess(preprocess: Preprocess) -> dict[str, Any]:
    height = preprocess.size[0]
    resize = preprocess.resize or preprocess.size
    squash = isinstance(resize, tuple) and not preprocess.cover
    first = resize[0] if isinstance(resize, tuple) else resize
    return {
        "mean": list(preprocess.mean),
        "std": list(preprocess.std),
        "interpolation": preprocess.interpolation,
        "crop_pct": 1.0 if first == height else height / (first + 0.5),  # timm rounds height / crop_pct down
        "crop_mode": "squash" if squash else "center",
    }
