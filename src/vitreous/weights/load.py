"""`load`: load a model by name or path, with a report of what was resized, ignored or assumed.

    name ─▶ fetch ─▶ read ─▶ recognise ─▶ keymap ─▶ infer the config ─▶ resize, replace the head ─▶ ViT + Card

A checkpoint loads exactly or not at all. Every tensor that the config needs is in the file, and every tensor in the
file is used or listed as ignorable; every field of a config file is read, harmless or an error; sources that contradict
each other are an error. What no file states is assumed where all known models agree, and listed in `model.card.report`.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from vitreous.data.sample_photos import samples
from vitreous.inside.artifacts import register_neurons, with_registers
from vitreous.models.timm_classifier import split_timm
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.runtime.device import pick_device
from vitreous.runtime.memory import is_out_of_memory
from vitreous.weights.assume import check_assumptions, without_fields
from vitreous.weights.build import MAX_PATCHES, build_vit
from vitreous.weights.card import LoadReport, card_of, fold_standard
from vitreous.weights.config_files import read_json
from vitreous.weights.fetch import CheckpointFiles, fetch
from vitreous.weights.formats.pretraining import MAE
from vitreous.weights.formats.registry import recognise
from vitreous.weights.formats.timm import read_training_script
from vitreous.weights.infer import infer_config, said_by_user
from vitreous.weights.keymap import Allowed, Format, Tensors, pattern, to_ours
from vitreous.weights.loaded_card import vit_card
from vitreous.weights.names import DEFAULT
from vitreous.weights.positions import CONVENTIONS, resize_positions, resize_relative_positions
from vitreous.weights.preprocessing import processor_size
from vitreous.weights.read import data_types, nonfinite, read, read_sharded
from vitreous.weights.safety import CheckpointError
from vitreous.weights.saved_config import own_config, read_own, stated_timm
from vitreous.weights.timm_architectures import find_architecture, resizing, states, timm_models
from vitreous.weights.unsupported import check_family
from vitreous.weights.unwrap import RawCheckpoint

CONFIG_ERRORS = (TypeError, AttributeError, LookupError, ArithmeticError, RecursionError)
"""Exceptions that malformed values in a config file can raise."""

if TYPE_CHECKING:
    from vitreous.models.resnet import ResNet
    from vitreous.models.timm_classifier import TimmClassifier

    Model: TypeAlias = ViT | ResNet | TimmClassifier
else:
    Model = torch.nn.Module  # a ResNet is torchvision's, which takes a second to import: only if one is loaded


def load(
    name: str | Path | None = None,
    *,
    classes: int | None = None,
    image_size: int | tuple[int, int] | None = None,
    resize: str | None = None,
    assume: Mapping[str, Any] | None = None,
    test_time_registers: int = 0,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    revision: str | None = None,
    cache_dir: Path | None = None,
    progress: bool = True,
) -> Model:
    """Load a model by name or path, in evaluation mode; without a name, the ViT-Ti/16 inside the package.

    `classes` replaces the head by a fresh one of that many outputs (0: no head). `image_size` resizes the position
    embeddings by the `resize` convention, by default that of the checkpoint's library; a network without any is given
    images of that size. `assume` says what the files do not, or overrules them: fields of `ViTConfig` (`{"heads": 6}`),
    `architecture` (a name of timm's) and `ignored` (keys of tensors to load without). `test_time_registers` adds so
    many tokens, to which the neurons that make artifacts in the sample photographs move their activations
    (`inside/artifacts.py`); `model.card.report` names them.

    >>> model = load("packaged:cifar10")
    >>> model.config.classes, model.card.preprocess.size, model.card.class_names[:3]
    (10, (32, 32), ('airplane', 'automobile', 'bird'))
    """
    if name is not None and not isinstance(name, str | os.PathLike):
        raise TypeError(f"expected a name or a path, got a {type(name).__name__}: a model is loaded already")
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise ValueError(f"dtype must be torch.float32, torch.bfloat16 or another of floats, got {dtype!r:.60}")
    count = test_time_registers
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise ValueError(f"test_time_registers must be a whole number, 0 for none, got {count!r:.60}")
    if resize is not None and resize not in CONVENTIONS:
        raise ValueError(f"resize must be one of {', '.join(CONVENTIONS)}, got {resize!r}")
    device = pick_device(device) if isinstance(device, str) else device
    assume = check_assumptions(assume)
    timm, weights = split_timm(name) or ("", name) if isinstance(name, str) else ("", name)
    if timm and not weights:
        raise ValueError(f"{name} has no weights to load: add their file, timm:{timm}@FILE")
    files = fetch(DEFAULT if weights is None else weights, revision=revision, cache_dir=cache_dir, progress=progress)
    raw = read_sharded(files.index, files.weights) if files.index else read(files.weights[0])
    ignored = assume.pop("ignored", ())
    config = read_json(files.config)
    raw = replace(raw, **_without(raw, config, ignored))
    sidecar = without_fields(config, ignored)
    try:
        timm = timm or stated_timm(sidecar)
        stated = "config" in read_own(sidecar) or sidecar.get("model_type") or sidecar.get("model_cfg")
        if not timm:  # a config outweighs a name
            check_family(raw.tensors, sidecar, "" if stated else Path(str(files.name)).name)
        if timm:
            from vitreous.weights.formats.timm_classifier import load_timm

            if assume:
                raise CheckpointError(f"a timm classifier has no {next(iter(assume))} to assume: load it without")
            _check_resize(resize, "a timm classifier")
            model: Model = load_timm(timm, raw, files, sidecar, classes, image_size)
        elif {"conv1.weight", "layer1.0.conv1.weight"} <= set(raw.tensors):
            from vitreous.weights.formats.torchvision import load_resnet

            if assume:
                raise CheckpointError(f"it is a ResNet, which has no {next(iter(assume))} to assume: load it without")
            _check_resize(resize, "a ResNet")
            model = load_resnet(raw, files, sidecar, classes, image_size)
        else:
            model = _load_vit(raw, files, sidecar, classes, image_size, resize, assume)
    except CheckpointError as error:
        raise CheckpointError(f"{files.name}: {error}") from error
    except CONFIG_ERRORS as error:
        if files.config is None and files.preprocessor is None:
            raise
        names = " and ".join(path.name for path in (files.config, files.preprocessor) if path is not None)
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:160]
        raise CheckpointError(f"{files.name}: {names} cannot be understood ({reason}): get it again") from error
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise CheckpointError(
            f"{files.name}: the model does not fit into memory: end other programs, or use a larger machine"
        ) from error
    fold_standard(model)  # of a run that is not finished
    model.card.report.unfinished = files.unfinished
    model.card.report.wrappers = raw.wrappers
    model.card.report.ignored += raw.ignored
    model.card.report.left_out = list(raw.left_out)
    model.card.report.nonfinite = nonfinite(model.state_dict())
    model = model.to(device=device, dtype=dtype).eval()
    return _add_registers(model, test_time_registers) if test_time_registers else model


def _add_registers(model: Model, count: int) -> Model:
    """Finish `load(test_time_registers=…)`: add them to the loaded model if it needs them, and write so in its report.

    It needs them if neurons make artifacts in the sample photographs.
    """
    if not isinstance(model, ViT):
        raise ValueError("only a ViT has tokens, and so test-time registers: load it without")
    like = next(model.parameters())
    neurons = register_neurons(model, torch.stack([model.card.preprocess(i) for i in samples().values()]).to(like))
    if not neurons:
        model.card.report.registers = "none added: no neuron makes outlying tokens in the sample photographs"
        return model
    named = ", ".join(f"unit {unit} of block {block}" for block, unit in neurons)
    model.card.report.registers = f"{count} added, which take the activations of {named}"
    return with_registers(model, neurons, count)


def _check_resize(resize: str | None, kind: str) -> None:
    """Check an argument of `load`: raise if `resize` is given for a model of a `kind` that has nothing to resize."""
    if resize is not None:
        raise ValueError(f"{kind} has no position embeddings to resize: leave resize={resize!r} out")


def loaded(model: Model | str | Path | None) -> Model:
    """Return a model that is loaded already as it is; load a name, a path or (None) the packaged model.

    A ViT that was made in memory gets a card with the usual preprocessing.
    """
    if model is None or isinstance(model, str | Path):
        return load(model)
    if not hasattr(model, "card"):
        kind = f"{type(model).__module__.partition('.')[0]}'s {type(model).__name__}"
        raise TypeError(f"expected a model of vitreous, a name or a path, got {kind}: save its weights and load them")
    if model.card is None:
        model.card = card_of(model)
    return model


def _without(raw: RawCheckpoint, config: Mapping[str, Any], ignored: tuple[str, ...]) -> dict[str, Any]:
    """Return the tensors that `load` is to read without those that the user wants ignored, and all that is ignored."""
    dropped = {name: [key for key in raw.tensors if pattern(name).fullmatch(key)] for name in ignored}
    fields = [name for name in ignored if without_fields(config, [name]) != config]
    if absent := [name for name in ignored if not dropped[name] and name not in fields]:
        raise ValueError(f"you want {absent[0]} ignored, and no tensor or field of config.json has that name: check it")
    keys = {key for each in dropped.values() for key in each}
    kept = {key: value for key, value in raw.tensors.items() if key not in keys}
    said = [f"{name} (as you said)" for name in (*sorted(keys), *fields)]
    return {"tensors": kept, "ignored": (*raw.ignored, *said)}


def _load_vit(
    raw: RawCheckpoint,
    files: CheckpointFiles,
    sidecar: Mapping[str, Any],
    classes: int | None,
    image_size: int | tuple[int, int] | None,
    resize: str | None,
    assume: dict[str, Any],
) -> ViT:
    """Load the ViT of a checkpoint: recognise its format, resolve its config, translate its tensors."""
    format, own = recognise(raw.tensors, sidecar.get("model_type")), read_own(sidecar)
    named = {"architecture": f"{assume['architecture']} (as you said)"} if "architecture" in assume else {}
    stated, source, known = Allowed(), "", ""
    if "config" not in own:
        stated, source, known = _statement(format, files, sidecar, raw.stated, assume)
    theirs = format.prepare(dict(raw.tensors))
    tensors, unmatched = to_ours(theirs, format.rules)
    tensors = format.adjust(tensors)
    report = LoadReport(format=format.name, tensors=len(tensors), stored_as=data_types(tensors))
    report.assumed |= own.get("assumed", {}) | named
    report.ignored += _ignorable(unmatched, format)
    token = tensors.get("cls_token", torch.empty(0))
    for key in unmatched if format is not MAE else ():  # whose mask token is its decoder's
        shape = theirs[key].shape
        masks = key in ("mask_token", "embeddings.mask_token") and "cls_token" in tensors
        if masks and (shape.numel(), *shape[-1:]) != (token.numel(), *token.shape[-1:]):
            raise CheckpointError(f"{key} should be as wide as the class token, got {tuple(shape)}")
    if "config" in own:
        trained, report.assumed = _overrule(own_config(own), assume, report.assumed)
    else:
        if image_size is not None and not any(key.endswith(("pos_embed", "bias_table")) for key in tensors):
            pair = (image_size, image_size) if isinstance(image_size, int) else image_size
            assume.setdefault("image_size", pair)  # without positions any size is the trained one
        if classes is not None and "head.weight" not in tensors:
            stated = {name: values for name, values in stated.items() if name not in ("classes", "distillation_head")}
        trained, reasons = infer_config(tensors, format, stated | format.read_shapes(theirs), source, assume)
        report.assumed |= reasons
    size = image_size
    if size is None and "config" not in own:
        size = processor_size(files, trained.size) or format.run_size(sidecar)
    config = trained
    way = resize or _convention(format, own)
    if way is None and (size is not None or "config" not in own):
        try:
            way = resizing(known, trained)
        except CheckpointError:
            if size is not None:
                raise
    if size is not None and way is not None:
        config = _resize(tensors, trained, size, way, report)
    if classes is not None and classes != config.classes:
        tensors = {key: value for key, value in tensors.items() if not key.startswith("head")}
        distilled = config.distillation_head and classes > 0
        plain: dict[str, Any] = {"representation_size": 0, "head_bias": True, "head_norm": False}
        plain |= {"dense": "none", "dense_blocks": ()}
        config = replace(config, classes=classes, distillation_head=distilled, **plain)
    fresh = classes is not None and config.dense == "none"
    model = build_vit(config, tensors, report, replaced="head" if fresh else None)
    model.card = vit_card(files, sidecar, raw.stated, report, config, kept=config.classes == trained.classes)
    model.card.resize = way
    return model


def _convention(format: Format, own: Mapping[str, Any]) -> str | None:
    """Choose the default of `load`'s argument `resize`: that of our own file, or of the format; None if timm's vary.

    It is the convention by which positions are resized.
    """
    if "config" in own and "resize" not in own:
        raise CheckpointError("config.json does not state how positions are resized (resize): get it again")
    if (stated := own.get("resize")) is not None and stated not in CONVENTIONS:
        raise CheckpointError(f"config.json says resize={stated!r:.40}, expected one of {', '.join(CONVENTIONS)}")
    usual = None if format.resize == "timm" else format.resize
    return usual if stated is None else str(stated)


def _statement(
    format: Format,
    files: CheckpointFiles,
    sidecar: Mapping[str, Any],
    inside: Mapping[str, Any],
    assume: dict[str, Any],
) -> tuple[Allowed, str, str]:
    """Return what `load` goes by: what the config file says, else the architecture named by user, file or file name.

    `inside` is what a training script says in the file of weights. Then the source, for messages, and the
    architecture's name, if there is one.
    """
    assumed = assume.pop("architecture", None)
    described = {name: value for name, value in sidecar.items() if name != "vitreous"}
    stem = files.name.split("/")[-1] if files.origin == "hub" else Path(files.name).name
    named = described.get("architecture") if described else stem
    entry, trained = (find_architecture(str(name)) for name in (named, inside.get("architecture")))
    if assumed is None and entry and trained and entry is not trained:
        source = f"config.json says architecture={entry.name}" if described else f"its name is {stem}"
        raise CheckpointError(
            f"{source}, but it was trained as {trained.name} (its arch): pass --assume architecture=NAME, the right one"
        )
    if described and assumed is None:
        return format.read_config(described), "config.json", entry.name if entry else ""
    if inside and assumed is None and format.known is timm_models:
        if (allowed := read_training_script(inside, trained)) and trained:
            return allowed, f"its arch {trained.name}", trained.name
    elif trained and assumed is None:
        raise CheckpointError(
            f"its arch is timm's {trained.name}, but its keys are those of the format {format.name}: pass --assume "
            "architecture=NAME, the right one"
        )
    entry = find_architecture(assumed or stem)
    if entry is None or (assumed is None and format.known is not timm_models):
        return {}, "", ""
    if entry.unsupported:
        raise CheckpointError(f"its name is that of timm's {entry.name}, which is not supported")
    return states(entry.config, sizes=False), entry.name, entry.name


def _overrule(
    config: ViTConfig, assume: Mapping[str, Any], reasons: dict[str, str]
) -> tuple[ViTConfig, dict[str, str]]:
    """Load our own file with other config fields than it states: return the config, and reasons for the load report."""
    if "architecture" in assume:
        raise ValueError("a model folder of vitreous states every field: assume single fields, not an architecture")
    said = {name: said_by_user(value, getattr(config, name), "config.json") for name, value in assume.items()}
    return replace(config, **assume), reasons | said


def _ignorable(keys: list[str], format: Format) -> list[str]:
    """Return the keys without which `load` may go on, if its format lists them all as ignored; raise for any other."""
    unknown = [key for key in keys if not any(pattern(template).fullmatch(key) for template in format.ignored)]
    if unknown:
        raise CheckpointError(
            f"it has tensors that this model does not: {', '.join(unknown[:4])}{' …' if len(unknown) > 4 else ''}; "
            f"the logits could be wrong; if they are not needed, pass --assume ignored={unknown[0]}"
        )
    return keys


def _resize(
    tensors: Tensors, trained: ViTConfig, size: int | tuple[int, int], convention: str, report: LoadReport
) -> ViTConfig:
    """Load at another image size than the trained one: return the config for it, and change `tensors` to fit.

    Their positions are resized.
    """
    config = replace(trained, image_size=size)
    if (count := config.layout.patches) > MAX_PATCHES:
        size_text = "×".join(str(side) for side in config.size)
        raise ValueError(f"image_size {size_text} makes {count:,} patches: {MAX_PATCHES:,} at most")
    if "pos_embed" in tensors and config.grid != trained.grid:
        prefix = trained.positions - trained.layout.patches
        tensors["pos_embed"] = resize_positions(tensors["pos_embed"], trained.grid, config.grid, convention, prefix)
        old, new = (f"{rows}×{columns}" for rows, columns in (trained.grid, config.grid))
        report.resized.append(f"pos_embed from {old} to {new} ({convention}'s convention)")
    tables = [key for key in tensors if key.endswith("relative_position_bias_table")]
    if tables and config.grid != trained.grid:
        for key in tables:
            tensors[key] = resize_relative_positions(tensors[key], trained.grid, config.grid, convention)
        old, new = (f"{rows}×{columns}" for rows, columns in (trained.grid, config.grid))
        report.resized.append(f"relative positions from {old} to {new} ({convention}'s convention)")
    return config
