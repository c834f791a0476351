"""Find the one flat state dict inside a loaded checkpoint: open containers, remove prefixes.

Training scripts wrap the weights: `{"model": {…}, "optimizer": {…}}`, keys that begin with `module.`, a teacher next to
its student. `unwrap` takes the content of the file and returns the tensors and, for the loading report, the names of
the wrappers it removed and of the tensors it ignored: only what is known to be another copy of the model, or a part of
its training. A head in a container of its own is joined to the others under that name, and so is what nobody knows:
the format decides which keys it has.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from vitreous.weights.safety import CheckpointError
from vitreous.weights.safety.pickle_scan import READABLE, Options

# The first of these that holds tensors is opened.
CONTAINERS = (
    *("state_dict_ema", "model_ema", "ema_state_dict", "ema"),  # averaged weights before raw ones, as timm loads them
    *("teacher", "target_encoder"),  # DINO's and iBOT's, I-JEPA's: the teacher is the one that is evaluated
    *("state_dict", "model_state_dict", "model_state", "model", "net", "network", "module", "params", "weights"),
    *("student", "encoder"),  # encoder: I-JEPA's student
)
LAYER = r"(?!\w*_(head|fc|classifier|layer|proj(ection)?)s?\d*(\.|$))"  # a metric_fc is a layer, and no metric
# Never opened, and lost without harm: the tensors in these are not the model's.
NOT_WEIGHTS = re.compile(
    r"(\w+_)?(optim|optimi[sz]ers?|schedulers?|lr_sched)(_\w+)?\d*|((loss|grad|amp|fp16)_)?scalers?(_state(s|_dict)?)?\d*"
    rf"|(\w+_)?(loss(es)?|criterion|metrics?|callbacks?|history|rng|random){LAYER}(_\w+)?\d*"
    r"|opt|opt_states?|amp|args|loops|hyper_parameters|prototypes"
)
# Removed when every tensor's name begins with one, as often as one fits.
# `encoder.` is not here: torchvision's and Hugging Face's own names begin with it.
PREFIXES = (
    "module.",  # DistributedDataParallel, AveragedModel
    "_orig_mod.",  # torch.compile
    "_forward_module.",  # Lightning Fabric, DeepSpeed
    "_fsdp_wrapped_module.",
    "_checkpoint_wrapped_module.",  # torch's activation checkpointing
    "model.",  # Lightning, timm's feature wrappers
    "timm_model.",  # transformers' TimmWrapper
    *("base_model.", "teacher.backbone.", "student.backbone.", "backbone.", "image_encoder."),
)
# Removed from the middle of names too: single blocks are wrapped as well as models.
WRAPPERS = PREFIXES[1:5]
# One of these may prefix a Vision Transformer that is stored together with parts used in training only.
BACKBONES = ("teacher.backbone.", "student.backbone.", "backbone.", "model.", "net.", "network.")
# Parts beside a backbone that its features do not need: a head beside it would be the model's answer, and is none.
BESIDE_BACKBONE = re.compile(
    r"(student|teacher|momentum_encoder|ema)\.|((student|teacher)\.)?(dino_head|ibot_head|projector|projection_head|predictor"
    rf"|decoder|mask_token|head\.mlp\d?|head\.last_layer\d?|\w*(loss|criterion|metrics?){LAYER}\w*|n_averaged)(\.|$)"
)
# What shows that a predictor is a part of pre-training: beside any other model it may be the head.
PRETRAINING = re.compile(r"(student|teacher|momentum_encoder|(target_)?encoder|projector|projection_head)(\.|$)")
PREPROCESSING = ("mean", "std", "interpolation", "crop_pct", "crop_mode")  # options of timm's training script
SHAPING = {"gp": "global_pool", "bn_eps": "bn_eps"}  # and those that it hands to timm's models
MAX_NESTING = 8  # containers inside one another

Known = dict[tuple[int, Any, int], bool]


@dataclass(frozen=True)
class RawCheckpoint:
    """The state dict of a file under its original names, before its format is recognised."""

    tensors: dict[str, torch.Tensor]
    wrappers: tuple[str, ...]  # containers opened and prefixes removed, outermost first: `("state_dict", "module.")`
    ignored: tuple[str, ...]
    """Tensors, and containers of tensors, that are in the file but not in `tensors`: `("student", "optimizer")`."""
    stated: Mapping[str, Any] = field(default_factory=dict)
    """What timm's training script writes beside the weights (`arch`, `args`), in the words of its config file."""
    left_out: tuple[str, ...] = ()
    """Those of the ignored containers that are not known to be harmless: `("decoder",)`."""


def unwrap(loaded: object) -> RawCheckpoint:
    """Find the state dict inside a loaded checkpoint.

    >>> weights = {"module.cls_token": torch.zeros(1, 1, 8)}
    >>> found = unwrap({"epoch": 3, "teacher": weights, "student": weights})
    >>> list(found.tensors), found.wrappers, found.ignored
    (['cls_token'], ('teacher', 'module.'), ('student',))
    >>> list(unwrap({"model": weights, "head": {"weight": torch.zeros(2, 8)}}).tensors)
    ['cls_token', 'head.weight']
    """
    level, wrappers, ignored, known = loaded, list[str](), list[str](), Known()
    parts, stated, opened, left_out = list[tuple[str, Any]](), dict[str, Any](), list[object](), list[str]()
    for _ in range(MAX_NESTING):
        if not isinstance(level, Mapping):
            raise CheckpointError(f"expected named tensors, got a {type(level).__name__}: save model.state_dict()")
        container = _container(level, known)
        stated = stated or _statement(level)
        opened.append(level)
        for name, value in level.items():
            other = name != container and (container or not isinstance(value, torch.Tensor))
            if not other or not _holds_tensors(value, known) or any(value is each for each in opened):
                continue
            trains = NOT_WEIGHTS.fullmatch(str(name)) is not None
            beside = not trains and BESIDE_BACKBONE.match(f"{name}.") is not None
            pretrains = PRETRAINING.match(str(container)) is not None
            # a single number is a score or a counter, but for a scaler's temperature
            record = not _holds_tensors(value, known, least=2) and not str(name).endswith("scaler")
            unused = trains or (beside and (pretrains or name != "predictor"))
            if record or (unused and name not in CONTAINERS):
                ignored.append(str(name))
                if beside and not record and not pretrains:
                    left_out.append(str(name))
            else:
                parts.append((str(name), value))
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
    tensors, prefixes, others = _from_training_run(_dense(tensors)) or _without_prefixes(_dense(tensors))
    for name, value in parts:
        if name in CONTAINERS and _is_copy(value, tensors, name, known):
            ignored.append(name)
        else:
            _join(tensors, name, value)
    return RawCheckpoint(tensors, (*wrappers, *prefixes), (*ignored, *others), stated, tuple(left_out))


def _statement(level: Mapping[Any, Any]) -> dict[str, Any]:
    """Unwrap what timm's training script stored beside a checkpoint's weights, as its config file would state it."""
    args = level.get("args")
    options = args.values if isinstance(args, Options) else args if isinstance(args, Mapping) else {}
    name = level.get("arch") or options.get("model")
    if not isinstance(name, str):
        return {}
    given = options.get("model_kwargs") or {}
    if not isinstance(given, Mapping):
        raise CheckpointError(
            f"its args say model_kwargs={given!r:.60}, expected an object of arguments: save it again"
        )
    given = {**given, **{key: options[old] for old, key in SHAPING.items() if options.get(old) is not None}}
    classes = options.get("num_classes")
    images = {key: value for key in PREPROCESSING if (value := options.get(key)) not in (None, "")}
    return {
        "architecture": name.rpartition("/")[2],
        "model_args": given,
        **({"num_classes": classes} if type(classes) is int else {}),
        **({"pretrained_cfg": images} if images else {}),
    }


def _is_copy(value: Any, tensors: Mapping[str, torch.Tensor], name: str, known: Known) -> bool:
    """Return whether a container beside the opened one holds the same model, such as a student; raise if it has more.

    Averaged weights without names are a copy too.
    """
    for _ in range(MAX_NESTING):
        if not isinstance(value, Mapping) or (inner := _container(value, known)) is None:
            break
        value = value[inner]
    held = value.items() if isinstance(value, Mapping) else ()
    own = {key: each for key, each in held if isinstance(key, str) and isinstance(each, torch.Tensor)}
    if not own:
        return "ema" in name
    names = set(_without_prefixes(_dense(own))[0])
    if more := sorted(key for key in names - set(tensors) if not BESIDE_BACKBONE.match(key) and key != "masked_embed"):
        if not names & set(tensors):
            return False
        raise CheckpointError(
            f"has {_join_names(more)} in {name} alone, which would be lost: save the model that you want alone"
        )
    return True


def _join(tensors: dict[str, torch.Tensor], name: str, value: object) -> None:
    """Add to the model's `tensors` a part that lies beside them in the checkpoint: a tensor, or a container of some."""
    part = {name: value}
    if isinstance(value, Mapping):
        named = {str(key): each for key, each in value.items()}
        prefix = _shared_prefix(named) or ""
        part = {f"{name}.{key.removeprefix(prefix)}": each for key, each in named.items()}
    for key, each in part.items():
        if not isinstance(each, torch.Tensor | Mapping | list | tuple):
            continue  # a number or a word
        if key in tensors or not isinstance(each, torch.Tensor):
            raise CheckpointError(
                f"has {key} beside the model's tensors, which would be lost: save them as one model, or the model alone"
            )
        tensors |= _dense({key: each})


def _container(level: Mapping[Any, Any], known: Known) -> str | None:
    """Return the key of a checkpoint to open next, or None if the tensors are at this level."""
    inner = [name for name, value in level.items() if _holds_tensors(value, known, through=Mapping)]
    inner = [name for name in inner if isinstance(level[name], Mapping) and not NOT_WEIGHTS.fullmatch(str(name))]
    if preferred := [name for name in CONTAINERS if name in inner]:
        return preferred[0]
    if not inner or any(isinstance(value, torch.Tensor) for value in level.values()):
        return None
    if len(inner) > 1 or not isinstance(inner[0], str):
        raise CheckpointError(f"cannot tell which of {_join_names(inner)} is the model: save that one alone")
    return inner[0]


def _holds_tensors(
    value: object, known: Known, through: Any = Mapping | list | tuple, depth: int = MAX_NESTING, least: int = 0
) -> bool:
    """Return whether a part of a checkpoint holds a tensor of at least so many numbers; `known` keeps the answers."""
    if isinstance(value, torch.Tensor):
        return value.numel() >= least
    if not isinstance(value, through) or not depth:
        return False
    key = (id(value), through, least)
    if key not in known:
        known[key] = False  # the answer for a container that holds itself
        items = value.values() if isinstance(value, Mapping) else value
        known[key] = any(_holds_tensors(item, known, through, depth - 1, least) for item in items)
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
    if adapter := next((name for name in tensors if ".lora_A." in name or ".base_layer." in name), None):
        raise CheckpointError(
            f"holds a PEFT adapter's tensors ({adapter}), not merged into the weights they change: merge them with "
            "peft's merge_and_unload() and load the model that this saves"
        )
    prefixes, ignored = list[str](), list[str]()
    if "n_averaged" in tensors and _shared_prefix(tensors.keys() - {"n_averaged"}) == "module.":  # AveragedModel
        tensors = {name: tensor for name, tensor in tensors.items() if name != "n_averaged"}
    for _ in range(MAX_NESTING):
        if (prefix := _shared_prefix(tensors)) is None and (inner := _inner_wrapper(tensors)):
            tensors = _without_inner(tensors, inner)
            prefixes.append(inner)
            continue
        if (prefix := prefix or _backbone_prefix(tensors)) is None:
            break
        beside = [name for name in tensors if not name.startswith(prefix)]
        pretrains = any(PRETRAINING.match(name) for name in beside)
        heads = () if pretrains else ("predictor.",)
        if lost := [name for name in beside if not BESIDE_BACKBONE.match(name) or name.startswith(heads)]:
            raise CheckpointError(
                f"has a backbone under {prefix} and {_join_names(lost)} beside it, which would be lost: save them as "
                "one model, or the backbone alone"
            )
        ignored += beside
        tensors = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
        prefixes.append(prefix)
    return tensors, prefixes, ignored


def _inner_wrapper(names: Collection[str]) -> str | None:
    """Find a wrapper's prefix inside the keys of a state dict, as of blocks that were compiled one by one."""
    return next((part for part in WRAPPERS if any(f".{part}" in name for name in names)), None)


def _without_inner(tensors: dict[str, torch.Tensor], part: str) -> dict[str, torch.Tensor]:
    """Return a state dict without a wrapper's prefix inside its keys."""
    plain = {name.replace(f".{part}", "."): tensor for name, tensor in tensors.items()}
    if len(plain) < len(tensors):
        raise CheckpointError(f"has some tensors twice, with {part} in their names and without: save one of each")
    return plain


def _shared_prefix(names: Collection[str]) -> str | None:
    """Find a wrapper's prefix that all keys of a state dict share."""
    return next((p for p in PREFIXES if all(name.startswith(p) and name != p for name in names)), None)


def _backbone_prefix(tensors: Mapping[str, torch.Tensor]) -> str | None:
    """Find the prefix of the backbone in a state dict with other parts."""
    parts = ("cls_token", "patch_embed.", "conv_proj.", "class_token")
    found = (p for p in BACKBONES if any(name.startswith(p + part) for name in tensors for part in parts))
    return next(found, None)


def _dense(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the plain tensors inside a checkpoint's parameters; raise for a type that a ViT's weights never have."""
    for name, tensor in tensors.items():
        if tensor.dtype not in READABLE or tensor.layout != torch.strided or tensor.device.type != "cpu":
            kind = f"{tensor.dtype}, {tensor.layout}, on {tensor.device.type}"
            raise CheckpointError(f"expected real numbers in {name}, got {kind}: save it dense, as float32")
    return {name: tensor.detach() for name, tensor in tensors.items()}


def _join_names(names: object) -> str:
    """Write the keys of a checkpoint's container for a message."""
    shown = [str(name)[:60] for name in (names if isinstance(names, Mapping | list) else [])]
    return (", ".join(shown[:8]) + (" …" if len(shown) > 8 else "")) or "any key"
