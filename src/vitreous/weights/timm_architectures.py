"""timm's architectures by name: the arguments timm gives a model → `ViTConfig`; which of them a file's tensors fit.

`timm_architectures.json` holds what timm's entry points pass to its `VisionTransformer`, or to another `class`. Three
keys are ours, for values that JSON cannot hold: `norm_eps`, `swiglu` and `distilled`; `input_size` is the image size
of timm's weights where the tensors do not show it. An entry with `unsupported` has the
tensors that a supported model could have and computes something else: it is listed so that a bare file of one is not
taken for the other, and `unsupported` names the difference. `tests/weights/test_timm_architectures.py` compares the
table with timm and, run as a script, writes it.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from vitreous.models.variants import VARIANTS
from vitreous.models.vit_config import ViTConfig
from vitreous.weights.keymap import Allowed
from vitreous.weights.safety import CheckpointError
from vitreous.weights.timm_classes import BLOCKS, CLASSES, check_bool, one_of

POOLS = {"token": "token", "avg": "mean", "map": "attention", "class-attention": "class-attention"}
ACTIVATIONS = {name: name for name in ("gelu", "gelu_tanh", "quick_gelu", "relu", "silu")} | {"swish": "silu"}
FIELDS = {  # timm's arguments that are fields of ViTConfig
    "img_size": "image_size",
    "patch_size": "patch_size",
    "in_chans": "channels",
    "num_classes": "classes",
    "embed_dim": "width",
    "depth": "depth",
    "num_heads": "heads",
    "qkv_bias": "qkv_bias",
    "qv_bias": "qv_bias",
    "qk_norm": "qk_norm",
    "class_token": "class_token",
    "reg_tokens": "registers",
    "pre_norm": "embedding_norm",
    "norm_eps": "norm_eps",
    "swiglu": "swiglu",
    "distilled": "distillation_token",
    "pool_include_prefix": "pool_prefix",
    "scale_attn_norm": "attention_norm",
    "scale_mlp_norm": "mlp_norm",
    "relative_position": "relative_position",
    "relative_width": "relative_width",
    "proj_bias": "branch_bias",
    "norm": "norm",
    "patch_norm": "patch_norm",
    "stem": "stem",
    **{name: name for name in ("mlp_norm", "attention_norm", "pool_heads", "pool_mlp_width", "pool_layers")},
    "talking_heads": "talking_heads",
    **{name: name for name in ("rope", "rope_temperature", "rope_offset", "rope_reference", "rope_order")},
}
COMPUTED = (
    "global_pool",
    "mlp_ratio",
    "init_values",
    "pos_embed",
    "no_embed_class",
    "final_norm",
    "fc_norm",
    "act_layer",
    "block_fn",
    "mlp_layer",
    "mlp_width",
)
HARMLESS = (  # they matter in training only, or not at the size that the model was trained with
    *("drop_rate", "pos_drop_rate", "patch_drop_rate", "proj_drop_rate", "attn_drop_rate", "drop_path_rate"),
    *("weight_init", "fix_init", "dynamic_img_size", "strict_img_size"),
)
HARMLESS_VALUES: dict[str, tuple[Any, ...]] = {  # arguments that change the numbers, and the values that do not
    "dynamic_img_pad": (False,),
    "embed_norm_layer": (None,),
    "norm_layer": (None,),
}
RESIZED = {  # pattern of timm's names → how it resizes their positions, if not as all others
    "flexivit_": "flexivit",
    "vit_(base|huge)_patch16_radio_v3": "radio-corners",
    r"vit_\w+_radio_": "radio",
}
STRUCTURE = (
    *("class_token", "distillation_token", "registers", "position", "prefix_positions", "patch_bias", "qkv_bias"),
    *("relative_position", "qv_bias", "qk_norm", "swiglu", "embedding_norm", "final_norm", "fc_norm", "layer_scale"),
    *("norm", "branch_bias", "patch_norm", "stem"),
    *("attention_norm", "mlp_norm", "talking_heads", "pool_layers"),
)
"""Fields that decide which tensors there are, whatever their sizes; of `pool` and `rope` one value does."""
ROTATION = ("rope_temperature", "rope_offset", "rope_reference", "rope_order")
"""Fields that count only in a model with rotary positions."""
UNSEEN = ("heads", "activation", "norm_eps", "pool", "pool_heads", "pool_prefix", "post_norm", "rope", *ROTATION)
"""Fields that no tensor shows (`heads` and `pool` only sometimes)."""
SIZES = ("width", "depth", "mlp_width")


@dataclass(frozen=True)
class Architecture:
    """A known model: its name, its config, and how it differs from the model that vitreous would build, if it does."""

    name: str
    config: ViTConfig
    unsupported: str = ""


@cache
def timm_arguments() -> dict[str, dict[str, Any]]:
    """Return the table of timm's architectures: timm's name → the arguments of its `VisionTransformer`."""
    text = (resources.files("vitreous.weights") / "timm_architectures.json").read_text(encoding="utf-8")
    table: dict[str, dict[str, Any]] = json.loads(text)
    return table


def from_arguments(arguments: Mapping[str, Any]) -> ViTConfig:
    """Return the config of timm's architecture with these arguments, of a `VisionTransformer` or another class.

    >>> from_arguments({"embed_dim": 192, "num_heads": 3, "global_pool": "avg"}).fc_norm
    True
    """
    if "input_size" in arguments:
        arguments = {"img_size": arguments["input_size"]} | {k: v for k, v in arguments.items() if k != "input_size"}
    arguments = CLASSES[arguments.get("class", "VisionTransformer")](arguments)
    for name, value in arguments.items():
        if name in HARMLESS_VALUES and value in HARMLESS_VALUES[name]:
            continue
        if name not in (*FIELDS, *COMPUTED, *HARMLESS):
            raise CheckpointError(f"timm's argument {name}={value!r:.60} is not supported")
    given = {FIELDS[name]: _pair(value) for name, value in arguments.items() if name in FIELDS}
    given = {name: value for name, value in given.items() if not (name == "classes" and value is None)}
    if "stem" in given:  # timm counts the positions of its feature map
        stride = ViTConfig(stem=given["stem"], patch_size=32).stem_stride
        stride *= 2 if given["stem"] == "mobileclip" else 1  # whose last convolution is our patch embedding
        given["patch_size"] = tuple(stride * side for side in _both(given.get("patch_size", 1)))
    pool = one_of("global_pool", arguments.get("global_pool", "token"), POOLS)
    if given.get("pool_prefix") and pool != "attention":
        raise CheckpointError(f"timm's argument pool_include_prefix=True is not supported with a pool of {pool}")
    final_norm = check_bool("final_norm", arguments.get("final_norm", True))
    fc_norm = arguments.get("fc_norm")
    fc_norm = pool == "mean" if fc_norm is None else check_bool("fc_norm", fc_norm)
    width = given.get("width", 768)
    hidden = int(width * _number("mlp_ratio", arguments.get("mlp_ratio", 4.0)))  # as timm rounds
    sides, patches = (_both(given.get(name, usual)) for name, usual in (("image_size", 224), ("patch_size", 16)))
    distilled = bool(given.get("distillation_token", False))
    prefix_positions = not check_bool("no_embed_class", arguments.get("no_embed_class", False))
    if distilled and not prefix_positions:
        raise CheckpointError("timm's argument no_embed_class=True is not supported with a distillation token")
    position = arguments.get("pos_embed", "learn")
    post_norm = one_of("block_fn", arguments.get("block_fn", "Block"), BLOCKS) == "after"
    if "mlp_layer" in arguments:
        given["swiglu"] = bool(one_of("mlp_layer", arguments["mlp_layer"], {"SwiGLU": "in two parts"}))
        hidden *= 2
    if given.get("swiglu") and arguments.get("act_layer") not in (None, "silu"):
        raise CheckpointError(
            f"timm's argument act_layer={arguments['act_layer']!r:.60} is not supported in a gated MLP"
        )
    return ViTConfig(
        **given,
        mlp_width=arguments.get("mlp_width", hidden // 2 if given.get("swiglu") else hidden),
        pool=pool,  # type: ignore[arg-type]  # one of POOLS
        position=one_of("pos_embed", position, {"learn": "learned", "": "none", "none": "none"}),  # type: ignore[arg-type]
        prefix_positions=prefix_positions,
        patch_bias=not given.get("embedding_norm", False),
        final_norm=final_norm and not fc_norm,
        fc_norm=final_norm and fc_norm,
        layer_scale=0.0 if post_norm else _number("init_values", arguments.get("init_values") or 0.0),
        post_norm=post_norm,
        activation=one_of("act_layer", arguments.get("act_layer") or "gelu", ACTIVATIONS),  # type: ignore[arg-type]
        partial_patches="stem" not in given and any(side % patch for side, patch in zip(sides, patches, strict=True)),
        distillation_head=distilled and given.get("classes", 1000) > 0,
    )


def find_architecture(name: str) -> Architecture | None:
    """Return the architecture of a name, with or without timm's tag; None if it is not in the table.

    >>> find_architecture("timm/vit_tiny_patch16_224.augreg_in21k").config.heads
    3
    """
    return known_architectures().get(name.removeprefix("timm/").split(".")[0])


@cache
def known_architectures() -> dict[str, Architecture]:
    """Return the table of timm's architectures by name, and with them our own small ones."""
    known = {}
    for name, arguments in timm_arguments().items():
        plain = {key: value for key, value in arguments.items() if key != "unsupported"}
        known[name] = Architecture(name, from_arguments(plain), arguments.get("unsupported", ""))
    ours = {name: Architecture(name, config) for name, config in VARIANTS.items() if name not in known}
    return known | ours


def states(config: ViTConfig, sizes: bool = True) -> Allowed:
    """Return what the config of one of timm's architectures states, by field; without `sizes`, no sizes and classes."""
    unsaid = {"dropout", "attention_dropout", "stochastic_depth", "representation_size", "position_std"}
    unsaid |= set() if sizes else {"channels", "classes", "distillation_head"}
    placed = config.position != "none" or config.relative_position.endswith("table")
    if placed and not config.partial_patches and not sizes:  # their number shows it
        unsaid |= {"image_size", "partial_patches"}
    return {name: (value,) for name, value in vars(config).items() if name not in unsaid}


def normalise(name: str, value: Any, shapes: Mapping[str, Any]) -> Any:
    """Return a config field's value in the form in which two of timm's architectures are compared.

    Of layer scale only its presence counts, and positions of prefix tokens only if there are such tokens and positions.
    """
    if name == "layer_scale":
        return bool(value)
    if name == "prefix_positions" and (
        shapes["position"] == "none" or not (shapes["class_token"] or shapes["registers"])
    ):
        return True
    return (value, value) if name in ("image_size", "patch_size") and isinstance(value, int) else value


def structure(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields by which timm's architectures differ in their tensors."""
    found = {name: normalise(name, fields[name], fields) for name in STRUCTURE}
    special = {"pool": "attention", "rope": "mixed"}  # the values that bring tensors with them
    return found | {name: value if fields.get(name) == value else "other" for name, value in special.items()}


def resizing(name: str, config: ViTConfig) -> str:
    """Look up among timm's architectures how a model's positions are resized: by its name, else by those like it.

    >>> resizing("flexivit_small", ViTConfig()), resizing("", ViTConfig())
    ('flexivit', 'timm')
    """
    names = [name]
    if not name:
        mine, sizes = structure(vars(config)), tuple(getattr(config, field) for field in SIZES)
        same = [entry for entry in known_architectures().values() if structure(vars(entry.config)) == mine]
        names = [entry.name for entry in same if _sizes(entry) == sizes] or [entry.name for entry in same]
    found = {next((way for known, way in RESIZED.items() if re.match(known, each)), "timm") for each in names or [""]}
    if len(found) > 1:
        raise CheckpointError(
            f"timm resizes the positions of models like this one in {len(found)} ways: pass resize="
            f"{' or '.join(sorted(found))}, or --assume architecture=NAME, timm's name of the model"
        )
    return found.pop()


def known_heads(shapes: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the numbers of heads that timm's architectures with such tensors of these sizes have."""
    mine, sizes = structure(shapes), tuple(shapes[name] for name in SIZES)
    same = (e.config for e in known_architectures().values() if _sizes(e) == sizes)
    return tuple(sorted({config.heads for config in same if structure(vars(config)) == mine}))


def known_depths(shapes: Mapping[str, Any]) -> str:
    """Return the depths of timm's architectures of this width if none has the file's own; else nothing."""
    configs = [entry.config for entry in known_architectures().values()]
    same = {c.depth for c in configs if (c.width, c.mlp_width) == (shapes["width"], shapes["mlp_width"])}
    return "" if shapes["depth"] in same else " or ".join(str(depth) for depth in sorted(same))


def timm_models(shapes: Mapping[str, Any], assume: Mapping[str, Any]) -> tuple[Allowed, str]:
    """Return what timm's architectures with a file's tensors agree on, and the name of one that has its sizes too.

    `shapes` are the fields that the tensors state. Fields that the user assumes need not agree. A structure that no
    known model has is an error that names the nearest: a part is missing, or the user has to confirm it.
    """
    mine, sizes = structure(shapes), tuple(shapes[name] for name in SIZES)
    differing = []
    for entry in known_architectures().values():
        theirs = structure(vars(entry.config))
        differing.append((entry, [f for f in mine if f not in assume and theirs[f] != mine[f]]))
    found = [entry for entry, fields in differing if not fields and entry.unsupported not in assume]
    if not found:
        same = [pair for pair in differing if _sizes(pair[0]) == sizes and not pair[0].unsupported]
        nearest, fields = min(same or differing, key=lambda pair: len(pair[1]))
        values = [f"{f}={shapes[f]}" for f in fields if f in STRUCTURE] or ["architecture=NAME"]
        said = ", ".join(f"{f}={shapes.get(f, mine[f])}" for f in fields)
        raise CheckpointError(
            f"its tensors say {said}, unlike those of any known model (the nearest is {nearest.name}): a part is "
            f"missing; if not, pass --assume {' --assume '.join(values)}"
        )
    sized = [entry for entry in found if _sizes(entry) == sizes]
    entries = sized or found
    if stranger := next((entry for entry in entries if entry.unsupported), None):
        _refuse_look_alike(stranger, next((entry for entry in entries if not entry.unsupported), None))
    instead = {"qkv_bias": "qv_bias", "final_norm": "fc_norm"}
    for name, other in instead.items():  # models without them are known, and so is the accident
        if not (shapes[name] or name in assume or shapes[other] or not shapes["branch_bias"]):
            text = f"its tensors say {name}=False: a part is missing; if not, pass --assume {name}=False"
            raise CheckpointError(text)
    unseen = (*(name for name in UNSEEN if sized or name != "heads"), *STRUCTURE)
    allowed: Allowed = {name: tuple(sorted({getattr(e.config, name) for e in entries})) for name in unseen}
    allowed["head_bias"] = (True,)
    allowed["distillation_head"] = (shapes["distillation_token"] and shapes["classes"] > 0,)
    return allowed, entries[0].name


def _refuse_look_alike(stranger: Architecture, supported: Architecture | None) -> None:
    """Raise if a file's tensors fit one of timm's architectures that computes something else than ours.

    They may fit a supported one too.
    """
    if supported is None:
        raise CheckpointError(
            f"its tensors are those of {stranger.name}, an unsupported model with other {stranger.unsupported}"
        )
    field = stranger.unsupported
    value = f"{field}={getattr(supported.config, field)}" if hasattr(supported.config, field) else "architecture=NAME"
    raise CheckpointError(
        f"its tensors are those of {supported.name} and of {stranger.name}, which is not supported and has other "
        f"{field}: if it is not that one, pass --assume {value}"
    )


def _sizes(entry: Architecture) -> tuple[int, ...]:
    """Return the sizes of one of timm's architectures."""
    return tuple(getattr(entry.config, name) for name in SIZES)


def _pair(value: Any) -> Any:
    """Turn a list among the arguments of timm's architectures into a tuple."""
    return tuple(value) if isinstance(value, list) else value


def _both(value: Any) -> tuple[int, int]:
    """Return height and width of a size among the arguments of one of timm's architectures.

    A value of another kind gives 1 and 1: `ViTConfig` raises for it.
    """
    pair = value if isinstance(value, tuple) else (value, value)
    return pair if len(pair) == 2 and all(type(side) is int and side > 0 for side in pair) else (1, 1)


def _number(name: str, value: object) -> float:
    """Check that an argument of timm's architectures is a number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**24:
        raise CheckpointError(f"timm's {name} must be a number, got {value!r:.60}")
    return float(value)
