"""`CLASSES`: timm's classes beside `VisionTransformer` (Eva, Beit, Cait, NaFlexVit …), each read by a function.

A class takes the arguments of an entry point or a config file and returns them under the names of timm's
`VisionTransformer`; what that has no argument for is a field of `ViTConfig` in `OURS`. An argument that a class does
not have, or a value that is not supported, is an error. Dropout rates (`is_dropout`) matter for training alone.
"""

from collections.abc import Callable, Mapping
from typing import Any

from vitreous.models.vit_config import ViTConfig
from vitreous.weights.adapt import check_limits
from vitreous.weights.keymap import Allowed
from vitreous.weights.safety import CheckpointError

Arguments = Mapping[str, Any]
OURS = (
    *("class", "block_fn", "norm_eps", "swiglu", "distilled", "qv_bias", "relative_position", "relative_width"),
    *("norm", "patch_norm", "mlp_layer", "stem"),
    *("mlp_width", "mlp_norm", "attention_norm", "pool_heads", "pool_mlp_width", "rope", "rope_offset"),
    *("rope_reference", "rope_order", "talking_heads", "pool_layers", "input_size"),
)
"""Keys of our table that no config file of timm's can have."""
SHARED = (
    *("class", "img_size", "patch_size", "in_chans", "num_classes", "global_pool", "embed_dim", "depth", "num_heads"),
    *("mlp_ratio", "qkv_bias", "init_values", "norm_eps"),
    *("drop_rate", "proj_drop_rate", "attn_drop_rate", "drop_path_rate"),
)
"""Arguments that all classes have."""
EVA_FLAGS = {  # arguments of `Eva` that are true or false, with their defaults
    **dict.fromkeys(("class_token", "use_abs_pos_emb", "qkv_fused"), True),
    **dict.fromkeys(("no_embed_class", "qk_norm", "swiglu_mlp", "scale_mlp", "scale_attn_inner"), False),
    **dict.fromkeys(("use_post_norm", "use_pre_transformer_norm", "use_rot_pos_emb", "attn_only_layer_scale"), False),
}
EVA_OPTIONS = (
    *("num_reg_tokens", "num_kv_heads", "swiglu_align_to", "attn_type", "use_post_transformer_norm", "use_fc_norm"),
    *("rope_type", "rope_grid_offset", "rope_grid_indexing", "rope_temperature", "rope_rotate_half", "ref_feat_shape"),
    *("attn_pool_num_heads", "attn_pool_mlp_ratio", "norm"),
)
EVA_HARMLESS = (  # they matter in training only, or not at the size that the model was trained with
    *("pos_drop_rate", "patch_drop_rate", "dynamic_img_size", "head_init_scale"),
    *("rope_shift_coords", "rope_jitter_coords", "rope_rescale_coords"),
)
EVA_LIMITS: Allowed = {
    **dict.fromkeys(("distillation_token", "post_norm", "talking_heads", "patch_norm"), (False,)),
    "norm": ("layer",),
    "branch_bias": (True,),
    "stem": ("none",),
    "relative_position": ("none",),
    "activation": ("gelu",),
    "pool": ("token", "mean", "attention"),
}
"""What timm's `Eva` supports of the fields that it has no argument for."""
POOLS = {"token": "token", "mean": "avg", "attention": "map", "class-attention": "token"}
"""What timm calls our pools."""
BLOCKS = {"Block": "before", "RelPosBlock": "before", "ResPostBlock": "after", "ResPostRelPosBlock": "after"}
"""timm's blocks, and where their layer norms are."""


def beit(given: Arguments) -> dict[str, Any]:
    """Translate the arguments of timm's class `Beit`."""
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


def cait(given: Arguments) -> dict[str, Any]:
    """Translate the arguments of one of timm's classes, `Cait`, to those of its `VisionTransformer`."""
    arguments = without(given, "Cait", "depth_token_only", "mlp_ratio_token_only", "pos_drop_rate")
    one_of("global_pool", given.get("global_pool", "token"), {"token": "class token"})
    width, ratio = given.get("embed_dim", 768), given.get("mlp_ratio_token_only", 4.0)
    own = {"class_token": False, "global_pool": "class-attention", "fc_norm": True, "talking_heads": True}
    own |= {"pool_layers": given.get("depth_token_only", 2), "pool_mlp_width": int(width * ratio)}
    return {"init_values": 1e-4} | arguments | own


def relative(given: Arguments) -> dict[str, Any]:
    """Translate the arguments of timm's class `VisionTransformerRelPos`."""
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


def eva(given: Arguments) -> dict[str, Any]:
    """Translate the arguments of timm's class `Eva`: EVA, EVA-02, DINOv3, Perception Encoder, other rotary ViTs."""
    flags = {name: check_bool(name, given.get(name, usual)) for name, usual in EVA_FLAGS.items()}
    taken = (*EVA_FLAGS, *EVA_OPTIONS, *EVA_HARMLESS)
    arguments = {"global_pool": "avg"} | without(given, "Eva", *taken)
    shared = given.get("num_kv_heads")
    if flags["attn_only_layer_scale"] != (shared is not None) or (shared is not None and not _is_sapiens2(given)):
        raise CheckpointError("timm's num_kv_heads and attn_only_layer_scale are supported as in Sapiens 2 alone")
    mean = arguments["global_pool"] == "avg"
    after, last = (given.get(name) for name in ("use_fc_norm", "use_post_transformer_norm"))
    after = mean if after is None else check_bool("use_fc_norm", after)
    last = not after if last is None else check_bool("use_post_transformer_norm", last)
    if after and last:
        raise CheckpointError("timm's use_fc_norm and use_post_transformer_norm together are not supported")
    attention = one_of("attn_type", given.get("attn_type", "eva"), {"eva": "eva", "rope": "rope"})
    bias = check_bool("qkv_bias", given.get("qkv_bias", True))
    width, heads, ratio = (
        given.get(name, usual) for name, usual in (("embed_dim", 768), ("num_heads", 12), ("mlp_ratio", 4))
    )
    hidden = int(width * ratio)
    align = given.get("swiglu_align_to", 0)
    if flags["swiglu_mlp"] and align and (flags["scale_mlp"] or not flags["use_post_norm"]):
        hidden += -hidden % align
    arguments |= {
        "class_token": flags["class_token"],
        "reg_tokens": given.get("num_reg_tokens", 0),
        "no_embed_class": flags["no_embed_class"],
        "pos_embed": "learn" if flags["use_abs_pos_emb"] else "none",
        "pre_norm": flags["use_pre_transformer_norm"],
        "fc_norm": after,
        "final_norm": after or last,
        "qkv_bias": bias and attention == "rope",
        "qv_bias": bias and attention == "eva",  # its keys have no bias
        "qk_norm": flags["qk_norm"],
        "swiglu": flags["swiglu_mlp"],
        "mlp_width": hidden,
        "mlp_norm": flags["scale_mlp"],
        "attention_norm": flags["scale_attn_inner"],
        "block_fn": "ResPostBlock" if flags["use_post_norm"] else "Block",
        "norm": given.get("norm", "layer"),
    }
    if arguments["global_pool"] == "map":
        pool_ratio = given.get("attn_pool_mlp_ratio") or ratio
        arguments |= {
            "pool_heads": given.get("attn_pool_num_heads") or heads,
            "pool_mlp_width": int(width * pool_ratio),
        }
        arguments |= {"pool_include_prefix": flags["class_token"] or bool(given.get("num_reg_tokens"))}
    return arguments | (_rotation(given) if flags["use_rot_pos_emb"] else {})


def _is_sapiens2(given: Arguments) -> bool:
    """Return whether a timm class shares key and value heads as Sapiens 2: by two, but in its outer blocks."""
    depth, heads = given.get("depth", 12), given.get("num_heads", 12)
    wanted = [heads if n < 8 or n >= depth - 8 else heads // 2 for n in range(depth)]
    parts = {"attn_type": "rope", "qkv_fused": False, "qkv_bias": True, "qk_norm": True}
    return list(given["num_kv_heads"]) == wanted and all(given.get(name) == value for name, value in parts.items())


def naflex(given: Arguments) -> dict[str, Any]:
    """Translate the arguments of one of timm's classes, `NaFlexVit`, to those of `VisionTransformer`.

    It is the model at one image size; its positions are a grid, whatever that size.
    """
    positions = ("pos_embed_grid_size", "pos_embed_interp_mode", "pos_embed_ar_preserving")
    kept = ("class_token", "reg_tokens", "fc_norm", "final_norm", "qk_norm", "act_layer", "pool_include_prefix")
    arguments = without(given, "NaFlexVit", *kept, *positions, "pos_embed", "weight_init", "fix_init", "pos_drop_rate")
    arguments |= {name: given[name] for name in kept if name in given}
    kind = one_of("pos_embed", given.get("pos_embed", "learned"), {"learned": "learned", "factorized": "factorized"})
    pooled, registers = given.get("global_pool", "map") == "map", given.get("reg_tokens", 0)
    usual = "bilinear" if pooled and not registers and kind == "learned" else "bicubic"  # SigLIP 2
    if given.get("pos_embed_interp_mode", "bicubic") != usual or "img_size" in given:
        raise CheckpointError(
            f"timm's NaFlexVit with pos_embed_interp_mode other than {usual}, or img_size, is unknown"
        )
    grid, patch = given.get("pos_embed_grid_size", (16, 16)), given.get("patch_size", 16)
    if not isinstance(patch, int) or not isinstance(grid, list | tuple) or len(set(grid)) != 1:
        raise CheckpointError(f"timm's NaFlexVit is supported with square patches and positions, got {grid!r:.40}")
    fixed = {"img_size": grid[0] * patch, "pos_embed": "learn", "no_embed_class": True}
    return {"class_token": False, "global_pool": "map"} | arguments | fixed


def _rotation(given: Arguments) -> dict[str, Any]:
    """Translate those arguments of one of timm's classes that say how queries and keys are rotated.

    The class is `Eva`.
    """
    kind = one_of("rope_type", given.get("rope_type", "cat"), {"cat": "axial", "mixed": "mixed", "dinov3": "dinov3"})
    if check_bool("rope_rotate_half", given.get("rope_rotate_half", False)) != (kind == "dinov3"):
        raise CheckpointError("timm's rope_rotate_half is supported with rope_type='dinov3', and not without it")
    order = one_of("rope_grid_indexing", given.get("rope_grid_indexing", "ij"), {"ij": "yx", "xy": "xy"})
    reference = given.get("ref_feat_shape") or 0
    if isinstance(reference, list | tuple) and len(set(reference)) == 1:
        reference = reference[0]
    if type(reference) is not int:
        raise CheckpointError(f"timm's ref_feat_shape={reference!r:.40} is not supported: expected a square")
    return {
        "rope": kind,
        "rope_temperature": given.get("rope_temperature", 10000.0),
        "rope_offset": 0.0 if kind == "mixed" else given.get("rope_grid_offset", 0.0),
        "rope_reference": reference if kind == "axial" else 0,
        "rope_order": "yx" if kind == "dinov3" else order,
    }


def shared_arguments(config: ViTConfig, hidden: int) -> dict[str, Any]:
    """Write the arguments that all of timm's classes have; `hidden` is the width of the MLP as timm counts it."""
    return {
        "img_size": list(config.size),
        "patch_size": list(config.patch),
        "in_chans": config.channels,
        "embed_dim": config.width,
        "depth": config.depth,
        "num_heads": config.heads,
        "mlp_ratio": (hidden + 0.5) / config.width,  # half a unit more: timm rounds width × ratio down
        "init_values": config.layer_scale or None,
        "global_pool": POOLS[config.pool],
    }


def beit_arguments(config: ViTConfig) -> dict[str, Any]:
    """Return the arguments with which one of timm's classes, `Beit`, builds the model of a config.

    It has a class token; if it pools the mean, its norm comes after.
    """
    mean = config.pool == "mean"
    held = {"class_token": (True,), "registers": (0,), "qk_norm": (False,), "swiglu": (False,), "activation": ("gelu",)}
    held |= {"embedding_norm": (False,), "final_norm": (not mean,), "fc_norm": (mean,), "norm_eps": (1e-6,)}
    held |= {"qkv_bias": (False,), "prefix_positions": (True,), "post_norm": (False,), "distillation_token": (False,)}
    check_limits(config, "timm's BEiT", held | {"pool": ("token", "mean")})
    return shared_arguments(config, config.mlp_width) | {
        "qkv_bias": config.qv_bias,
        "use_abs_pos_emb": config.position != "none",
        "use_rel_pos_bias": config.relative_position == "table",
        "use_shared_rel_pos_bias": config.relative_position == "shared-table",
    }


def eva_arguments(config: ViTConfig) -> dict[str, Any]:
    """Write the arguments by which timm's class `Eva` builds a model with rotary positions: what `eva` reads."""
    kinds = {"axial": "cat", "mixed": "mixed", "dinov3": "dinov3"}
    reads_prefix = config.pool == "attention" and config.layout.prefix > 0  # its pool reads whatever tokens there are
    check_limits(config, "timm's Eva", EVA_LIMITS | {"pool_prefix": (reads_prefix,)})
    arguments = shared_arguments(config, config.mlp_width) | {
        "swiglu_mlp": config.swiglu,
        "swiglu_align_to": 0,
        "scale_mlp": config.mlp_norm,
        "scale_attn_inner": config.attention_norm,
        "attn_type": "rope" if config.qkv_bias else "eva",
        "qkv_bias": config.qkv_bias or config.qv_bias,
        "qkv_fused": True,
        "qk_norm": config.qk_norm,
        "class_token": config.class_token,
        "num_reg_tokens": config.registers,
        "no_embed_class": not config.prefix_positions,
        "use_abs_pos_emb": config.position != "none",
        "use_pre_transformer_norm": config.embedding_norm,
        "use_fc_norm": config.fc_norm,
        "use_post_transformer_norm": config.final_norm and not config.fc_norm,
        "use_rot_pos_emb": True,
        "rope_type": kinds[config.rope],
        "rope_rotate_half": config.rope == "dinov3",
        "rope_temperature": config.rope_temperature,
        "rope_grid_offset": config.rope_offset,
        "rope_grid_indexing": {"yx": "ij", "xy": "xy"}[config.rope_order],
        "ref_feat_shape": [config.rope_reference] * 2 if config.rope_reference else None,
    }
    if config.pool == "attention":
        ratio = (config.pool_mlp_width + 0.5) / config.width
        arguments |= {"attn_pool_num_heads": config.pool_heads, "attn_pool_mlp_ratio": ratio}
    return arguments


CLASSES: dict[str, Callable[[Arguments], Arguments]] = {
    "VisionTransformer": lambda given: given,
    "Beit": beit,
    "Cait": cait,
    "Eva": eva,
    "NaFlexVit": naflex,
    "VisionTransformerRelPos": relative,
}


def without(given: Arguments, cls: str, *own: str) -> dict[str, Any]:
    """Return the arguments that all of timm's classes share, without the class's `own`; any other is an error."""
    if unknown := [name for name in given if name not in (*SHARED, *own)]:
        raise CheckpointError(f"timm's {cls} has no argument {unknown[0]}={given[unknown[0]]!r:.60} that is supported")
    return {name: value for name, value in given.items() if name not in (*own, "class")}


def one_of(name: str, value: object, known: Mapping[str, str]) -> str:
    """Return what `known` has for the value of a timm class's argument; raise for another value."""
    if not isinstance(value, str) or value not in known:
        raise CheckpointError(f"timm's {name}={value!r:.60} is not supported: expected one of {', '.join(known)}")
    return known[value]


def check_bool(name: str, value: object) -> bool:
    """Return an argument of timm's class that is true or false; raise for another value."""
    if not isinstance(value, bool):
        raise CheckpointError(f"timm's {name} must be true or false, got {value!r:.60}")
    return value


def is_dropout(argument: str) -> bool:
    """Return whether an argument of timm's classes is a dropout rate, which matters for training alone.

    >>> is_dropout("drop_path_rate"), is_dropout("attn_drop_rate"), is_dropout("global_pool")
    (True, True, False)
    """
    return argument in ("drop_rate", "drop_path_rate", "drop_block_rate") or argument.endswith("_drop_rate")
