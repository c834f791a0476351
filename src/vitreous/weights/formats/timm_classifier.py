"""Read any classifier of timm's: `timm:NAME@FILE` with timm's own keys, and the folders of runs that trained one."""

from collections.abc import Mapping
from typing import Any

import torch

from vitreous.data.preprocess import Preprocess
from vitreous.data.preprocess_configs import from_timm
from vitreous.models.timm_classifier import TimmClassifier, TimmConfig, import_timm
from vitreous.weights.build import check_shapes
from vitreous.weights.card import LoadReport
from vitreous.weights.config_files import check_fields
from vitreous.weights.fetch import CheckpointFiles
from vitreous.weights.formats.timm import FIELDS, HARMLESS, PRETRAINED_FIELDS, WRAPPER
from vitreous.weights.loaded_card import classifier_card
from vitreous.weights.preprocessing import preprocessing
from vitreous.weights.read import data_types
from vitreous.weights.safety import CheckpointError
from vitreous.weights.saved_config import read_own, stated_timm
from vitreous.weights.timm_classes import is_dropout
from vitreous.weights.unwrap import RawCheckpoint


def load_timm(
    architecture: str,
    raw: RawCheckpoint,
    files: CheckpointFiles,
    sidecar: Mapping[str, Any],
    classes: int | None,
    image_size: int | tuple[int, int] | None,
) -> TimmClassifier:
    """Build a classifier of timm's from a file: every tensor has to be there, and none may be left over."""
    own, tensors = read_own(sidecar), dict(raw.tensors)
    if all(key.startswith("network.") for key in tensors):  # a checkpoint of a run that is not finished
        tensors = {key.removeprefix("network."): value for key, value in tensors.items()}
    ours = stated_timm(sidecar)
    named = {"config.json": ours or sidecar.get("architecture"), "its training script": raw.stated.get("architecture")}
    for source, said in named.items():
        if said and str(said).partition(".")[0] != architecture.partition(".")[0]:
            raise CheckpointError(f"{source} says {said}, and you ask for {architecture}: name the right one")
    stated = own.get("config") if ours else {}
    if not isinstance(stated, Mapping) or set(stated) - {"timm", "classes", "image_size", "channels"}:
        raise CheckpointError("config.json was not written by this version: its model has unknown fields")
    channels, size = stated.get("channels", 3), stated.get("image_size")
    size = tuple(size) if isinstance(size, list) else size
    if sidecar and "config" not in own:
        pretrained = sidecar.get("pretrained_cfg")
        check_fields(sidecar, (*FIELDS, *PRETRAINED_FIELDS, *HARMLESS, *WRAPPER), "config.json")
        check_fields(pretrained or {}, (*PRETRAINED_FIELDS, *HARMLESS), "pretrained_cfg")
        if pretrained:
            channels, *sides = pretrained.get("input_size", (3, 224, 224))
            size = tuple(sides)
    counts = (stated.get("classes"), sidecar.get("num_classes"), raw.stated.get("num_classes"))
    stored = next((count for count in counts if count is not None), None)
    stored = _classes(architecture, tensors) if stored is None else stored
    model = TimmClassifier(TimmConfig(architecture, int(stored), size, int(channels)))
    _check_arguments(model, sidecar, "config.json")
    _check_arguments(model, raw.stated, "its training script")
    wanted = model.network.state_dict()
    check_shapes(wanted, tensors)
    if whole := [key for key, value in tensors.items() if value.is_floating_point() != wanted[key].is_floating_point()]:
        raise CheckpointError(f"{whole[0]} holds integers: quantised weights are not read without their scales")
    if missing := [key for key in wanted if key not in tensors and not key.endswith("num_batches_tracked")]:
        raise CheckpointError(f"{len(missing)} weight(s) of {architecture} are missing: {', '.join(missing[:4])}")
    model.network.load_state_dict({key: value.clone() for key, value in tensors.items()}, strict=False)
    report = LoadReport(format="timm-classifier", tensors=len(tensors), stored_as=data_types(tensors))
    if "preprocess" in own:
        preprocess, sidecar = Preprocess.from_dict(own["preprocess"]), own
    elif sidecar:
        preprocess = preprocessing(files, sidecar, model.config.size, model.config.channels, report, raw.stated)
    else:
        said = raw.stated.get("pretrained_cfg", {})
        preprocess = from_timm(model.settings | said, image_size=model.config.size)
        whose = f"timm's of {architecture}" + (f", but for {', '.join(said)}: its args state them" if said else "")
        report.assumed["preprocessing"] = f"{preprocess.describe()} ({whose})"
    if image_size is not None and (preprocess := preprocess.with_size(image_size)).size != model.config.size:
        if model.fixed_size:
            at = "×".join(str(side) for side in model.config.size)
            raise ValueError(f"{architecture} with these weights takes images of {at} px: leave the image size out")
        model.config = TimmConfig(architecture, int(stored), preprocess.size, model.config.channels)
    replaced = classes is not None and classes != model.config.classes
    if replaced:
        model.reset_classifier(classes or 0)
        report.reinitialised = [name.removeprefix("network.") for name in (model.head_names() if classes else ())]
    model.card = classifier_card(
        "timm", files, sidecar, own, preprocess, report, model.config, model.config.classes, replaced=replaced
    )
    return model


def _check_arguments(model: TimmClassifier, said: Mapping[str, Any], source: str) -> None:
    """Check the arguments that a file states for a timm classifier; raise if they make another network than timm's own.

    `source` is the config file or the training script that states them.
    """
    config, network = model.config, model.network
    parts = (getattr(part, "global_pool", None) for part in (getattr(network, "head", None), network))
    pools = (getattr(pool, "pool_type", pool) for pool in parts)
    built = {"num_classes": config.classes, "in_chans": config.channels, "img_size": config.size}
    built["global_pool"] = next((pool for pool in pools if isinstance(pool, str)), None)
    given = dict(said.get("model_args") or {})
    for name, value in ({key: said[key] for key in ("num_classes", "global_pool") if key in said} | given).items():
        wanted = tuple(value) if isinstance(value, list) else value
        if name == "img_size" and isinstance(value, int):
            wanted = (value, value)
        if value is not None and not is_dropout(name) and (name not in built or wanted != built[name]):
            usual = f", not {built[name]}" if name in built else ""
            raise CheckpointError(
                f"{source} says {name}={value!r:.60}{usual}, and {config.timm} is built without arguments of its own: "
                "load it with timm"
            )


def _classes(architecture: str, tensors: Mapping[str, torch.Tensor]) -> int:
    """Count the classes of a file that states none, by the head's weight that timm's configuration names."""
    settings = import_timm().models.get_pretrained_cfg(architecture)
    heads = getattr(settings, "classifier", None)
    name = heads[0] if isinstance(heads, tuple | list) and heads else heads
    weight = tensors.get(f"{name}.weight")
    if weight is None or weight.dim() < 2:
        raise CheckpointError(f"it has no head of {architecture} ({name}.weight): expected the weights of a classifier")
    return int(weight.shape[0])
