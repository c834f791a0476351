"""Read the `config.json` of transformers' ViT, DeiT, MAE, MSN, I-JEPA, DINOv2; fields that all its families share.

What a file leaves out has transformers' own default for its `model_type`. Every field is read, listed as harmless, or
an error. `activation_name` is for the files that are written.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from vitreous.models.vit_config import ViTConfig
from vitreous.weights.adapt import PAPER_VIT
from vitreous.weights.config_files import check_fields
from vitreous.weights.keymap import Allowed
from vitreous.weights.safety import CheckpointError

ACTIVATIONS = {name: name for name in ("gelu", "quick_gelu", "relu", "silu")}
ACTIVATIONS |= {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "swish": "silu"}
USUAL: dict[str, Any] = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "image_size": 224,
    "patch_size": 16,
    "num_channels": 3,
    "qkv_bias": True,
}
MLP = {"intermediate_size": 3072}
POOLER = {"pooler_output_size": None, "pooler_act": "tanh"}
DINO = {
    "intermediate_size": None,
    "mlp_ratio": 4,
    "use_swiglu_ffn": False,
    "layer_norm_eps": 1e-6,
    "layerscale_value": 1.0,
}
MODEL_TYPES: dict[str, dict[str, Any]] = {  # model_type → the fields that are read, with transformers' defaults
    "vit": USUAL | MLP | POOLER,
    "deit": USUAL | MLP | POOLER,
    "vit_mae": USUAL | MLP,
    "vit_msn": USUAL | MLP | {"layer_norm_eps": 1e-6},
    "ijepa": USUAL | MLP | POOLER,
    "dinov2": USUAL | DINO | {"patch_size": 14},
    "dinov2_with_registers": USUAL | DINO | {"num_register_tokens": 4},
    "flava_image_model": USUAL | MLP | {"pooler_act": "tanh"},
}
CLIPS = {  # model_type → the name in its classes; the tower alone is `<model_type>_vision_model`
    "clip": "CLIP",
    "metaclip_2": "MetaClip2",
    "chinese_clip": "ChineseCLIP",
    "altclip": "AltCLIP",
    "clipseg": "CLIPSeg",
    "git": "Git",
}
HARMLESS = (
    *("architectures", "model_type", "id2label", "label2id", "num_labels", "problem_type", "finetuning_task"),
    *("transformers_version", "torch_dtype", "dtype", "_name_or_path", "name_or_path", "_commit_hash", "vitreous"),
    *(
        "_attn_implementation_autoset",
        "attn_implementation",
        "auto_map",
        "library_name",
        "license",
        "task_specific_params",
    ),
    # what earlier versions wrote into every config: outputs, generation, tokens
    *("return_dict", "output_attentions", "output_hidden_states", "output_scores", "return_dict_in_generate"),
    *("torchscript", "use_bfloat16", "tf_legacy_loss", "use_cache", "is_decoder", "is_encoder_decoder"),
    *("add_cross_attention", "cross_attention_hidden_size", "tie_encoder_decoder", "tie_word_embeddings"),
    *(
        "tokenizer_class",
        "prefix",
        "bos_token_id",
        "pad_token_id",
        "eos_token_id",
        "sep_token_id",
        "decoder_start_token_id",
    ),
    *("max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups", "diversity_penalty"),
    *("temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty", "no_repeat_ngram_size"),
    *("encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences", "chunk_size_feed_forward"),
    *("forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values", "exponential_decay_length_penalty"),
    *("suppress_tokens", "begin_suppress_tokens", "gradient_checkpointing"),
)
HARMLESS_NUMBERS = (
    *("hidden_dropout_prob", "attention_probs_dropout_prob", "attention_dropout", "dropout", "drop_path_rate"),
    *(
        "initializer_range",
        "initializer_factor",
        "mask_ratio",
        "encoder_stride",
        "logit_scale_init_value",
        "vocab_size",
    ),
    *("decoder_num_attention_heads", "decoder_hidden_size", "decoder_num_hidden_layers", "decoder_intermediate_size"),
)
DTYPES = (None, "auto", "float32", "float16", "bfloat16", "float64")
HARMLESS_FLAGS = ("use_mask_token", "mask_token", "norm_pix_loss", "apply_layernorm", "reshape_hidden_states")
STAGES = ("stage_names", "out_features", "out_indices")  # of transformers' backbone classes
HEADLESS = ("Model", "ForMaskedImageModeling", "ForPreTraining", "Backbone")
FAMILIES = ("ViT", "DeiT", "ViTMAE", "ViTMSN", "IJepa", "Dinov2", "Dinov2WithRegisters", "FlavaImage")


def read_config(sidecar: Mapping[str, Any]) -> Allowed:
    """Read our fields from the `config.json` of a ViT, DeiT, ViT-MAE, ViT-MSN, I-JEPA or DINOv2."""
    kind = sidecar.get("model_type")
    if kind not in MODEL_TYPES:
        raise unsupported_kind(kind)
    values = read_fields(sidecar, MODEL_TYPES[kind])
    allowed = shared_fields(values)
    dino, deit, ijepa = kind.startswith("dinov2"), kind == "deit", kind == "ijepa"
    allowed |= {
        "class_token": (not ijepa,),
        "distillation_token": (deit,),
        "registers": (values.get("num_register_tokens", 0),),
        "prefix_positions": (kind != "dinov2_with_registers",),
        "patch_bias": (True,),
        "qkv_bias": (values["qkv_bias"],),
        "swiglu": (bool(values.get("use_swiglu_ffn")),),
        "embedding_norm": (False,),
        "layer_scale": (1e-5 if dino else 0.0,),
        "pool": ("mean",) if ijepa else ("token",),
    }
    task = task_of(sidecar, FAMILIES)
    check_backbone(sidecar, task, values["num_hidden_layers"])
    teacher = task == "ForImageClassificationWithTeacher"
    pooler = values.get("pooler_output_size") or values["hidden_size"]
    pooled = "pooler_act" in values and not ijepa and task in ("Model", None)  # I-JEPA's pooler is never loaded
    allowed["representation_size"] = (0, pooler) if pooled else (0,)
    if type(pooler) is not int:
        raise CheckpointError(f"pooler_output_size must be a whole number, got {pooler!r:.40}")
    if values.get("pooler_act", "tanh") != "tanh" and task in ("Model", None):
        raise CheckpointError(f"pooler_act={values['pooler_act']!r:.40} is not supported: expected tanh")
    allowed["distillation_head"] = (teacher,) if task else (True, False)
    if task in HEADLESS:
        allowed["classes"] = (0,)
    elif task:
        allowed["classes"] = (count_labels(sidecar),)
    if dino and task not in HEADLESS:  # the class token and the mean of the patches, side by side
        allowed["pool"] = ("token+mean",) if task == "ForImageClassification" else ("token", "token+mean")
    return allowed


def shared_fields(values: Mapping[str, Any]) -> Allowed:
    """Return the fields that are read in the same way from the `config.json` of every family of transformers."""
    width = values["hidden_size"]
    if values["hidden_act"] not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise CheckpointError(f"activation {values['hidden_act']!r:.40} is not supported: expected one of {known}")
    hidden = values.get("intermediate_size")
    if "mlp_ratio" in values:
        hidden = int(width * values["mlp_ratio"])
        if values["use_swiglu_ffn"]:  # two thirds, rounded up to a multiple of 8
            hidden = (int(hidden * 2 / 3) + 7) // 8 * 8
    return PAPER_VIT | {
        "width": (width,),
        "depth": (values["num_hidden_layers"],),
        "heads": (values["num_attention_heads"],),
        "mlp_width": (hidden,),
        "channels": (values["num_channels"],),
        "image_size": (read_pair(values["image_size"]),),
        "patch_size": (read_pair(values["patch_size"]),),
        "norm_eps": (values["layer_norm_eps"],),
        "activation": (ACTIVATIONS[values["hidden_act"]],),
        "position": ("learned",),
        "head_bias": (True,),
    }


def activation_name(config: ViTConfig) -> str:
    """Return the name of a ViT's activation in Hugging Face's transformers, for a model converted to it."""
    return {"gelu_tanh": "gelu_pytorch_tanh"}.get(config.activation, config.activation)


def read_fields(section: Any, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is read from transformers' `config.json`, with its defaults; raise for a field that is not known."""
    pruned = isinstance(section, Mapping) and section.get("pruned_heads")
    typed = (*HARMLESS_NUMBERS, *HARMLESS_FLAGS, *STAGES, *(() if pruned else ("pruned_heads",)))
    check_fields(section, (*defaults, *HARMLESS, *typed), "config.json")
    check_types(section, HARMLESS_NUMBERS, (int, float))
    check_types(section, HARMLESS_FLAGS, (bool,))
    for name, default in defaults.items():
        value, kind = section.get(name, default), int if default is None else type(default)
        fits = type(value) in ((int, float) if kind is float else (kind,)) or (value is None and default is None)
        if not fits and not (name in ("image_size", "patch_size") and isinstance(value, list)):
            raise CheckpointError(f"config.json has {name}={value!r:.40}, expected one of type {kind.__name__}")
    if (dtype := section.get("dtype", section.get("torch_dtype"))) not in DTYPES:
        raise CheckpointError(f"config.json has dtype={dtype!r:.40}, expected one of {', '.join(map(str, DTYPES))}")
    _check_stages(section, section.get("num_hidden_layers", defaults["num_hidden_layers"]))
    return dict(defaults) | {name: section[name] for name in defaults if name in section}


def check_types(section: Mapping[str, Any], names: Iterable[str], kinds: tuple[type, ...]) -> None:
    """Raise for a field of transformers' `config.json` that changes nothing here but has a type it refuses too."""
    for name in names:
        if name in section and type(section[name]) not in kinds:
            expected = " or ".join(kind.__name__ for kind in kinds)
            raise CheckpointError(f"config.json has {name}={section[name]!r:.40}, expected {expected}")


def _check_stages(section: Mapping[str, Any], depth: Any) -> None:
    """Raise for stages of transformers' backbone class that a model of this depth does not have."""
    stages = ["stem", *(f"stage{n + 1}" for n in range(depth if type(depth) is int and depth < 10_000 else 0))]
    features, numbers = section.get("out_features"), section.get("out_indices")
    named = stages if features is None else features
    fits = section.get("stage_names") in (None, stages) and isinstance(named, list) and set(named) <= set(stages)
    if fits and numbers is not None:
        valid = isinstance(numbers, list) and all(type(n) is int and -len(stages) <= n < len(stages) for n in numbers)
        fits = valid and (features is None or [stages[n] for n in numbers] == features)
    if not fits:
        raise CheckpointError("config.json names stages (stage_names, out_features, out_indices) that it does not have")


def check_backbone(sidecar: Mapping[str, Any], task: str | None, depth: int) -> None:
    """Raise for transformers' backbone class that gives anything but the last block's normalised tokens."""
    last = sidecar.get("out_features") in (None, [f"stage{depth}"]) and sidecar.get("out_indices") in (
        None,
        [depth],
        [-1],
    )
    if task == "Backbone" and not (last and sidecar.get("apply_layernorm", True)):
        raise CheckpointError(
            "a backbone class that gives other than the last block's normalised tokens is not supported"
        )


def task_of(sidecar: Mapping[str, Any], families: tuple[str, ...]) -> str | None:
    """Return what transformers' class in `architectures` adds to its family's name: `ForImageClassification`, …."""
    names = sidecar.get("architectures")
    if not names:
        return None
    known = (*HEADLESS, "ModelWithProjection", "ForImageClassification", "ForImageClassificationWithTeacher")
    found = {f"{family}{task}": task for family in families for task in known}
    if not isinstance(names, list) or len(names) != 1 or names[0] not in found:
        raise CheckpointError(f"the architecture {names!r:.80} in config.json is not supported")
    return found[names[0]]


def count_labels(sidecar: Mapping[str, Any]) -> int:
    """Return the number of classes in transformers' `config.json`, which `id2label` and `num_labels` state."""
    by_index, count = sidecar.get("id2label"), sidecar.get("num_labels", 2)
    if isinstance(by_index, Mapping) and sidecar.get("num_labels", len(by_index)) != len(by_index):
        raise CheckpointError(f"config.json contradicts itself: num_labels={count!r:.40}, id2label has {len(by_index)}")
    if type(count) is not int:
        raise CheckpointError(f"num_labels must be a whole number, got {count!r:.40}")
    return len(by_index) if isinstance(by_index, Mapping) else count


def read_pair(value: Any) -> tuple[int, int]:
    """Read an image or patch size as Hugging Face configs state it: height and width, or one whole number for both."""
    if isinstance(value, list | tuple) and len(value) == 2 and all(type(side) is int for side in value):
        return value[0], value[1]
    if type(value) is not int:
        raise CheckpointError(f"image_size and patch_size must be whole numbers, got {value!r:.40}")
    return value, value


def unsupported_kind(kind: Any) -> CheckpointError:
    """Say which `model_type` a Hugging Face config may have: the error for one that is missing or another."""
    if kind is None:
        return CheckpointError("config.json names no model_type: get it again, or load the weights without it")
    known = ", ".join((*MODEL_TYPES, *CLIPS))
    return CheckpointError(f"the family {kind!r:.40} is not supported: of transformers' models, {known} are")
