"""Find the one flat state dict inside a loaded checkpoint: open containers, remove prefixes.

Training scripts wrap the weights: `{"model": {…}, "optimizer": {…}}`, keys that begin with `module.`, a teacher next to
its student. `unwrap` takes the content of the file and returns the tensors and, for the loading report, the names of
the wrappers it removed and of the tensors it ignored.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from vitreous.weights.safety import CheckpointError
from vitreous.weights.safety.pickle_scan import READABLE

# The first of these that holds tensors is opened.
CONTAINERS = (
    *("state_dict_ema", "model_ema", "ema_state_dict", "ema"),  # averaged weights before raw ones, as timm loads them
    *("teacher", "target_encoder"),  # DINO's and iBOT's, I-JEPA's: the teacher is the one that is evaluated
    *("state_dict", "model_state_dict", "model_state", "model", "net", "network", "module", "params", "weights"),
    *("student", "encoder"),  # encoder: I-JEPA's student
)
# Never opened: the tensors in these are not the model's.
NOT_WEIGHTS = (
    *("optimizer", "optimizer_state", "optimizer_state_dict", "optimizer_states", "optim", "opt"),
    *("scheduler", "lr_scheduler", "scaler", "loss_scaler", "amp", "amp_scaler", "fp16_scaler"),
    *("loss", "criterion", "dino_loss", "ibot_loss", "callbacks", "rng_state"),
)
# Removed when every tensor's name begins with one, as often as one fits.
# `encoder.` is not here: torchvision's and Hugging Face's own names begin with it.
PREFIXES = (
    "module.",  # DistributedDataParallel, AveragedModel
    "_orig_mod.",  # torch.compile
    "_forward_module.",  # Lightning Fabric, DeepSpeed
    "model.",  # Lightning, timm's feature wrappers
    "timm_model.",  # transformers' TimmWrapper
    *("base_model.", "teacher.backbone.", "student.backbone.", "backbone.", "image_encoder."),
)
# One of these may prefix a Vision Transformer that is stored together with parts used in training only.
BACKBONES = ("teacher.backbone.", "student.backbone.", "backbone.", "model.", "net.", "network.")
# Parts beside a backbone that its features do not need: a head beside it would be the model's answer, and is none.
BESIDE_BACKBONE = re.compile(
    r"(student|teacher|momentum_encoder|ema)\.|((student|teacher)\.)?(dino_head|ibot_head|projector|projection_head|predictor"
    r"|decoder|mask_token|head\.mlp\d?|head\.last_layer\d?|\w*(loss|criterion|metrics?)\w*|n_averaged)(\.|$)"
)
MAX_NESTING = 8  # containers inside one another

Known = dict[tuple[int, Any], bool]


@dataclass(frozen=True)
class RawCheckpoint:
    """The state dict of a file under its original names, before its format is recognised."""

    tensors: dict[str, torch.Tensor]
    wrappers: tuple[str, ...]  # containers opened and prefixes removed, outermost first: `("state_dict", "module.")`
    ignored: tuple[str, ...]
    """Tensors, and containers of tensors, that are in the file but not in `tensors`: `("student", "optimizer")`."""


def unwrap(loaded: object) -> RawCheckpoint:
    """Find the state dict inside a loaded checkpoint.

    >>> weights = {"module.cls_token": torch.zeros(1, 1, 8)}
    >>> found = unwrap({"epoch": 3, "teacher": weights, "student": weights})
    >>> list(found.tensors), found.wrappers, found.ignored
    (['cls_token'], ('teacher', 'module.'), ('student',))
    """
    level, wrappers, ignored, known = loaded, list[str](), list[str](), Known()
    for _ in range(MAX_NESTING):
        if not isinstance(level, Mapping):
            raise CheckpointError(f"expected named tensors, got a {type(level).__name__}: save model.state_dict()")
        container = _container(level, known)
        for name, value in level.items():
            other = isinstance(name, str) and name != container and (container or not isinstance(value, torch.Tensor))
            if other and _holds_tensors(value, known):
                ignored.append(name)
        if container is None:
            break
        wrappers.append(container)
        level = level[container]
    else:
        raise CheckpointError(f"weights lie over {MAX_NESTING} containers deep: save model.state_dict() alone")
    tensors = {name: value for name, value in level.items() if isinstance(value, torch.Tensor)}
    if not tensors:
        raise CheckpointError(f"holds no weights under {_join_names(loaded)}: save model.state_dict()")
    if unnamed := [name for name in tensors if not isinstance(name, str)]:
        raise CheckpointError(f"expected tensors with names, got {_join_names(unnamed)}: save model.state_dict()")
    dense = {name: _dense(name, value) for name, value in tensors.items()}
    tensors, prefixes, others = _from_training_run(dense) or _without_prefixes(dense)
    return RawCheckpoint(tensors, (*wrappers, *prefixes), (*ignored, *others))


def _container(level: Mapping[Any, Any], known: Known) -> str | None:
    """Return the key of a checkpoint to open next, or None if the tensors are at this level."""
    inner = [name for name, value in level.items() if _holds_tensors(value, known, through=Mapping)]
    inner = [name for name in inner if isinstance(level[name], Mapping) and name not in NOT_WEIGHTS]
    if preferred := [name for name in CONTAINERS if name in inner]:
        return preferred[0]
    if not inner or any(isinstance(value, torch.Tensor) for value in level.values()):
        return None
    if len(inner) > 1 or not isinstance(inner[0], str):
        raise CheckpointError(f"cannot tell which of {_join_names(inner)} is the model: save that one alone")
    return inner[0]


def _holds_tensors(
    value: object, known: Known, through: Any = Mapping | list | tuple, depth: int = MAX_NESTING
) -> bool:
    """Return whether a part of a checkpoint holds a tensor. `known` keeps each container's answer."""
    if isinstance(value, torch.Tensor):
        return True
    if not isinstance(value, through) or not depth:
        return False
    key = (id(value), through)
    if key not in known:
        known[key] = False  # the answer for a container that holds itself
        items = value.values() if isinstance(value, Mapping) else value
        known[key] = any(_holds_tensors(item, known, through, depth - 1) for item in items)
    return known[key]


def _from_training_run(tensors: dict[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], list[str], list[str]] | None:
    """Find the state dict in a checkpoint of our own training, averaged weights if present."""
    if "totals" not in tensors or not any(name.startswith("model/") for name in tensors):
        return None
    parts: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        part, _, rest = name.partition("/")
        parts.setdefault(part, {})[rest] = tensor
    model, average = parts.pop("model"), parts.pop("average", {})
    if any(".lora_" in name for name in model):
        raise CheckpointError("is a checkpoint of a LoRA run, not merged yet: finish the run and load its model folder")
    return model | average, ["model/", *(["average/"] if average else [])], list(parts)


def _without_prefixes(tensors: dict[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], list[str], list[str]]:
    """Return the tensors under shorter names, the prefixes removed, and the tensors ignored."""
    if lora := next((name for name in tensors if ".lora_A." in name), None):
        raise CheckpointError(
            f"holds LoRA matrices ({lora}), not merged into the weights that they change: merge them with peft's "
            "merge_and_unload() and load the model that this saves"
        )
    prefixes, ignored = list[str](), list[str]()
    if "n_averaged" in tensors and _shared_prefix(tensors.keys() - {"n_averaged"}) == "module.":  # AveragedModel
        tensors = {name: tensor for name, tensor in tensors.items() if name != "n_averaged"}
    while len(prefixes) < MAX_NESTING and (prefix := _shared_prefix(tensors) or _backbone_prefix(tensors)):
        beside = [name for name in tensors if not name.startswith(prefix)]
        if lost := [name for name in beside if not BESIDE_BACKBONE.match(name)]:
            raise CheckpointError(
                f"has a backbone under {prefix} and {_join_names(lost)} beside it, which would be lost: save them as "
                "one model, or the backbone alone"
            )
        ignored += beside
        tensors = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
        prefixes.append(prefix)
    return tensors, prefixes, ignored


def _shared_prefix(names: Collection[str]) -> str | None:
    """Find a wrapper's prefix that all keys of a state dict share."""
    return next((p for p in PREFIXES if all(name.startswith(p) and name != p for name in names)), None)


def _backbone_prefix(tensors: Mapping[str, torch.Tensor]) -> str | None:
    """Find the prefix of the backbone in a state dict with other parts."""
    parts = ("cls_token", "patch_embed.", "conv_proj.", "class_token")
    found = (p for p in BACKBONES if any(name.startswith(p + part) for name in tensors for part in parts))
    return next(found, None)


def _dense(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Return the plain tensor inside a checkpoint's parameter; raise for a type that a ViT's weights never have."""
    if tensor.dtype not in READABLE or tensor.layout != torch.strided or tensor.device.type != "cpu":
        kind = f"{tensor.dtype}, {tensor.layout}, on {tensor.device.type}"
        raise CheckpointError(f"expected real numbers in {name}, got {kind}: save it dense, as float32")
    return tensor.detach()


def _join_names(names: object) -> str:
    """Write the keys of a checkpoint's container for a message."""
    shown = [str(name)[:60] for name in (names if isinstance(names, Mapping | list) else [])]
    return (", ".join(shown[:8]) + (" …" if len(shown) > 8 else "")) or "any key"
