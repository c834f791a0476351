"""`convert`: write a model as another library's files, converted by that library's format, and read back to check.

What is written is read back before it is kept: a config or a preprocessing that the library cannot hold is an error.
"""

import json
from collections.abc import Callable, Collection
from copy import deepcopy
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from torch import nn

from vitreous.data.preprocess import Preprocess
from vitreous.data.preprocess_configs import from_huggingface, from_timm
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.runtime.files import write_json
from vitreous.weights.adapt import ConvertedCheckpoint
from vitreous.weights.card import card_of, fold_standard
from vitreous.weights.config_files import read_json
from vitreous.weights.fetch import FOLDER_FILES
from vitreous.weights.formats import (
    clip,
    google,
    huggingface,
    huggingface_aimv2,
    huggingface_beit,
    huggingface_dinov3,
    siglip,
    timm,
    torchvision,
)
from vitreous.weights.formats.registry import recognise
from vitreous.weights.keymap import Tensors
from vitreous.weights.names import SUFFIXES
from vitreous.weights.save import check_head, save, write_npz, write_pickle, write_safetensors
from vitreous.weights.saved_config import VERSION
from vitreous.weights.timm_architectures import normalise

TARGETS: dict[str, Callable[[ViT], ConvertedCheckpoint]] = {
    "timm": timm.to_timm,
    "torchvision": torchvision.to_torchvision,
    "huggingface": lambda model: _transformers_family(model.config).to_huggingface(model),
    "google": google.to_google,
}
OWN = "vitreous"
WRITERS: dict[str, Callable[[Path, Tensors], Path]] = {
    ".safetensors": write_safetensors,
    ".pth": write_pickle,
    ".pt": write_pickle,
    ".npz": write_npz,
}


def convert(model: nn.Module, out: str | Path, to: str) -> list[Path]:
    """Write `model` for another library; `out` is a folder, or a file by its suffix.

    `to` is one of `TARGETS`, or `vitreous` for our own format. A folder gets `model.safetensors` (Google: `model.npz`)
    and the config files that the library reads. A `.safetensors`, `.pth`, `.pt` or `.npz` file gets the tensors alone;
    preprocessing and class names, which such a file cannot hold, go to a `.json` of the same name, which `load` reads
    (for `model.safetensors`: `config.json`). Files that `load` would mix with those of another checkpoint are an error.

    >>> import tempfile
    >>> from vitreous.weights.load import load
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [path.name for path in convert(load("packaged:cifar10"), folder, to="huggingface")]
    ['model.safetensors', 'config.json', 'preprocessor_config.json']
    """
    if to not in (*TARGETS, OWN):
        raise ValueError(f"the format must be one of {', '.join((*TARGETS, OWN))}, got {to!r}")
    if not isinstance(model, ViT):
        raise ValueError(f"only ViTs are converted, got a {type(model).__name__}")
    check_head(model)
    if to in ("timm", "huggingface") and card_of(model).preprocess.pad:
        raise ValueError(f"{to} has no padded images: convert a model whose preprocessing crops or squashes them")
    out = Path(out)
    if to == OWN:
        if out.suffix:
            raise ValueError(f"our own format is a folder, got {out.name}: leave the suffix off")
        check_folder(out, ("model.safetensors", "config.json"))
        return save(model, out)
    if (out.suffix == ".npz") != (to == "google") and out.suffix:
        suffix = {"google": ".npz", "torchvision": ".pth"}.get(to, ".safetensors")
        raise ValueError(f"{to} is not written as {out.suffix}: try {out.with_suffix(suffix).name}")
    if model.config.dense != "none":
        raise ValueError(
            f"{to} has no head with a class for each pixel: export the model as onnx, or keep our own format"
        )
    if (card := card_of(model)).standard is not None:
        model = deepcopy(model)
        fold_standard(model)
        card = card_of(model)
    converted = TARGETS[to](model)
    # `load` reads it where the library has no config file
    own = {"vitreous": {"version": VERSION, "config": asdict(converted.config), **card.to_dict()}}
    if out.suffix in WRITERS:
        sidecar = check_sidecar(out, own)
        return [WRITERS[out.suffix](out, converted.tensors), write_json(sidecar, own)]
    if out.suffix:
        raise ValueError(f"{out.suffix} is not a supported file format: try {', '.join(WRITERS)}, or a folder")
    if converted.sidecars:
        check_exact(converted, card.preprocess, to)
        if card.task != "classify":  # what these libraries' files cannot say, `load` reads
            stated = card.to_dict()
            section = converted.sidecars["config.json"].setdefault("vitreous", {})
            section |= {name: stated[name] for name in ("task", "thresholds")}
        if card.head == "projection":  # timm has classes alone
            converted.sidecars["config.json"].setdefault("vitreous", {})["head"] = card.head
    sidecars = converted.sidecars or {"config.json": own}
    weights = "model.npz" if to == "google" else "model.safetensors"
    check_folder(out, (weights, *sidecars))
    paths = [WRITERS[Path(weights).suffix](out / weights, converted.tensors)]
    return paths + [write_json(out / name, value) for name, value in sidecars.items()]


def check_folder(folder: Path, written: Collection[str]) -> None:
    """Raise if `load` would read a converted model's files in `folder` together with another checkpoint's there."""
    others = [name for name in (*FOLDER_FILES, "preprocessor_config.json") if name not in written]
    if found := [name for name in others if (folder / name).exists()]:
        raise ValueError(
            f"{folder} holds {found[0]} of another checkpoint, which would be read with the files of this one: "
            "name another folder"
        )


def check_sidecar(path: Path, own: dict[str, Any]) -> Path:
    """Return the file beside a converted one in which `load` looks for `own`; raise if it describes another one too."""
    if path.name in FOLDER_FILES:
        check_folder(path.parent, (path.name,))
        return path.parent / "config.json"
    sidecar = path.with_suffix(".json")
    others = [other for suffix in SUFFIXES if suffix != path.suffix and (other := path.with_suffix(suffix)).exists()]
    if others and sidecar.exists() and read_json(sidecar) != json.loads(json.dumps(own)):
        raise ValueError(f"{sidecar} describes {others[0].name}, and would be written over: choose another name")
    return sidecar


def _transformers_family(config: ViTConfig) -> Any:
    """Choose the family of transformers' that `convert` writes: the format module of one that can hold the model.

    The module raises if no family can.
    """
    families = {
        huggingface_dinov3: config.rope != "none",
        huggingface_aimv2: config.norm == "rms",
        siglip: config.pool == "attention",
        huggingface_beit: config.qv_bias or config.relative_position != "none",
        clip: config.embedding_norm,
        huggingface: True,
    }
    return next(family for family, fits in families.items() if fits)


def check_exact(converted: ConvertedCheckpoint, wanted: Preprocess, to: str) -> None:
    """Check that a model was converted exactly: its new config files, read back, have to state what the model has.

    Where half a pixel goes in a crop is each library's own habit, which no file can change: the model's own is written
    to the `"vitreous"` section, which `load` reads.
    """
    sidecar = converted.sidecars["config.json"]
    if to == "timm":
        allowed, found = timm.read_config(sidecar), from_timm(sidecar["pretrained_cfg"])
    else:
        read = recognise(converted.tensors).read_config
        allowed, found = read(sidecar), from_huggingface(converted.sidecars["preprocessor_config.json"])
    fields: dict[str, Any] = vars(converted.config)
    for name, values in allowed.items():
        if normalise(name, fields[name], fields) not in [normalise(name, value, fields) for value in values]:
            raise ValueError(f"{to} cannot hold this model: it would have {name}={values[0]}, not {fields[name]}")
    if replace(found, crop_rounding=wanted.crop_rounding) != wanted:
        raise ValueError(f"{to} cannot hold the preprocessing {wanted.describe()}: it would be {found.describe()}")
    if found != wanted and (wanted.cover or wanted.resize != wanted.size):
        sidecar["vitreous"] = {"crop_rounding": wanted.crop_rounding}
