"""Our own model folders: the content of `config.json`, and the table that upgrades folders of earlier versions.

Weights are `model.safetensors` under timm's keys (`formats/timm.py`). `config.json` holds everything else under
`"vitreous"`: the version of the layout, the model's config, preprocessing, class names, source and training.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from vitreous.models.vit import ViT, ViTConfig
from vitreous.weights.card import card_of
from vitreous.weights.safety import CheckpointError

if TYPE_CHECKING:
    from vitreous.models.resnet import ResNet

VERSION = 2
"""The layout that is written; 0.1 wrote 1."""


def describe_model(model: "ViT | ResNet", name: str = "") -> dict[str, Any]:
    """Return the content of `config.json`: the model's config, its preprocessing and its class names."""
    own = {"version": VERSION, "config": asdict(model.config), **card_of(model, name).to_dict()}
    return {"vitreous": own, "num_classes": model.config.classes}


def read_own(sidecar: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `"vitreous"` section of a config file in the present layout; empty if there is none.

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
    return own


def own_config(own: Mapping[str, Any]) -> ViTConfig:
    """Return the config in the `"vitreous"` section."""
    stated = own.get("config")
    names = {field.name for field in fields(ViTConfig)}
    if not isinstance(stated, Mapping) or set(stated) - names:
        raise CheckpointError("config.json was not written by this version: its model has unknown fields")
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in stated.items()}
    return ViTConfig(**values)


def upgrade_1_to_2(own: dict[str, Any]) -> dict[str, Any]:
    """Rename what 0.1 called otherwise: all of it is in the record of the training."""
    training = own.get("training")
    if not isinstance(training, Mapping):
        return own
    renamed = {"learned": "training_images"}
    inner = {"result": {"pictures": "images"}, "config": {"epoch_pictures": "epoch_images"}}
    upgraded = _rename(training, renamed)
    for section, names in inner.items():
        if isinstance(upgraded.get(section), Mapping):
            upgraded[section] = _rename(upgraded[section], names)
    return own | {"training": upgraded}


def _rename(values: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(key, key): value for key, value in values.items()}


UPGRADES: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {1: upgrade_1_to_2}
"""How a `"vitreous"` section of one version becomes one of the next."""
