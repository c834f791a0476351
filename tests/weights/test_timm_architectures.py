"""The table of timm's architectures is what timm's entry points say; run as a script, this file writes it again."""

import importlib
import inspect
import json
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from timm.models import _registry
from timm.models.vision_transformer_hybrid import ConvStem

import vitreous.weights
from vitreous.models.stems import STEMS
from vitreous.weights.formats.registry import recognise
from vitreous.weights.formats.timm import RULES, TIMM
from vitreous.weights.infer import from_shapes
from vitreous.weights.keymap import to_ours
from vitreous.weights.safety import CheckpointError
from vitreous.weights.timm_architectures import HARMLESS, find_architecture, from_arguments, structure, timm_arguments
from vitreous.weights.timm_classes import CLASSES

TABLE = Path(vitreous.weights.__file__).parent / "timm_architectures.json"
OTHERS = [cls for cls in CLASSES if cls != "VisionTransformer"]
MODULES = (
    *("vision_transformer", "deit", "eva", "vision_transformer_relpos", "vision_transformer_hybrid", "beit"),
    *("cait", "naflexvit"),
)


class Captured(Exception):
    """Raised in place of building a model."""


def entry_points():
    """Yield (name, class, arguments) of every entry point of timm's ViT families, without building a model."""
    for name in MODULES:
        module = importlib.import_module(f"timm.models.{name}")
        build, found = module.build_model_with_cfg, {}

        def capture(cls, variant, pretrained, found=found, **arguments):
            found.update(cls=cls.__name__, arguments=arguments)
            raise Captured

        module.build_model_with_cfg = capture
        try:
            for model in timm.list_models(module=name):
                try:
                    _registry._model_entrypoints[model](pretrained=False)
                except Captured:
                    yield model, found["cls"], dict(found["arguments"])
        finally:
            module.build_model_with_cfg = build


def written(cls: str, arguments: dict[str, Any]) -> dict[str, Any] | None:
    """An entry point's arguments as the table holds them; None where they cannot be held."""
    if not cls.startswith("VisionTransformer") and cls not in CLASSES:
        return None
    helpers = ("pretrained_filter_fn", "pretrained_strict", "pretrained_custom_load", "feature_cfg", *HARMLESS)
    held = {"distilled": True} if cls.endswith("Distilled") else {"class": cls} if cls in OTHERS else {}
    for name, value in arguments.items():
        if name in helpers:
            continue
        if name == "cfg":  # NaFlex has its arguments in a dataclass
            held |= {f.name: getattr(value, f.name) for f in fields(value) if getattr(value, f.name) != f.default}
            continue
        if name == "norm_layer" and isinstance(value, partial) and value.func.__name__ == "LayerNorm":
            held["norm_eps"] = value.keywords["eps"]
        elif name == "mlp_layer" and isinstance(value, partial) and value.func.__name__ == "GluMlp":
            held["swiglu"] = True  # the one partial of GluMlp is SwiGLUPacked
        elif name == "act_layer" and inspect.isclass(value):
            held["act_layer"] = value.__name__.lower()
        elif name == "norm_layer" and isinstance(value, partial) and value.func.__name__ == "RmsNorm":
            held |= {"norm_eps": value.keywords["eps"], "norm": "rms"}
        elif name == "embed_norm_layer" and isinstance(value, partial) and value.func.__name__ == "RmsNorm":
            held["patch_norm"] = True
        elif name == "embed_layer" and isinstance(value, partial) and (stem := stem_of(value.keywords)):
            held["stem"] = stem
        elif name in ("block_fn", "mlp_layer") and inspect.isclass(value):
            held[name] = value.__name__
        elif isinstance(value, int | float | str | list | tuple | None):
            held[name] = value
        else:
            return None
    try:
        from_arguments(held)
    except CheckpointError:
        return None
    return held


def stem_of(keywords: dict[str, Any]) -> str | None:
    """The name of a hybrid's stem by the number of blocks in its stages; None for one that is not BiT's."""
    stem = keywords["backbone"]
    if isinstance(stem, ConvStem):
        strides = [layer.conv.stride[0] for layer in stem]
        return "mobileclip" if strides == [4, 2, 2] and keywords["proj"] is False else None
    if len(keywords) > 1 or not (hasattr(stem, "stages") or hasattr(stem, "pool")):
        return None
    layers = tuple(len(stage.blocks) for stage in getattr(stem, "stages", ()))
    return next((kind for kind, known in STEMS.items() if known == layers), None)


def look_alike(name: str, cls: str, arguments: dict[str, Any]) -> dict[str, Any] | None:
    """The entry of an unsupported architecture whose tensors a supported one could have; None if their keys differ."""
    with torch.device("meta"):
        try:
            theirs = timm.create_model(name, depth=2)
        except (TypeError, AssertionError):
            return None
    if not TIMM.recognise(theirs.state_dict()):
        return None
    ours, unmatched = to_ours(theirs.state_dict(), RULES)
    if unmatched or "blocks.0.norm1.bias" not in ours:
        return None
    shapes = from_shapes(ours)
    block, norm = arguments.get("block_fn"), arguments.get("norm_layer")
    why = "position" if cls == "Eva" else "norms" if block or norm else "pool"
    held = {"unsupported": why, "patch_size": arguments.get("patch_size", 16), "embed_dim": shapes["width"]}
    held |= {"depth": arguments["depth"], "num_heads": arguments["num_heads"]}
    held["mlp_ratio"] = shapes["mlp_width"] / shapes["width"]
    changes = {
        "qkv_bias": shapes["qkv_bias"],
        "qv_bias": shapes["qv_bias"],
        "class_token": shapes["class_token"],
        "reg_tokens": shapes["registers"],
        "pre_norm": shapes["embedding_norm"],
        "final_norm": shapes["final_norm"] or shapes["fc_norm"],
        "init_values": 1e-5 if shapes["layer_scale"] else None,
        "pos_embed": "learn" if "pos_embed" in ours else "none",
    }
    defaults = {"qkv_bias": True, "class_token": True, "reg_tokens": 0, "pre_norm": False, "final_norm": True}
    defaults |= {"qv_bias": False, "init_values": None, "pos_embed": "learn"}
    held |= {key: value for key, value in changes.items() if value != defaults[key]}
    if shapes["fc_norm"] or not shapes["class_token"]:
        held |= {"global_pool": "avg", "fc_norm": shapes["fc_norm"]}
    if "attn_pool.latent" in ours:
        held |= {"global_pool": "map"}
    if "pos_embed" in ours and ours["pos_embed"].shape[1] == theirs.patch_embed.num_patches:
        held["no_embed_class"] = True
    try:
        return held if structure(vars(from_arguments({k: v for k, v in held.items() if k != "unsupported"}))) else None
    except (CheckpointError, ValueError):
        return None


def read_timm() -> dict[str, dict[str, Any]]:
    found = {}
    for name, cls, arguments in list(entry_points()):
        held = written(cls, arguments) or look_alike(name, cls, arguments)
        if held is not None and "unsupported" not in held and "img_size" not in held:
            size, config = timm.get_pretrained_cfg(name).input_size[1:], from_arguments(held)
            placed = config.position != "none" or config.relative_position.endswith("table")
            if size[0] % arguments.get("patch_size", 16) or not placed:  # its positions do not show it
                held["input_size"] = size[0] if size[0] == size[1] else list(size)
        if held is not None:
            found[name] = held
    return found


@pytest.mark.slow
def test_the_table_is_what_timms_entry_points_say():
    """timm renames and adds models: a name that this version of timm lacks is not compared."""
    theirs = json.loads(json.dumps(read_timm()))
    for name in set(theirs) & set(timm_arguments()):
        assert timm_arguments()[name] == theirs[name], name
    assert len(set(theirs) & set(timm_arguments())) > 100


@pytest.mark.slow
def test_every_supported_architecture_has_the_tensors_that_timm_builds():
    """With two blocks where all are alike; that their number is timm's is seen above, where the table has one."""
    from vitreous.models.vit import ViT

    known = set(timm.list_models())
    for name, arguments in timm_arguments().items():
        if "unsupported" in arguments or name not in known:
            continue
        with torch.device("meta"):
            differ = isinstance(arguments.get("num_kv_heads"), list)  # Sapiens 2's blocks, which are built whole
            shallow = {"depth": 2} if "depth" in arguments and not differ else {}
            theirs = timm.create_model(name, **shallow).state_dict()
            arguments = arguments | shallow
            size = timm.get_pretrained_cfg(name).input_size[1:]  # 384 px make 27 patches of 14 px, as 378 do
            size = tuple(side // arguments.get("patch_size", 16) * arguments.get("patch_size", 16) for side in size)
            classes = 0 if "head.weight" not in theirs else theirs["head.weight"].shape[0]
            sized = {} if arguments.get("class") == "NaFlexVit" else {"img_size": size}  # its positions are one grid
            ours = ViT(from_arguments(arguments | sized | {"num_classes": classes})).state_dict()
            format = recognise(theirs)
            read = format.adjust(to_ours(format.prepare(dict(theirs)), format.rules)[0])
        assert {key: value.shape for key, value in ours.items()} == {key: value.shape for key, value in read.items()}, (
            name
        )


def test_a_name_is_found_with_and_without_its_tag():
    assert find_architecture("vit_giant_patch16_gap_224.in22k_ijepa").config.heads == 16
    assert find_architecture("resnet50") is None


if __name__ == "__main__":
    lines = [f"{json.dumps(name)}: {json.dumps(arguments)}" for name, arguments in sorted(read_timm().items())]
    TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
