"""`CLASSES`: timm's model classes that a `ViTConfig` can describe, each a translation of its constructor's arguments.

A class takes the arguments of an entry point or a config file and returns them under the names of timm's
`VisionTransformer`; what that has no argument for is a field of `ViTConfig` in `OURS`. An argument that a class does
not have, or a value that is not supported, is an error.
"""

from collections.abc import Callable, Mapping
from typing import Any

from vitreous.weights.safety import CheckpointError

Arguments = Mapping[str, Any]
OURS = (
    *("class", "block_fn", "norm_eps", "swiglu", "distilled", "qv_bias", "relative_position", "relative_width"),
    *("norm", "patch_norm", "mlp_layer"),
)
"""Keys of our table that no config file of timm's can have."""
SHARED = (
    *("class", "img_size", "patch_size", "in_chans", "num_classes", "global_pool", "embed_dim", "depth", "num_heads"),
    *("mlp_ratio", "qkv_bias", "init_values", "norm_eps"),
    *("drop_rate", "proj_drop_rate", "attn_drop_rate", "drop_path_rate"),
)
"""Arguments that all classes have."""
BLOCKS = {"Block": "before", "RelPosBlock": "before", "ResPostBlock": "after", "ResPostRelPosBlock": "after"}
"""timm's blocks, and where their layer norms are."""


def beit(given: Arguments) -> dict[str, Any]:
    """Translate the arguments of timm's `Beit`."""
    flags = {"use_abs_pos_emb": True, "use_rel_pos_bias": False, "use_shared_rel_pos_bias": False}
    arguments = without(given, "Beit", *flags, "pos_drop_rate", "head_init_scale")
    absolute, own, shared = (check_bool(name, given.get(name, usual)) for name, usual in flags.items())
    if own and shared:
        raise CheckpointError("timm's use_rel_pos_bias and use_shared_rel_pos_bias together are not supported")
    arguments["qv_bias"] = check_bool("qkv_bias", given.get("qkv_bias", True))
    arguments["qkv_bias"] = False
    arguments["pos_embed"] = "learn" if absolute else "none"
    arguments["relative_position"] = "table" if own else "shared-table" if shared else "none"
    return {"global_pool": "avg"} | arguments


def relative(given: Arguments) -> dict[str, Any]:
    """Translate the arguments of timm's `VisionTransformerRelPos`."""
    own, kept = ("rel_pos_type", "rel_pos_dim", "shared_rel_pos"), ("qk_norm", "class_token", "fc_norm", "block_fn")
    arguments = without(given, "VisionTransformerRelPos", *own, *kept, "weight_init", "fix_init")
    arguments |= {name: given[name] for name in kept if name in given}
    kind = one_of("rel_pos_type", given.get("rel_pos_type", "mlp"), {"mlp": "mlp", "bias": "table"})
    shared = check_bool("shared_rel_pos", given.get("shared_rel_pos", False))
    arguments["pos_embed"] = "none"
    arguments["fc_norm"] = given.get("fc_norm") or False
    arguments["relative_position"] = f"shared-{kind}" if shared else kind
    arguments["relative_width"] = (given.get("rel_pos_dim") or 128) if kind == "mlp" else 0
    return {"global_pool": "avg", "class_token": False, "init_values": 1e-6} | arguments


CLASSES: dict[str, Callable[[Arguments], Arguments]] = {
    "VisionTransformer": lambda given: given,
    "Beit": beit,
    "VisionTransformerRelPos": relative,
}


def without(given: Arguments, cls: str, *own: str) -> dict[str, Any]:
    """Return the arguments that all classes share, without the class's `own`; any other is an error."""
    if unknown := [name for name in given if name not in (*SHARED, *own)]:
        raise CheckpointError(f"timm's {cls} has no argument {unknown[0]}={given[unknown[0]]!r:.60} that is supported")
    return {name: value for name, value in given.items() if name not in (*own, "class")}


def one_of(name: str, value: object, known: Mapping[str, str]) -> str:
    """Return what `known` has for an argument's value; raise for another value."""
    if not isinstance(value, str) or value not in known:
        raise CheckpointError(f"timm's {name}={value!r:.60} is not supported: expected one of {', '.join(known)}")
    return known[value]


def check_bool(name: str, value: object) -> bool:
    """Return an argument that is true or false; raise for another value."""
    if not isinstance(value, bool):
        raise CheckpointError(f"timm's {name} must be true or false, got {value!r:.60}")
    return value
