"""Read the `config.json` of our own model folders, also of earlier versions: upgrade their layout to the present one.

Everything of ours is under `"vitreous"`: the version of the layout, the model's config, preprocessing, class names, how
positions are resized, source and training. `save.py` writes it.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from vitreous.models.vit_config import ViTConfig
from vitreous.weights.card import HEADS
from vitreous.weights.safety import CheckpointError

VERSION = 6  # the layout that is written; 0.1 wrote 1 and 2


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
