"""transformers' BEiT and Data2Vec-Vision: ViTs with a relative position bias and no bias of the keys."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from vitreous.models.vit import ViT
from vitreous.weights.adapt import PAPER_VIT, ConvertedCheckpoint, adapted, check_limits, library_models
from vitreous.weights.formats.huggingface import (
    EMBEDDINGS,
    HEADS,
    NEW,
    OLD,
    PATCHES,
    VIT_BLOCKS,
    add_prefix,
    with_sidecars,
)
from vitreous.weights.formats.huggingface_config import (
    MLP,
    USUAL,
    activation_name,
    check_backbone,
    count_labels,
    read_fields,
    shared_fields,
    task_of,
    unsupported_kind,
)
from vitreous.weights.keymap import JOIN_QKV, Allowed, Format, rule, strip_prefix, to_theirs
from vitreous.weights.safety import CheckpointError

NAMES = ("query", "key", "value")
BIAS = "relative_position_bias.relative_position_bias_table"
QUERY_BIAS, KEY_BIAS = (
    (f"attention.attention.{name}.bias", f".attention.{name[0]}_proj.bias") for name in ("query", "key")
)
RULES = (
    *EMBEDDINGS,
    rule(
        "blocks.{n}.attn.qkv.weight",
        *(f"{OLD}.attention.attention.{name}.weight" for name in NAMES),
        transform=JOIN_QKV,
        older=[[f"{NEW}.attention.{x}_proj.weight" for x in "qkv"]],
    ),
    *(
        rule(
            f"blocks.{{n}}.attn.qkv.{name[0]}_bias",
            f"{OLD}.attention.attention.{name}.bias",
            older=[f"{NEW}.attention.{name[0]}_proj.bias"],
        )
        for name in ("query", "value")
    ),
    rule(
        "blocks.{n}.attn.proj.{p}",
        f"{OLD}.attention.output.dense.{{p}}",
        older=[f"{NEW}.attention.o_proj.{{p}}"],
    ),
    rule(
        "blocks.{n}.attn.rel_pos.relative_position_bias_table",
        f"{OLD}.attention.attention.{BIAS}",
        older=[f"{NEW}.{BIAS}"],
    ),
    rule(
        "shared_rel_pos.relative_position_bias_table",
        f"encoder.{BIAS}",
        older=["shared_position_bias.relative_position_bias_table"],
    ),
    *(rule(f"blocks.{{n}}.ls{i}.gamma", f"{OLD}.lambda_{i}", older=[f"{NEW}.lambda_{i}"]) for i in (1, 2)),
    *VIT_BLOCKS,
    rule("fc_norm.{p}", "pooler.layernorm.{p}"),
    *(r for r in HEADS if not r.ours.startswith("head.hidden")),
)
SEGMENTATION = {  # fields of the segmentation models, which share the config class
    "pool_scales": [1, 2, 3, 6],
    "use_auxiliary_head": True,
    "auxiliary_loss_weight": 0.4,
    "auxiliary_channels": 256,
    "auxiliary_num_convs": 1,
    "auxiliary_concat_input": False,
    "semantic_loss_ignore_index": 255,
}
FIELDS: dict[str, Any] = {name: value for name, value in USUAL.items() if name != "qkv_bias"} | MLP | SEGMENTATION
FIELDS |= {
    "use_absolute_position_embeddings": False,
    "use_relative_position_bias": False,
    "use_shared_relative_position_bias": False,
    "use_mean_pooling": True,
    "layer_scale_init_value": 0.1,
}
KINDS = {"beit": "Beit", "data2vec-vision": "Data2VecVision"}


def read_beit_config(sidecar: Mapping[str, Any]) -> Allowed:
    """Read our fields from the `config.json` of a BEiT or a Data2Vec-Vision."""
    kind = str(sidecar.get("model_type"))
    if kind not in KINDS:
        raise unsupported_kind(sidecar.get("model_type"))
    task = task_of(sidecar, (KINDS[kind],))
    extra = ("segmentation_indices", *(("out_indices",) if kind != "beit" else ()))  # layers that segmentation reads
    for name in extra:
        numbers = sidecar.get(name, [])
        if not isinstance(numbers, list) or not all(type(number) is int for number in numbers):
            raise CheckpointError(f"config.json has {name}={numbers!r:.40}, expected a list of whole numbers")
    fields = {name: value for name, value in sidecar.items() if name not in extra}
    values = read_fields(fields, FIELDS | ({"add_fpn": False} if kind == "beit" else {}))
    mean, backbone = values["use_mean_pooling"], task == "Backbone"
    check_backbone(fields, task, values["num_hidden_layers"])
    if backbone and (values["add_fpn"] or not mean):
        raise CheckpointError("a backbone class of BEiT is supported with use_mean_pooling=True and add_fpn=False only")
    if task == "ForMaskedImageModeling" and not mean:
        raise CheckpointError("a BEiT for masked images with use_mean_pooling=False has two norms: it is not supported")
    own, shared = values["use_relative_position_bias"], values["use_shared_relative_position_bias"]
    if own and shared:
        raise CheckpointError("a BEiT with both shared relative positions and those of each block is not supported")
    allowed = shared_fields(values)
    (sides,) = allowed["image_size"]
    if (own or shared) and len({*sides}) > 1:  # transformers takes its rows of offsets for columns
        raise CheckpointError("a BEiT trained with images that are not square is not supported")
    masked = task == "ForMaskedImageModeling"  # the norm before its head, which is the last one
    pooled = task == "ForImageClassification" or (task == "Model" and kind == "beit")
    return allowed | {
        "position": ("learned" if values["use_absolute_position_embeddings"] else "none",),
        "relative_position": ("table" if own else "shared-table" if shared else "none",),
        "prefix_positions": (True,),
        "patch_bias": (True,),
        "qkv_bias": (False,),
        "qv_bias": (True,),
        "layer_scale": (max(float(values["layer_scale_init_value"]), 0.0),),
        "final_norm": (masked or not mean,),
        "fc_norm": (mean,) if pooled else (False,) if masked or backbone or not mean else (True, False),
        "pool": ("mean" if mean else "token",),
        "representation_size": (0,),
        **({"classes": (count_labels(sidecar) if task == "ForImageClassification" else 0,)} if task else {}),
    }


def known_models(shapes: Mapping[str, Any], assume: Mapping[str, Any]) -> tuple[Allowed, str]:
    """Return the choices of transformers' BEiT and Data2Vec-Vision; a norm after pooling goes with the mean."""
    return library_models(
        norm_eps=(1e-12,),
        position=("learned", "none"),
        relative_position=("table", "shared-table"),
        qkv_bias=(False,),
        qv_bias=(True,),
        layer_scale=(0.1, 0.0),
        final_norm=(not shapes["fc_norm"],),
        fc_norm=(shapes["fc_norm"],),
        pool=("mean",) if shapes["fc_norm"] else ("token", "mean"),
    )(shapes, assume)


def _recognise(tensors: Mapping[str, Tensor]) -> bool:
    """Say whether these are BEiT's: it has a bias of the queries and none of the keys."""
    biased = [any(key.endswith(names) for key in tensors) for names in (QUERY_BIAS, KEY_BIAS)]
    return any(key.endswith(PATCHES) for key in tensors) and biased == [True, False]


BEIT = Format(
    "huggingface-beit",
    _recognise,
    RULES,
    ("embeddings.mask_token", "lm_head.{p}", "*relative_position_index"),
    prepare=strip_prefix("beit.", "data2vec_vision."),
    read_config=read_beit_config,
    known=known_models,
    resize="huggingface",
)


def to_huggingface(model: ViT) -> ConvertedCheckpoint:
    """Convert to transformers' BEiT: mean pooling with a norm after it, or the class token with a norm before."""
    tensors, config = adapted(model, prefix_positions=None)
    mean = config.pool == "mean"
    limits: Allowed = PAPER_VIT | {
        "pool": ("token", "mean"),
        "final_norm": (not mean,),
        "fc_norm": (mean,),
        "position": ("learned", "none"),
        "prefix_positions": (True,),
        "relative_position": ("none", "table", "shared-table"),
        "patch_bias": (True,),
        "qkv_bias": (False,),
        "qv_bias": (True,),
        "layer_scale": (config.layer_scale,),
        "representation_size": (0,),
    }
    check_limits(config, "transformers' BEiT", limits, square=True)
    theirs = to_theirs(tensors, RULES, config)
    config_json = {
        "architectures": [f"Beit{'ForImageClassification' if config.classes else 'Model'}"],
        "model_type": "beit",
        "intermediate_size": config.mlp_width,
        "hidden_act": activation_name(config),
        "use_absolute_position_embeddings": config.position == "learned",
        "use_relative_position_bias": config.relative_position == "table",
        "use_shared_relative_position_bias": config.relative_position == "shared-table",
        "use_mean_pooling": mean,
        "layer_scale_init_value": config.layer_scale,
    }
    theirs = add_prefix(theirs, "beit.") if config.classes else theirs
    return with_sidecars(model, theirs, config_json, config)
