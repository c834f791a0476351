"""Read transformers' `config.json` of ViT, DeiT, ViT-MAE, ViT-MSN, I-JEPA, DINOv2 and CLIP into fields of `ViTConfig`.

What a file leaves out has transformers' own default for its `model_type`. Every field is read, listed as harmless, or
an error.
"""

from collections.abc import Mapping
from typing import Any

from vitreous.weights.keymap import Allowed, check_fields
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
CLIP = {key: value for key, value in USUAL.items() if key != "qkv_bias"} | MLP
CLIP |= {"patch_size": 32, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5, "projection_dim": 512}
CLIPS = {  # model_type → the name in its classes; the tower alone is `<model_type>_vision_model`
    "clip": "CLIP",
    "metaclip_2": "MetaClip2",
    "chinese_clip": "ChineseCLIP",
    "altclip": "AltCLIP",
    "clipseg": "CLIPSeg",
    "git": "Git",
}
CLIPSEG_DECODER = (
    *("extract_layers", "reduce_dim", "decoder_attention_dropout", "decoder_hidden_act", "conditional_layer"),
    "use_complex_transposed_convolution",
)
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
    *("suppress_tokens", "begin_suppress_tokens", "gradient_checkpointing", "vocab_size"),
    *("decoder_start_token_id", "task_specific_params"),
)
HARMLESS_NUMBERS = (
    *("hidden_dropout_prob", "attention_probs_dropout_prob", "attention_dropout", "dropout", "drop_path_rate"),
    *("initializer_range", "initializer_factor", "mask_ratio", "encoder_stride", "logit_scale_init_value"),
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
        raise _unsupported_kind(kind)
    values = _read_fields(sidecar, MODEL_TYPES[kind])
    allowed = _shared(values)
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
    task = _task(sidecar, FAMILIES)
    _check_backbone(sidecar, task, values["num_hidden_layers"])
    teacher = task == "ForImageClassificationWithTeacher"
    pooler = values.get("pooler_output_size") or values["hidden_size"]
    allowed["representation_size"] = (0, pooler) if "pooler_act" in values and task in ("Model", None) else (0,)
    if type(pooler) is not int:
        raise CheckpointError(f"pooler_output_size must be a whole number, got {pooler!r:.40}")
    if values.get("pooler_act", "tanh") != "tanh" and task in ("Model", None):
        raise CheckpointError(f"pooler_act={values['pooler_act']!r:.40} is not supported: expected tanh")
    allowed["distillation_head"] = (teacher,) if task else (True, False)
    if task in HEADLESS:
        allowed["classes"] = (0,)
    elif task:
        allowed["classes"] = (_labels(sidecar),)
    if dino and task not in HEADLESS:  # the class token and the mean of the patches, side by side
        allowed["pool"] = ("token+mean",) if task == "ForImageClassification" else ("token", "token+mean")
    return allowed


def read_clip_config(sidecar: Mapping[str, Any]) -> Allowed:
    """Read our fields from a CLIP's `config.json`; a complete CLIP has the vision tower's one level deeper."""
    kind, vision = str(sidecar.get("model_type")), sidecar
    family = kind.removesuffix("_vision_model")
    if family not in CLIPS or kind == "git":
        raise _unsupported_kind(sidecar.get("model_type"))
    task = _task(sidecar, (f"{CLIPS[family]}Vision", CLIPS[family]))
    whole = kind == family
    if whole:
        known = ("vision_config", "text_config", "vision_config_dict", "text_config_dict", "projection_dim")
        decoder = CLIPSEG_DECODER if kind == "clipseg" else ()
        check_fields(sidecar, (*known, *decoder, *HARMLESS, *HARMLESS_NUMBERS), "config.json")
        vision = sidecar.get("vision_config") or {}
        older = sidecar.get("vision_config_dict") or {}
        if differing := [name for name in older if name in vision and older[name] != vision[name]]:
            raise CheckpointError(f"config.json says two things of {differing[0]}: get it again")
        vision = older | vision
    values = _read_fields(vision, CLIP | ({"patch_size": 16} if family == "git" else {}))
    classifier = task == "ForImageClassification"
    allowed = _shared(values) | {
        "class_token": (True,),
        "distillation_token": (False,),
        "distillation_head": (False,),
        "registers": (0,),
        "prefix_positions": (True,),
        "patch_bias": (False,),
        "qkv_bias": (True,),
        "swiglu": (False,),
        "embedding_norm": (True,),
        "layer_scale": (0.0,),
        "representation_size": (0,),
        "head_bias": (classifier,),
        "final_norm": (not classifier,),
        "pool": ("mean",) if classifier else ("token",),
    }
    if classifier:
        allowed["classes"] = (_labels(sidecar),)
    elif task == "ModelWithProjection" or (task == "Model" and whole and "Vision" not in sidecar["architectures"][0]):
        allowed["classes"] = (sidecar.get("projection_dim", 512) if whole else values["projection_dim"],)
    elif task == "Model":
        allowed["classes"] = (0,)
    return allowed


def _shared(values: Mapping[str, Any]) -> Allowed:
    """Return what is read in the same way of every family."""
    width = values["hidden_size"]
    if values["hidden_act"] not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise CheckpointError(f"activation {values['hidden_act']!r:.40} is not supported: expected one of {known}")
    hidden = values.get("intermediate_size")
    if "mlp_ratio" in values:
        hidden = int(width * values["mlp_ratio"])
        if values["use_swiglu_ffn"]:  # two thirds, rounded up to a multiple of 8
            hidden = (int(hidden * 2 / 3) + 7) // 8 * 8
    return {
        "width": (width,),
        "depth": (values["num_hidden_layers"],),
        "heads": (values["num_attention_heads"],),
        "mlp_width": (hidden,),
        "channels": (values["num_channels"],),
        "image_size": (_pair(values["image_size"]),),
        "patch_size": (_pair(values["patch_size"]),),
        "norm_eps": (values["layer_norm_eps"],),
        "activation": (ACTIVATIONS[values["hidden_act"]],),
        "position": ("learned",),
        "relative_position": ("none",),
        "rope": ("none",),
        "attention_norm": (False,),
        "mlp_norm": (False,),
        "pool_heads": (0,),
        "pool_prefix": (False,),
        "qv_bias": (False,),
        "post_norm": (False,),
        "norm": ("layer",),
        "branch_bias": (True,),
        "patch_norm": (False,),
        "stem": ("none",),
        "qk_norm": (False,),
        "final_norm": (True,),
        "fc_norm": (False,),
        "head_bias": (True,),
    }


def _read_fields(section: Any, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that are read, with their defaults; raise for one that is not known."""
    pruned = isinstance(section, Mapping) and section.get("pruned_heads")
    typed = (*HARMLESS_NUMBERS, *HARMLESS_FLAGS, *STAGES, *(() if pruned else ("pruned_heads",)))
    check_fields(section, (*defaults, *HARMLESS, *typed), "config.json")
    for name, kinds in (*((n, (int, float)) for n in HARMLESS_NUMBERS), *((n, (bool,)) for n in HARMLESS_FLAGS)):
        if name in section and type(section[name]) not in kinds:  # transformers refuses it too
            raise CheckpointError(f"config.json has {name}={section[name]!r:.40}, expected a number or a flag")
    for name, default in defaults.items():
        value, kind = section.get(name, default), int if default is None else type(default)
        fits = type(value) in ((int, float) if kind is float else (kind,)) or (value is None and default is None)
        if not fits and not (name in ("image_size", "patch_size") and isinstance(value, list)):
            raise CheckpointError(f"config.json has {name}={value!r:.40}, expected one of type {kind.__name__}")
    if (dtype := section.get("dtype", section.get("torch_dtype"))) not in DTYPES:
        raise CheckpointError(f"config.json has dtype={dtype!r:.40}, expected one of {', '.join(map(str, DTYPES))}")
    _check_stages(section, section.get("num_hidden_layers", defaults["num_hidden_layers"]))
    return dict(defaults) | {name: section[name] for name in defaults if name in section}


def _check_stages(section: Mapping[str, Any], depth: Any) -> None:
    """Raise for stages of a backbone class that a model of this depth does not have."""
    stages = ["stem", *(f"stage{n + 1}" for n in range(depth if type(depth) is int and depth < 10_000 else 0))]
    features, numbers = section.get("out_features"), section.get("out_indices")
    named = stages if features is None else features
    fits = section.get("stage_names") in (None, stages) and isinstance(named, list) and set(named) <= set(stages)
    if fits and numbers is not None:
        valid = isinstance(numbers, list) and all(type(n) is int and -len(stages) <= n < len(stages) for n in numbers)
        fits = valid and (features is None or [stages[n] for n in numbers] == features)
    if not fits:
        raise CheckpointError("config.json names stages (stage_names, out_features, out_indices) that it does not have")


def _check_backbone(sidecar: Mapping[str, Any], task: str | None, depth: int) -> None:
    """Raise for a backbone class that gives anything but the normalised tokens of the last block."""
    last = sidecar.get("out_features") in (None, [f"stage{depth}"]) and sidecar.get("out_indices") in (
        None,
        [depth],
        [-1],
    )
    if task == "Backbone" and not (last and sidecar.get("apply_layernorm", True)):
        raise CheckpointError(
            "a backbone class that gives other than the last block's normalised tokens is not supported"
        )


def _task(sidecar: Mapping[str, Any], families: tuple[str, ...]) -> str | None:
    """Return what the class in `architectures` adds to its family's name, such as `ForImageClassification`."""
    names = sidecar.get("architectures")
    if not names:
        return None
    known = (*HEADLESS, "ModelWithProjection", "ForImageClassification", "ForImageClassificationWithTeacher")
    found = {f"{family}{task}": task for family in families for task in known}
    if not isinstance(names, list) or len(names) != 1 or names[0] not in found:
        raise CheckpointError(f"the architecture {names!r:.80} in config.json is not supported")
    return found[names[0]]


def _labels(sidecar: Mapping[str, Any]) -> int:
    by_index, count = sidecar.get("id2label"), sidecar.get("num_labels", 2)
    if isinstance(by_index, Mapping) and sidecar.get("num_labels", len(by_index)) != len(by_index):
        raise CheckpointError(f"config.json contradicts itself: num_labels={count!r:.40}, id2label has {len(by_index)}")
    if type(count) is not int:
        raise CheckpointError(f"num_labels must be a whole number, got {count!r:.40}")
    return len(by_index) if isinstance(by_index, Mapping) else count


def _pair(value: Any) -> tuple[int, int]:
    if isinstance(value, list | tuple) and len(value) == 2 and all(type(side) is int for side in value):
        return value[0], value[1]
    if type(value) is not int:
        raise CheckpointError(f"image_size and patch_size must be whole numbers, got {value!r:.40}")
    return value, value


def _unsupported_kind(kind: Any) -> CheckpointError:
    if kind is None:
        return CheckpointError("config.json names no model_type: get it again, or load the weights without it")
    known = ", ".join((*MODEL_TYPES, *CLIPS))
    return CheckpointError(f"the family {kind!r:.40} is not supported: of transformers' models, {known} are")


def read_siglip_config(sidecar: Mapping[str, Any]) -> Allowed:
    """Read our fields from a SigLIP's `config.json`; a complete one has the vision tower's one level deeper."""
    kind, vision = sidecar.get("model_type"), sidecar
    if kind not in ("siglip", "siglip_vision_model"):
        raise _unsupported_kind(kind)
    task = _task(sidecar, ("Siglip", "SiglipVision"))
    if task not in ("Model", None):
        raise CheckpointError(f"the architecture {sidecar['architectures']!r:.80} in config.json is not supported")
    if kind == "siglip":
        check_fields(sidecar, ("vision_config", "text_config", *HARMLESS, *HARMLESS_NUMBERS), "config.json")
        vision = sidecar.get("vision_config") or {}
    defaults = {key: value for key, value in USUAL.items() if key != "qkv_bias"} | MLP
    defaults |= {"hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6, "vision_use_head": True}
    values = _read_fields(vision, defaults)
    if not values["vision_use_head"]:
        raise CheckpointError("config.json says vision_use_head=False: a SigLIP without its head is not supported")
    plain = ("distillation_token", "distillation_head", "prefix_positions", "swiglu", "embedding_norm", "class_token")
    return (
        _shared(values)
        | dict.fromkeys(plain, (False,))
        | {
            "prefix_positions": (True,),
            "registers": (0,),
            "patch_bias": (True,),
            "qkv_bias": (True,),
            "layer_scale": (0.0,),
            "representation_size": (0,),
            "classes": (0,),
            "pool": ("attention",),
            "pool_heads": (values["num_attention_heads"],),
            "pool_mlp_width": (values["intermediate_size"],),
        }
    )


def read_dinov3_config(sidecar: Mapping[str, Any]) -> Allowed:
    """Read our fields from a DINOv3's `config.json`."""
    if (kind := sidecar.get("model_type")) != "dinov3_vit":
        raise _unsupported_kind(kind)
    flags = {"query_bias": True, "key_bias": False, "value_bias": True, "proj_bias": True, "mlp_bias": True}
    augmentations = ("pos_embed_shift", "pos_embed_jitter", "pos_embed_rescale")  # in training only
    defaults = {key: value for key, value in USUAL.items() if key != "qkv_bias"} | flags
    defaults |= {"hidden_size": 384, "intermediate_size": 1536, "num_attention_heads": 6, "layer_norm_eps": 1e-5}
    defaults |= {"rope_theta": 100.0, "layerscale_value": 1.0, "use_gated_mlp": False, "num_register_tokens": 0}
    values = _read_fields({name: value for name, value in sidecar.items() if name not in augmentations}, defaults)
    for name in augmentations:
        if type(sidecar.get(name)) not in (int, float, type(None)):
            raise CheckpointError(f"config.json has {name}={sidecar[name]!r:.40}, expected a number")
    biases = [values[name] for name in flags]
    if biases[1] or not all(biases[3:]) or biases[0] != biases[2]:
        raise CheckpointError("config.json has biases in another combination than DINOv3's, which is not supported")
    gated = values["use_gated_mlp"]
    if gated and values["hidden_act"] not in ("silu", "swish"):
        raise CheckpointError(f"a gated MLP with hidden_act={values['hidden_act']!r:.40} is not supported")
    task = _task(sidecar, ("DINOv3ViT",))
    _check_backbone(sidecar, task, values["num_hidden_layers"])
    return _shared(values) | {
        "class_token": (True,),
        "distillation_token": (False,),
        "distillation_head": (False,),
        "registers": (values["num_register_tokens"],),
        "position": ("none",),
        "prefix_positions": (True,),
        "patch_bias": (True,),
        "qkv_bias": (False,),
        "qv_bias": (values["query_bias"],),
        "swiglu": (gated,),
        "embedding_norm": (False,),
        "layer_scale": (1e-5,),
        "representation_size": (0,),
        "classes": (0,),
        "pool": ("token",),
        "rope": ("dinov3",),
        "rope_temperature": (values["rope_theta"],),
        "rope_offset": (0.0,),
        "rope_reference": (0,),
        "rope_order": ("yx",),
    }
