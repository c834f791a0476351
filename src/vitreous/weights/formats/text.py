"""Text towers: the keys and config fields of transformers' CLIP and SigLIP, of OpenAI's CLIP and of OpenCLIP."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from vitreous.weights.config_files import check_fields
from vitreous.weights.formats.clip import HUGGINGFACE_RULES, OPENAI_RULES
from vitreous.weights.formats.huggingface_config import ACTIVATIONS, HARMLESS, HARMLESS_NUMBERS, read_fields
from vitreous.weights.keymap import TABLE, TRANSPOSE, Rule, Tensors, rule, to_ours
from vitreous.weights.safety import CheckpointError

CLIP_FIELDS: dict[str, Any] = {  # read of transformers' text_config, with its defaults
    "vocab_size": 49408,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "max_position_embeddings": 77,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
    "eos_token_id": 49407,
    "projection_dim": 512,
}
SIGLIP_FIELDS = {name: value for name, value in CLIP_FIELDS.items() if name not in ("eos_token_id", "projection_dim")}
SIGLIP_FIELDS |= {"vocab_size": 32000, "hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12}
SIGLIP_FIELDS |= {"max_position_embeddings": 64, "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6}
SIGLIP_FIELDS |= {"projection_size": None}

OPEN_CLIP_FIELDS: dict[str, Any] = {  # read of OpenCLIP's text_cfg, with its defaults
    "context_length": 77,
    "vocab_size": 49408,
    "width": 512,
    "heads": 8,
    "layers": 12,
    "mlp_ratio": 4.0,
    "no_causal_mask": False,
    "pool_type": "argmax",
    "eos_id": 2,
    "proj_bias": False,
    "proj_type": "linear",
    "act_kwargs": None,
    "norm_kwargs": None,
}
OPEN_CLIP_USUAL: dict[str, tuple[Any, ...]] = {  # fields that change the numbers, and the values that do not
    "ls_init_value": (None,),
    "embed_cls": (False,),
    "final_ln_after_pool": (False,),
    "output_tokens": (False,),
    "block_type": (None, "default"),
    "hf_model_name": (None, ""),
    **dict.fromkeys(("qk_norm", "scaled_cosine_attn", "scale_heads", "scale_attn_inner", "scale_attn"), (False,)),
    "scale_fc": (False,),
}
OPEN_CLIP_HARMLESS = ("hf_tokenizer_name", "tokenizer_kwargs", "tokenizer_mode", "pad_id", "hf_model_pretrained")

TOWER = ("cls_token", "patch_embed", "norm_pre", "head", "norm.", "pos_embed")  # rules of the vision tower alone
BLOCK = tuple(r for r in HUGGINGFACE_RULES if not r.ours.startswith(TOWER))
HUGGINGFACE_TEXT = (
    rule("token_embed.weight", "text_model.embeddings.token_embedding.weight"),
    rule("pos_embed", "text_model.embeddings.position_embedding.weight", transform=TABLE),
    *(Rule(r.ours, tuple(f"text_model.{key}" for key in r.theirs), r.transform) for r in BLOCK),
    rule("norm.{p}", "text_model.final_layer_norm.{p}"),
    rule("head.{p}", "text_model.head.{p}", older=["text_projection.{p}"]),
)
OPENAI_TEXT = (
    rule("token_embed.weight", "token_embedding.weight"),
    rule("pos_embed", "positional_embedding", transform=TABLE),
    *(r for r in OPENAI_RULES if not r.ours.startswith(TOWER)),
    rule("norm.{p}", "ln_final.{p}"),
    rule("head.weight", "text_projection", transform=TRANSPOSE),
    rule("head.{p}", "text_projection.{p}"),  # with a bias
)
LOGITS = (rule("logit_scale", "logit_scale"), rule("logit_bias", "logit_bias"))


@dataclass(frozen=True)
class TextFormat:
    """How one library names a text tower's tensors and describes it in its config file."""

    name: str
    mark: str  # the key that only this format has
    rules: tuple[Rule, ...]
    belongs: Callable[[str], bool]  # whether a key is the text tower's
    read_config: Callable[[Mapping[str, Any]], dict[str, Any]]
    """Fields of `TextConfig` that the config file states."""
    prefix: str = ""
    ignored: tuple[str, ...] = ()

    def translate(self, tensors: Mapping[str, Any]) -> Tensors:
        """Return the text tower's tensors by our names; raise for one of its tensors that no rule knows."""
        found = {key: value for key, value in tensors.items() if self.belongs(key) and key not in self.ignored}
        plain = {key.removeprefix(self.prefix): value for key, value in found.items()}
        ours, unknown = to_ours(plain, (*self.rules, *LOGITS))
        if unknown:
            raise CheckpointError(f"its text tower has tensors that ours does not: {', '.join(unknown[:4])}")
        return ours


def read_huggingface(sidecar: Mapping[str, Any]) -> dict[str, Any]:
    """Read `text_config` of a complete CLIP's or SigLIP's `config.json`."""
    kind = sidecar.get("model_type")
    if kind not in ("clip", "siglip", "siglip2"):
        raise CheckpointError(f"the text tower of a {kind!r:.40} is not supported: expected clip, siglip or siglip2")
    text, older = sidecar.get("text_config") or {}, sidecar.get("text_config_dict") or {}
    check_fields(text, (*CLIP_FIELDS, *SIGLIP_FIELDS, *HARMLESS, *HARMLESS_NUMBERS, "pruned_heads"), "text_config")
    if differing := [name for name in older if name in text and older[name] != text[name]]:
        raise CheckpointError(f"config.json says two things of {differing[0]} in text_config: get it again")
    values = read_fields(older | text, CLIP_FIELDS if kind == "clip" else SIGLIP_FIELDS)
    if values["hidden_act"] not in ACTIVATIONS:
        raise CheckpointError(f"activation {values['hidden_act']!r:.40} of the text tower is not supported")
    end = values.get("eos_token_id", 0)
    pool = "last" if kind != "clip" else "largest" if end == 2 else "end"  # 2: in configs before 2023, as a mark
    return {
        "vocabulary": values["vocab_size"],
        "context": values["max_position_embeddings"],
        "width": values["hidden_size"],
        "depth": values["num_hidden_layers"],
        "heads": values["num_attention_heads"],
        "mlp_width": values["intermediate_size"],
        "activation": ACTIVATIONS[values["hidden_act"]],
        "norm_eps": values["layer_norm_eps"],
        "causal": kind == "clip",
        "pool": pool,
        "end_token": end if pool == "end" else 0,
    }


def read_open_clip(sidecar: Mapping[str, Any]) -> dict[str, Any]:
    """Read the config of an OpenCLIP text tower; without one, the fields that all of OpenAI's text towers share.

    The config is `text_cfg` of `open_clip_config.json`.
    """
    if not sidecar:
        return {"norm_eps": 1e-5, "causal": True, "pool": "largest", "end_token": 0}
    model = sidecar.get("model_cfg") or {}
    text = model.get("text_cfg") or {}
    usual = [name for name, values in OPEN_CLIP_USUAL.items() if name in text and text[name] in values]
    check_fields(text, (*OPEN_CLIP_FIELDS, *OPEN_CLIP_HARMLESS, *usual), "text_cfg")
    if text.get("tokenizer_mode"):
        raise CheckpointError(f"tokenizer_mode={text['tokenizer_mode']!r:.40} of text_cfg is not supported")
    given = OPEN_CLIP_FIELDS | dict(text)
    pools = {"argmax": "largest", "eos": "end", "last": "last"}
    if given["pool_type"] not in pools:
        raise CheckpointError(f"pool_type={given['pool_type']!r:.40} of text_cfg is not supported: {', '.join(pools)}")
    kwargs = given["act_kwargs"] or {}
    if kwargs not in ({}, {"approximate": "tanh"}) or (kwargs and model.get("quick_gelu")):
        raise CheckpointError(f"act_kwargs={kwargs!r:.60} of text_cfg is not supported: expected approximate=tanh")
    check_fields(given["norm_kwargs"] or {}, ("eps",), "norm_kwargs")
    pool = pools[given["pool_type"]]
    return {
        "vocabulary": given["vocab_size"],
        "context": given["context_length"],
        "width": given["width"],
        "depth": given["layers"],
        "heads": given["heads"],
        "mlp_width": int(given["width"] * given["mlp_ratio"]),
        "activation": "gelu_tanh" if kwargs else "quick_gelu" if model.get("quick_gelu") else "gelu",
        "norm_eps": (given["norm_kwargs"] or {}).get("eps", 1e-5),
        "causal": not given["no_causal_mask"],
        "pool": pool,
        "end_token": given["eos_id"] if pool == "end" else 0,
        "outputs": model.get("embed_dim"),
        "projection": "none"
        if given["proj_type"] == "none"
        else "linear+bias"
        if given["proj_bias"]
        else given["proj_type"],
    }


TEXT_FORMATS = (
    TextFormat(
        "huggingface",
        "text_model.embeddings.token_embedding.weight",
        HUGGINGFACE_TEXT,
        lambda key: key.startswith(("text_model.", "text_projection.", "logit_")),
        read_huggingface,
        ignored=("text_model.embeddings.position_ids",),
    ),
    TextFormat(
        "open-clip",  # with `custom_text` the tower has a prefix
        "text.token_embedding.weight",
        OPENAI_TEXT,
        lambda key: key.startswith(("text.", "logit_")),
        read_open_clip,
        prefix="text.",
        ignored=("text.attn_mask",),
    ),
    TextFormat(
        "openai",
        "token_embedding.weight",
        OPENAI_TEXT,
        lambda key: not key.startswith("visual."),
        read_open_clip,
        ignored=("attn_mask", "input_resolution", "context_length", "vocab_size"),
    ),
)
