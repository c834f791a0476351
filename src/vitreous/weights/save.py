"""`save`: write our own model folders and read their `config.json`, also of 0.1; write safetensors, pickle, npz files.

Weights are `model.safetensors` under timm's keys (`formats/timm.py`). `config.json` holds everything else under
`"vitreous"`: the version of the layout, the model's config, preprocessing, class names, how positions are resized,
source and training.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from vitreous.inside.artifacts import has_registers
from vitreous.models.dense_head import RegionHead
from vitreous.models.text import SentenceHead
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.runtime.files import write_arrays, write_atomic, write_json
from vitreous.weights.card import HEADS, card_of
from vitreous.weights.keymap import Tensors
from vitreous.weights.safety import CheckpointError

if TYPE_CHECKING:
    from vitreous.models.resnet import ResNet
    from vitreous.models.timm_classifier import TimmClassifier

VERSION = 6  # the layout that is written; 0.1 wrote 1 and 2


def save(model: "ViT | ResNet | TimmClassifier", folder: str | Path) -> list[Path]:
    """Save a model with its preprocessing and class names to `folder`; `load(folder)` reads it.

    >>> import tempfile
    >>> from vitreous.models.variants import variant
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [path.name for path in save(ViT(variant("vit_femto_patch4_32")), folder)]
    ['model.safetensors', 'config.json']
    """
    folder = Path(folder)
    check_head(model)
    description = describe_model(model, folder.name)  # first: a model that cannot be described is not written
    held: Any = model.network if hasattr(model, "network") else model  # timm's keys of a timm classifier
    tensors = {key: value.detach().cpu().contiguous() for key, value in held.state_dict().items()}
    return [
        write_safetensors(folder / "model.safetensors", tensors),
        write_json(folder / "config.json", description),
    ]


def check_head(model: torch.nn.Module) -> None:
    """Raise if the classes of a model to save are words, of which only a text tower can make features again."""
    if isinstance(getattr(model, "head", None), SentenceHead):
        raise ValueError(
            "words as classes are not stored: save the model without them and name them again, or export it as a graph"
        )


def write_safetensors(path: Path, tensors: Tensors) -> Path:
    """Save a model's tensors as safetensors; a full disk is an `OSError`, as for other files."""

    def write(temporary: Path) -> None:
        try:
            save_file(tensors, temporary, metadata={"format": "pt"})
        except SafetensorError as error:
            if (code := re.search(r"os error (\d+)", str(error))) is None:
                raise
            raise OSError(int(code[1]), os.strerror(int(code[1])), str(path)) from error

    return write_atomic(path, write)


def write_pickle(path: Path, tensors: Tensors) -> Path:
    """Save a model's tensors with `torch.save`."""
    return write_atomic(path, lambda temporary: torch.save(tensors, temporary))


def write_npz(path: Path, tensors: Tensors) -> Path:
    """Save a model's tensors to an npz file."""
    return write_arrays(path, {key: value.numpy() for key, value in tensors.items()}, compressed=False)


def describe_model(model: "ViT | ResNet | TimmClassifier", name: str = "") -> dict[str, Any]:
    """Return the `config.json` that a model is saved with: its config, its preprocessing and its class names."""
    if not hasattr(model, "card") or not hasattr(model, "config"):
        raise ValueError(f"expected a model of vitreous, got a {type(model).__name__}: pass what `load` returns")
    if has_registers(model):
        raise ValueError("test-time registers are not stored: save the model without, load it with test_time_registers")
    card, dense = card_of(model, name), getattr(model.config, "dense", "none") != "none"
    if isinstance(getattr(model, "head", None), RegionHead):
        raise ValueError("one pixel's class is not stored: save the model that has a class for each pixel")
    if (card.task == "segment") != dense:
        kind = "a dense head" if dense else "no dense head"
        raise ValueError(f"the model has {kind}, and its card says task={card.task!r}: set model.card.task")
    classes = model.config.classes
    if card.class_names is not None and len(card.class_names) != classes:
        found = f"{len(card.class_names)} class names for {classes} outputs"
        raise ValueError(f"the card has {found}: set model.card.class_names, to None if they are not known")
    own = {"version": VERSION, "config": asdict(model.config), **card.to_dict()}
    return {"vitreous": own, "num_classes": model.config.classes}


def read_own(sidecar: Mapping[str, Any]) -> dict[str, Any]:
    """Read what `save` writes: the `"vitreous"` section of a config file, in the present layout; empty if it has none.

    >>> read_own({"vitreous": {"version": 1, "training": {"result": {"pictures": 360}}}})["training"]
    {'result': {'images': 360}}
    """
    own = sidecar.get("vitreous") or {}
    if not isinstance(own, Mapping):
        raise CheckpointError(f'config.json says "vitreous": {own!r:.40}, expected an object of fields: get it again')
    own = dict(own)
    version = own.get("version", VERSION)  # a converted checkpoint's sidecar has no version
    if not isinstance(version, int) or version > VERSION:
        raise CheckpointError(f"config.json has layout {version!r:.40}, expected at most {VERSION}: update vitreous")
    while version in UPGRADES:
        own = UPGRADES[version](own)
        version += 1
    if (head := own.get("head", "classifier")) not in HEADS:
        raise CheckpointError(f"config.json says head={head!r:.40}, expected one of {', '.join(HEADS)}: get it again")
    return own


def stated_timm(sidecar: Mapping[str, Any]) -> str:
    """Return timm's name of a saved classifier, as our own config file states it; empty for other models.

    >>> stated_timm({"vitreous": {"config": {"timm": "resnet18", "classes": 3}}})
    'resnet18'
    """
    config = read_own(sidecar).get("config")
    return str(config.get("timm", "")) if isinstance(config, Mapping) else ""


def own_config(own: Mapping[str, Any]) -> ViTConfig:
    """Return the `ViTConfig` of a saved model from the `"vitreous"` section of its config file."""
    stated = own.get("config")
    names = {field.name for field in fields(ViTConfig)}
    if not isinstance(stated, Mapping) or set(stated) - names:
        raise CheckpointError("config.json was not written by this version: its model has unknown fields")
    if missing := sorted(names - set(stated)):
        raise CheckpointError(f"config.json does not state {', '.join(missing)} of the model: get it again")
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in stated.items()}
    return ViTConfig(**values)


def upgrade_1_to_2(own: dict[str, Any]) -> dict[str, Any]:
    """Upgrade what version 0.1 saved to layout 2: rename fields, all of which are in the record of the training."""
    training = own.get("training")
    if not isinstance(training, Mapping):
        return own
    names = {"learned": "training_images", "pictures": "images", "epoch_pictures": "epoch_images"}
    upgraded = {names.get(key, key): value for key, value in training.items()}
    for section in ("result", "config"):
        if isinstance(values := upgraded.get(section), Mapping):
            upgraded[section] = {names.get(key, key): value for key, value in values.items()}
    return own | {"training": upgraded}


def upgrade_2_to_3(own: dict[str, Any]) -> dict[str, Any]:
    """Upgrade a saved model to layout 3: state the config fields that ViTs had no choice of before."""
    if not isinstance(config := own.get("config"), Mapping) or "patch_size" not in config:
        return own
    known = fields(ViTConfig)
    first = [field.name for field in known].index("stochastic_depth") + 1
    added: dict[str, Any] = {field.name: field.default for field in known[first:]}
    return own | {"config": added | dict(config)}


def upgrade_3_to_4(own: dict[str, Any]) -> dict[str, Any]:
    """State for a model saved in layout 3 that it has one class for each image, as all had then."""
    own = {"task": "classify", "thresholds": None, "standard": None} | own
    if not isinstance(config := own.get("config"), Mapping) or "patch_size" not in config:
        return own
    return own | {"config": {"dense": "none", "dense_blocks": []} | dict(config)}


def upgrade_4_to_5(own: dict[str, Any]) -> dict[str, Any]:
    """Add to a model saved in layout 4 how ViTs drew positions then, and where their norms stood."""
    if not isinstance(config := own.get("config"), Mapping) or "patch_size" not in config:
        return own
    return own | {"config": {"position_std": 0.02, "residual_norm": False} | dict(config)}


def upgrade_5_to_6(own: dict[str, Any]) -> dict[str, Any]:
    """State for a model saved in layout 5 by which convention positions are resized, as far as it is known.

    Models that vitreous made are resized as timm's; other checkpoints' folders did not say what they were made from.
    """
    source = own.get("source")
    made = isinstance(source, Mapping) and source.get("origin") in ("trained", "memory")
    return {"resize": "timm" if made else None} | own


UPGRADES: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {
    1: upgrade_1_to_2,
    2: upgrade_2_to_3,
    3: upgrade_3_to_4,
    4: upgrade_4_to_5,
    5: upgrade_5_to_6,
}
"""How a `"vitreous"` section of one version becomes one of the next."""
