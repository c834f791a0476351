"""`load`: a name or a path to a model that is ready to use, and a report of what was done to it.

    name ─▶ fetch ─▶ read ─▶ recognise ─▶ keymap ─▶ infer the config ─▶ resize, replace the head ─▶ ViT + Card

Nothing is guessed in silence: what no file told is on `model.card.report` as assumed, and a weight that the model
needs and the checkpoint lacks is an error, unless it is the head being replaced on purpose.
"""

import re
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.data.preprocess import Preprocess
from vitreous.models.resnet import DEPTHS, ResNet, ResNetConfig
from vitreous.models.vit import ViT, ViTConfig
from vitreous.weights.beside import class_names, preprocessing, read_json, run_size
from vitreous.weights.card import Card, LoadReport
from vitreous.weights.fetch import Source, fetch
from vitreous.weights.formats import recognise
from vitreous.weights.infer import settle
from vitreous.weights.keymap import Tensors, pattern, to_ours
from vitreous.weights.positions import CONVENTIONS, resize_positions
from vitreous.weights.read import CheckpointError, RawCheckpoint, nonfinite, read, read_sharded
from vitreous.weights.refuse import refuse_other_families

PACKAGED = "packaged"
PARTS = r"(blocks?|layers?|resblocks|encoderblock)[._]\d+|norm|(^|\.)ln_|embed|rope"
"""Keys of what every token passes through: one that no rule knows would be missed in the answer."""
MOST_PATCHES = 65_536
Model = ViT | ResNet


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
    the picture size of a checkpoint whose positions make no square. Any other field of `ViTConfig`, such as
    `heads=6`, fills in or overrides what the files tell.

    >>> model = load()
    >>> model.card.preprocess.size, model(torch.zeros(1, *model.input_shape)).shape  # doctest: +SKIP
    """
    if resize is not None and resize not in CONVENTIONS:
        raise ValueError(f"resize must be one of {', '.join(CONVENTIONS)}, got {resize!r}")
    strange = set(known) - {field.name for field in fields(ViTConfig)}
    if strange:
        raise ValueError(f"unknown option {', '.join(sorted(strange))}: see vitreous.ViTConfig for the known fields")
    source = fetch(name if name is not None else PACKAGED, revision=revision, cache_dir=cache_dir, progress=progress)
    raw = read_sharded(source.index, source.weights) if source.index else read(source.weights[0])
    sidecar = read_json(source.config)
    refuse_other_families(raw.tensors, sidecar, Path(str(source.name)).name)
    try:
        if {"conv1.weight", "layer1.0.conv1.weight"} <= set(raw.tensors):
            model: Model = _load_resnet(raw, source, sidecar, classes)
        else:
            if trained_size is not None:
                known["image_size"] = trained_size
            model = _load_vit(raw, source, sidecar, classes, image_size, resize, known)
    except CheckpointError as error:
        raise CheckpointError(f"{source.name}: {error}") from error
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
    ours, stray = to_ours(theirs, format.rules)
    ours = format.adjust(ours)
    own = sidecar.get("vitreous") or {}
    assumed: dict[str, str] = dict(own.get("assumed", {}))
    if whole := [key for key, value in ours.items() if not value.is_floating_point()]:
        raise CheckpointError(f"{whole[0]} holds whole numbers: quantised weights are not read without their scales")
    if "config" in own:
        trained = _own_config(own)
    else:
        if image_size is not None and "pos_embed" not in ours:
            known.setdefault("image_size", image_size)  # without positions any size is the trained one
        told = {**format.read_config(sidecar), **format.read_shapes(theirs)}
        trained, guessed = settle(ours, format, told, str(sidecar.get("architecture") or _hint(source)), known)
        assumed |= guessed
    report = LoadReport(format=format.name, tensors=len(ours), stored_as=_dtypes(ours), assumed=assumed)
    for key in stray:
        known_key = any(pattern(template).fullmatch(key) for template in format.left_out)
        (report.left_out if known_key else report.unexpected).append(key)
    if inside := [key for key in report.unexpected if re.search(PARTS, key)]:
        raise CheckpointError(
            f"it has parts that this model does not: {', '.join(inside[:4])}{' …' if len(inside) > 4 else ''}; "
            "the logits would be wrong"
        )
    config = trained
    if image_size is None:
        image_size = run_size(source, trained.size)
    if image_size is not None:
        config = replace(config, image_size=image_size)
        if config.layout.patches > MOST_PATCHES:
            height, width = config.size
            raise ValueError(
                f"image_size {height}×{width} makes {config.layout.patches:,} patches: {MOST_PATCHES:,} at most"
            )
        if "pos_embed" in ours and config.grid != trained.grid:
            convention = resize or format.resize
            prefix = trained.positions - trained.layout.patches
            ours["pos_embed"] = resize_positions(ours["pos_embed"], trained.grid, config.grid, convention, prefix)
            grids = [f"{rows}×{columns}" for rows, columns in (trained.grid, config.grid)]
            report.resized.append(f"pos_embed from {grids[0]} to {grids[1]} ({convention}'s convention)")
    if classes is not None and classes != config.classes:
        ours = {key: value for key, value in ours.items() if not key.startswith("head")}
        config = replace(config, classes=classes, representation_size=0, head_bias=True)
        if not classes:
            config = replace(config, distillation_head=False)
    model = fill(config, ours, report, replaced="head" if classes is not None else None)
    model.card = _card(source, sidecar, report, config, trained, raw)
    return model


def fill(config: ViTConfig, tensors: Tensors, report: LoadReport, replaced: str | None = None) -> ViT:
    """Build the model and put the tensors in; every shape is checked before memory is taken.

    Keys under `replaced` may be absent: they keep their fresh values and are reported.
    """
    with torch.device("meta"):
        model = ViT(config)
    wanted = model.state_dict()
    check_shapes(wanted, tensors)
    missing = [key for key in wanted if key not in tensors]
    if lacking := [key for key in missing if replaced is None or not key.startswith(replaced)]:
        raise CheckpointError(
            f"{len(lacking)} weight(s) that the model needs are not in the checkpoint: {', '.join(lacking[:4])}"
            f"{' …' if len(lacking) > 4 else ''}"
        )
    own = {key: value.float().clone(memory_format=torch.contiguous_format) for key, value in tensors.items()}
    own |= {key: torch.zeros(wanted[key].shape) for key in missing}  # a fresh head starts at zero
    model.load_state_dict(own, assign=True)
    report.reinitialised += missing
    return model


def check_shapes(wanted: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    for key, value in tensors.items():
        if key not in wanted:
            raise CheckpointError(f"the model that its config describes has no {key}")
        if value.shape != wanted[key].shape:
            raise CheckpointError(f"{key} should be {tuple(wanted[key].shape)}, got {tuple(value.shape)}")


def _own_config(own: Mapping[str, Any]) -> ViTConfig:
    described = own.get("config")
    names = {field.name for field in fields(ViTConfig)}
    if not isinstance(described, Mapping) or set(described) - names:
        raise CheckpointError("config.json was not written by this version: its model has unknown fields")
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in described.items()}
    return ViTConfig(**values)


def _card(
    source: Source,
    sidecar: Mapping[str, Any],
    report: LoadReport,
    config: ViTConfig,
    trained: ViTConfig,
    raw: RawCheckpoint,
) -> Card:
    own = sidecar.get("vitreous") or {}
    if "preprocess" in own:
        preprocess, names = Preprocess.from_dict(own["preprocess"]), own.get("class_names")
        head = own.get("head", "classifier")
        names = tuple(names) if names and len(names) == config.classes else None
    else:
        preprocess, why = preprocessing(source, sidecar, report.format, config.size, config.channels)
        if why:
            report.assumed["preprocessing"] = f"{preprocess.describe()} ({why})"
        head = "projection" if "clip" in report.format and not config.head_bias and config.classes else "classifier"
        names, why = class_names(source, sidecar, config.classes) if head == "classifier" else (None, None)
        if why:
            report.assumed["class names"] = why
    if any(key.startswith("head") for key in report.reinitialised):
        names, head = None, "classifier"
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
    )


def _load_resnet(raw: RawCheckpoint, source: Source, sidecar: Mapping[str, Any], classes: int | None) -> ResNet:
    """torchvision's ResNets, whose keys are ours too; the number of blocks tells which."""
    tensors = raw.tensors
    layers = [len({key.split(".")[1] for key in tensors if key.startswith(f"layer{i}.")}) for i in (1, 2, 3, 4)]
    bottleneck = "layer1.0.conv3.weight" in tensors
    depth = next((d for d, (_, n) in DEPTHS.items() if n == layers and (d >= 50) == bottleneck), None)
    if depth is None:
        raise CheckpointError(f"a ResNet with {layers} blocks a stage is none of {', '.join(map(str, DEPTHS))}")
    head = tensors.get("fc.weight")
    stored = 0 if head is None else head.shape[0]
    with torch.device("meta"):
        model = ResNet(ResNetConfig(depth, stored))
    wanted = model.state_dict()
    check_shapes(wanted, tensors)
    if missing := [key for key in wanted if key not in tensors and not key.endswith("num_batches_tracked")]:
        raise CheckpointError(f"{len(missing)} weight(s) are missing: {', '.join(missing[:4])}")
    zeros = {key: torch.zeros_like(value, device="cpu") for key, value in wanted.items() if key not in tensors}
    model.load_state_dict({**{k: v.clone() for k, v in tensors.items()}, **zeros}, assign=True)
    report = LoadReport(format="torchvision-resnet", tensors=len(tensors), stored_as=_dtypes(tensors))
    if classes is not None and classes != stored:
        model.reset_classifier(classes)
        if isinstance(model.fc, nn.Linear):
            report.reinitialised = ["fc.weight", "fc.bias"]
    preprocess, why = preprocessing(source, sidecar, report.format, (224, 224), 3)
    if why:
        report.assumed["preprocessing"] = f"{preprocess.describe()} ({why})"
    names, why = class_names(source, sidecar, stored) if not report.reinitialised else (None, None)
    if why:
        report.assumed["class names"] = why
    model.config = replace(model.config, image_size=preprocess.size)
    model.card = Card(
        name=str(source.name),
        preprocess=preprocess,
        class_names=names,
        head="classifier" if model.config.classes else "none",
        origin=source.origin,
        files=tuple(str(path) for path in source.weights),
        family="ResNet",
        report=report,
    )
    return model


def _hint(source: Source) -> str:
    """A name that may tell the variant: the Hub's repository, or the file's stem."""
    return source.name.split("/")[-1] if source.origin == "hub" else Path(source.name).stem


def _dtypes(tensors: Mapping[str, Tensor]) -> str:
    return ", ".join(sorted({str(value.dtype).removeprefix("torch.") for value in tensors.values()}))
