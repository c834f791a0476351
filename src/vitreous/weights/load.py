"""`load`: a name or a path to a model that is ready to use, and a report of what was done to it.

    name ─▶ fetch ─▶ read ─▶ recognise ─▶ keymap ─▶ infer the config ─▶ resize, replace the head ─▶ ViT + Card

Nothing is guessed in silence: what no file told is on `model.card.report` as assumed, and a weight that the model
needs and the checkpoint lacks is an error, unless it is the head being replaced on purpose.
"""

import re
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from vitreous.data.preprocess import Preprocess
from vitreous.models.vit import ViT, ViTConfig
from vitreous.weights.build import MOST_PATCHES, data_types, fill
from vitreous.weights.card import Card, LoadReport
from vitreous.weights.fetch import Source, fetch
from vitreous.weights.formats.registry import recognise
from vitreous.weights.infer import infer_config
from vitreous.weights.keymap import Format, Tensors, pattern, to_ours
from vitreous.weights.positions import CONVENTIONS, resize_positions
from vitreous.weights.read import CheckpointError, RawCheckpoint, nonfinite, read, read_sharded
from vitreous.weights.sidecar import class_names, imagenet_names, preprocessing, read_json, run_size
from vitreous.weights.unsupported import refuse_other_families

PACKAGED = "packaged"
PARTS = r"(blocks?|layers?|resblocks|encoderblock)[._]\d+|norm|(^|\.)ln_|embed|rope"
"""Keys of what every token passes through: one that no rule knows would be missed in the answer."""
MISREAD = (TypeError, AttributeError, LookupError, ArithmeticError, RecursionError)
"""What a config file of other content than its makers write leads to."""

if TYPE_CHECKING:
    from vitreous.models.resnet import ResNet

    Model = ViT | ResNet
else:
    Model = torch.nn.Module  # a ResNet is torchvision's, which takes a second to import: only where there is one


def load(
    name: str | Path | None = None,
    *,
    classes: int | None = None,
    image_size: int | tuple[int, int] | None = None,
    resize: str | None = None,
    trained_size: int | tuple[int, int] | None = None,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    revision: str | None = None,
    cache_dir: Path | None = None,
    progress: bool = True,
    **known: Any,
) -> Model:
    """Load a model by name or path, in evaluation mode; without a name, the one inside the package.

    `classes` puts a fresh head of that many outputs in place (0: none). `image_size` resizes the position embeddings
    by the `resize` convention, by default the one of the library that the checkpoint came from. `trained_size` tells
    the image size of a checkpoint whose positions make no square. Any other field of `ViTConfig`, such as
    `heads=6`, fills in or overrides what the files tell.

    >>> model = load()
    >>> model.config.classes, model.card.preprocess.size, model.card.class_names[:3]
    (10, (32, 32), ('airplane', 'automobile', 'bird'))
    """
    if resize is not None and resize not in CONVENTIONS:
        raise ValueError(f"resize must be one of {', '.join(CONVENTIONS)}, got {resize!r}")
    strange = set(known) - {field.name for field in fields(ViTConfig)}
    if strange:
        raise ValueError(f"unknown option {', '.join(sorted(strange))}: see vitreous.ViTConfig for the known fields")
    source = fetch(name if name is not None else PACKAGED, revision=revision, cache_dir=cache_dir, progress=progress)
    raw = read_sharded(source.index, source.weights) if source.index else read(source.weights[0])
    sidecar = read_json(source.config)
    try:
        called = "" if "config" in _own(sidecar) else Path(str(source.name)).name  # a model of ours may have any name
        refuse_other_families(raw.tensors, sidecar, called)
        if {"conv1.weight", "layer1.0.conv1.weight"} <= set(raw.tensors):
            from vitreous.weights.formats.resnet import load_resnet

            model: Model = load_resnet(raw, source, sidecar, classes)
        else:
            if trained_size is not None:
                known["image_size"] = trained_size
            model = _load_vit(raw, source, sidecar, classes, image_size, resize, known)
    except CheckpointError as error:
        raise CheckpointError(f"{source.name}: {error}") from error
    except MISREAD as error:
        if source.config is None and source.preprocessor is None:
            raise
        message = " and ".join(path.name for path in (source.config, source.preprocessor) if path is not None)
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:160]
        raise CheckpointError(f"{source.name}: {message} cannot be understood ({reason}): get it again") from error
    model.card.report.wrappers = raw.wrappers
    model.card.report.left_out += raw.left_out
    model.card.report.nonfinite = nonfinite(model.state_dict())
    return model.to(device=device, dtype=dtype).eval()


def _load_vit(
    raw: RawCheckpoint,
    source: Source,
    sidecar: Mapping[str, Any],
    classes: int | None,
    image_size: int | tuple[int, int] | None,
    resize: str | None,
    known: dict[str, Any],
) -> ViT:
    format = recognise(raw.tensors)
    theirs = format.prepare(dict(raw.tensors))
    tensors, stray = to_ours(theirs, format.rules)
    tensors = format.adjust(tensors)
    own = _own(sidecar)
    report = LoadReport(format=format.name, tensors=len(tensors), stored_as=data_types(tensors))
    report.assumed |= own.get("assumed", {})
    _sort_stray(stray, format, report)
    if "config" in own:
        trained = replace(_own_config(own), **known)
    else:
        if image_size is not None and "pos_embed" not in tensors:
            known.setdefault("image_size", image_size)  # without positions any size is the trained one
        message = {**format.read_config(sidecar), **format.read_shapes(theirs)}
        hint = str(sidecar.get("architecture") or _hint(source))
        trained, assumed = infer_config(tensors, format, message, hint, known)
        report.assumed |= assumed
    size = image_size
    if size is None and "config" not in own:
        size = run_size(source, trained.size)
    config = trained if size is None else _resized(tensors, trained, size, resize or format.resize, report)
    if classes is not None and classes != config.classes:
        tensors = {key: value for key, value in tensors.items() if not key.startswith("head")}
        two = config.distillation_head and classes > 0
        config = replace(config, classes=classes, representation_size=0, head_bias=True, distillation_head=two)
    model = fill(config, tensors, report, replaced=None if classes is None else "head")
    model.card = _card(source, sidecar, report, config)
    return model


def _sort_stray(stray: list[str], format: Format, report: LoadReport) -> None:
    """Keys that no rule took: known and not needed, or unexpected; a part of the network itself is an error."""
    for key in stray:
        known = any(pattern(template).fullmatch(key) for template in format.left_out)
        (report.left_out if known else report.unexpected).append(key)
    if inside := [key for key in report.unexpected if re.search(PARTS, key)]:
        raise CheckpointError(
            f"it has parts that this model does not: {', '.join(inside[:4])}{' …' if len(inside) > 4 else ''}; "
            "the logits would be wrong"
        )


def _resized(
    tensors: Tensors, trained: ViTConfig, size: int | tuple[int, int], convention: str, report: LoadReport
) -> ViTConfig:
    """The config for another image size; position embeddings in `tensors` are resized along."""
    config = replace(trained, image_size=size)
    if (count := config.layout.patches) > MOST_PATCHES:
        size_text = "×".join(str(side) for side in config.size)
        raise ValueError(f"image_size {size_text} makes {count:,} patches: {MOST_PATCHES:,} at most")
    if "pos_embed" in tensors and config.grid != trained.grid:
        prefix = trained.positions - trained.layout.patches
        positions = resize_positions(tensors["pos_embed"], trained.grid, config.grid, convention, prefix)
        tensors["pos_embed"] = positions
        old, new = (f"{rows}×{columns}" for rows, columns in (trained.grid, config.grid))
        report.resized.append(f"pos_embed from {old} to {new} ({convention}'s convention)")
    return config


def _own(sidecar: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a config.json of ours says beyond other libraries' fields."""
    own = sidecar.get("vitreous") or {}
    if not isinstance(own, Mapping):
        raise CheckpointError(f'config.json says "vitreous": {own!r:.40}, where its fields should be')
    return own


def _own_config(own: Mapping[str, Any]) -> ViTConfig:
    described = own.get("config")
    names = {field.name for field in fields(ViTConfig)}
    if not isinstance(described, Mapping) or set(described) - names:
        raise CheckpointError("config.json was not written by this version: its model has unknown fields")
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in described.items()}
    return ViTConfig(**values)


def _card(source: Source, sidecar: Mapping[str, Any], report: LoadReport, config: ViTConfig) -> Card:
    own = _own(sidecar)
    if "preprocess" in own:
        preprocess, names = Preprocess.from_dict(own["preprocess"]), own.get("class_names")
        head = own.get("head", "classifier")
        names = tuple(names) if names and len(names) == config.classes else None
        if "class names" in report.assumed and names != imagenet_names():  # of what this was fine-tuned from
            del report.assumed["class names"]
    else:
        preprocess, why = preprocessing(source, sidecar, report.format, config.size, config.channels)
        if why:
            report.assumed["preprocessing"] = f"{preprocess.describe()} ({why})"
        head = "projection" if "clip" in report.format and not config.head_bias and config.classes else "classifier"
        names, why = class_names(source, sidecar, config.classes) if head == "classifier" else (None, None)
        if why:
            report.assumed["class names"] = why
    if any(key.startswith("head") for key in report.reinitialised):
        names, head, own = None, "classifier", {}  # how good the old head was is no matter now
        report.assumed.pop("class names", None)
    return Card(
        name=str(source.name),
        preprocess=preprocess if preprocess.size == config.size else preprocess.with_size(config.size),
        class_names=names,
        head=head if config.classes else "none",
        origin=source.origin,
        revision=source.revision,
        files=tuple(str(path) for path in source.weights),
        report=report,
        training=own.get("training"),
    )


def _hint(source: Source) -> str:
    """A name that may tell the variant: the Hub's repository, or the file's stem."""
    return source.name.split("/")[-1] if source.origin == "hub" else Path(source.name).stem
