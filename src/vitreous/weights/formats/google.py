"""Read and write Google's `.npz` files, keys and shapes: the original release, AugReg's, and big_vision's, SigLIP too.

The three name the same layers differently: big_vision numbers sub-layers from 0, keeps positions at the top level, and
may stack all blocks into one array. JAX stores matrices as `[in out]`, attention's as `[in heads k]` and
`[heads k out]`, and the patch embedding as `[height width channels out]`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.weights.adapt import PAPER_VIT, ConvertedCheckpoint, adapted, check_limits, library_models
from vitreous.weights.keymap import TRANSPOSE, Allowed, Format, Rule, Tensors, Transform, rule, to_theirs


def _split_heads(x: Tensor, config: ViTConfig) -> list[Tensor]:
    heads, each = config.heads, config.width // config.heads
    if x.dim() == 1:  # a bias: [3·h·k] → three [h k]
        return [part.reshape(heads, each) for part in x.chunk(3)]
    return [part.T.reshape(-1, heads, each) for part in x.chunk(3)]  # [h·k in] → [in h k]


PATCHES = Transform(lambda parts: parts[0].permute(3, 2, 0, 1), lambda x, _: [x.permute(2, 3, 1, 0)])
JOIN_HEADS = Transform(lambda parts: torch.cat([part.flatten(1).T for part in parts]), _split_heads)
JOIN_HEAD_BIASES = Transform(lambda parts: torch.cat([part.flatten() for part in parts]), _split_heads)
OUT = Transform(
    lambda parts: parts[0].flatten(0, 1).T,  # [h k out] → [out h·k]
    lambda x, c: [x.T.reshape(c.heads, c.width // c.heads, -1)],
)


def _dense(ours: str, theirs: str) -> list[Rule]:
    return [rule(f"{ours}.weight", f"{theirs}/kernel", transform=TRANSPOSE), rule(f"{ours}.bias", f"{theirs}/bias")]


def _norm(ours: str, theirs: str) -> list[Rule]:
    return [rule(f"{ours}.weight", f"{theirs}/scale"), rule(f"{ours}.bias", f"{theirs}/bias")]


def _rules(attention: int, norm2: int, mlp: int, positions: str) -> tuple[Rule, ...]:
    block = "Transformer/encoderblock_{n}"
    heads = f"{block}/MultiHeadDotProductAttention_{attention}"
    names = ("query", "key", "value")
    kernels, biases = [[f"{heads}/{name}/{kind}" for name in names] for kind in ("kernel", "bias")]
    return (
        rule("cls_token", "cls"),
        rule("pos_embed", positions),
        rule("patch_embed.proj.weight", "embedding/kernel", transform=PATCHES),
        rule("patch_embed.proj.bias", "embedding/bias"),
        *_norm("blocks.{n}.norm1", f"{block}/LayerNorm_0"),
        rule("blocks.{n}.attn.qkv.weight", *kernels, transform=JOIN_HEADS),
        rule("blocks.{n}.attn.qkv.bias", *biases, transform=JOIN_HEAD_BIASES),
        rule("blocks.{n}.attn.proj.weight", f"{heads}/out/kernel", transform=OUT),
        rule("blocks.{n}.attn.proj.bias", f"{heads}/out/bias"),
        *_norm("blocks.{n}.norm2", f"{block}/LayerNorm_{norm2}"),
        *_dense("blocks.{n}.mlp.fc1", f"{block}/MlpBlock_{mlp}/Dense_0"),
        *_dense("blocks.{n}.mlp.fc2", f"{block}/MlpBlock_{mlp}/Dense_1"),
        *_norm("norm", "Transformer/encoder_norm"),
        *_dense("head.hidden", "pre_logits"),
        *_dense("head", "head"),
    )


ORIGINAL_RULES = _rules(attention=1, norm2=2, mlp=3, positions="Transformer/posembed_input/pos_embedding")
POOL, POOL_HEADS = "MAPHead_0", "MAPHead_0/MultiHeadDotProductAttention_0"
BIG_VISION_RULES = (
    *_rules(attention=0, norm2=1, mlp=0, positions="pos_embedding"),
    rule("attn_pool.latent", f"{POOL}/probe"),  # SigLIP's attention pool
    rule("attn_pool.q.weight", f"{POOL_HEADS}/query/kernel", transform=JOIN_HEADS),
    rule("attn_pool.q.bias", f"{POOL_HEADS}/query/bias", transform=JOIN_HEAD_BIASES),
    rule("attn_pool.kv.weight", *(f"{POOL_HEADS}/{x}/kernel" for x in ("key", "value")), transform=JOIN_HEADS),
    rule("attn_pool.kv.bias", *(f"{POOL_HEADS}/{x}/bias" for x in ("key", "value")), transform=JOIN_HEAD_BIASES),
    rule("attn_pool.proj.weight", f"{POOL_HEADS}/out/kernel", transform=OUT),
    rule("attn_pool.proj.bias", f"{POOL_HEADS}/out/bias"),
    *_norm("attn_pool.norm", f"{POOL}/LayerNorm_0"),
    *_dense("attn_pool.mlp.fc1", f"{POOL}/MlpBlock_0/Dense_0"),
    *_dense("attn_pool.mlp.fc2", f"{POOL}/MlpBlock_0/Dense_1"),
)
PREFIXES = ("opt/target/", "params/img/", "params/", "img/")
STACKED = "Transformer/encoderblock/"


def prepare(tensors: Tensors) -> Tensors:
    """Remove the optimiser's or tower's prefix in Google's files, and split stacked blocks."""
    prefix = next((p for p in PREFIXES if f"{p}embedding/kernel" in tensors), "")
    plain = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
    unstacked: Tensors = {}
    for key, value in plain.items():
        if key.startswith(STACKED):
            rest = key.removeprefix(STACKED)
            unstacked |= {f"Transformer/encoderblock_{n}/{rest}": layer for n, layer in enumerate(value.unbind())}
        else:
            unstacked[key] = value
    return unstacked


def _is_npz(tensors: Mapping[str, Tensor]) -> bool:
    return any(key in ("embedding/kernel", *(p + "embedding/kernel" for p in PREFIXES)) for key in tensors)


def _is_big_vision(tensors: Mapping[str, Tensor]) -> bool:
    return (
        _is_npz(tensors)
        and any(key.endswith(("/pos_embedding", "pos_embedding")) for key in tensors)
        and not any("posembed_input" in key for key in tensors)
    )


def read_shapes(tensors: Tensors) -> Allowed:
    """Read the number of heads from JAX's shapes: `[in heads k]`."""
    found: Allowed = {}
    for key, value in tensors.items():
        if key.endswith("query/kernel") and value.dim() == 3:
            found["pool_heads" if key.startswith(POOL) else "heads"] = (value.shape[1],)
    return found


def known_models(shapes: Mapping[str, Any], assume: Mapping[str, Any]) -> tuple[Allowed, str]:
    """Return what bare files of Google's code may be; big_vision also has models without a class token."""
    # JAX's gelu is the tanh approximation; timm, the usual reader of these files, takes the exact function. The two
    # differ by less than 0.001 in any activation.
    if shapes.get("pool") == "attention":  # SigLIP, which transformers reads with JAX's own gelu
        return library_models(class_token=(False,), pool=("attention",), activation=("gelu_tanh",))(shapes, assume)
    pool = ("token",) if shapes["class_token"] else ("mean",)
    return library_models(class_token=(True, False), pool=pool)(shapes, assume)


IGNORED = ("opt/state/*", "opt/*", "states/*", "params/txt/*", "params/t", "params/b", "t", "b")
GOOGLE = Format(
    "google",
    _is_npz,
    ORIGINAL_RULES,
    IGNORED,
    prepare=prepare,
    read_shapes=read_shapes,
    known=known_models,
    resize="google",
)
BIG_VISION = replace(GOOGLE, name="google-big-vision", recognise=_is_big_vision, rules=BIG_VISION_RULES)


def to_google(model: ViT) -> ConvertedCheckpoint:
    """Convert a model to the arrays of Google's original release, which has no config file either."""
    tensors, config = adapted(model, prefix_positions=1)
    limits = PAPER_VIT | {"activation": ("gelu", "gelu_tanh"), "qkv_bias": (True,), "patch_bias": (True,)}
    limits["norm_eps"] = (1e-6,)
    check_limits(config, "Google's .npz", limits)
    return ConvertedCheckpoint(to_theirs(tensors, ORIGINAL_RULES, config), config)
