"""`POLICIES`: which parameters learn (full, head, attention, last, LoRA); freeze the others, add and merge LoRA.

A policy with a number is written `last:2`. LoRA adds small matrices to the attention layers (peft), which `merge_lora`
adds to the weights at the end, so that the saved model is a plain ViT.
"""

import re
from collections.abc import Callable

from torch import nn

from vitreous.models.timm_classifier import TimmClassifier
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.weights.load import Model

HEAD = re.compile(r"(head|head_dist|fc)\.")  # a ResNet calls its head fc
PROJECTION = "head.hidden."  # of a head begun with text features: it is pre-trained, as the blocks are
NORMS = re.compile(r"blocks\.\d+\.(norm1|norm2|attn\.[qk]_norm)\.")


def _names(model: Model) -> list[str]:
    """List the names of the parameters that a policy chooses from: all, or those that reach a dense head.

    DDP waits for the gradient of every parameter that learns.
    """
    names, unread = [name for name, _ in model.named_parameters()], r"(attn_pool|fc_norm)\."
    if not isinstance(config := model.config, ViTConfig) or config.dense == "none":
        return names
    after = range(config.last_read + 1, config.depth)
    if after:
        unread += rf"|norm\.|blocks\.({'|'.join(str(number) for number in after)})\."
    return [name for name in names if not re.match(unread, name)]


def _head(model: Model) -> list[str]:
    """List the head's parameters for policies, by name, without the pre-trained projection that it may begin with."""
    if isinstance(model, TimmClassifier):
        return model.head_names()
    begun = getattr(model.config, "head_norm", False)
    return [name for name in _names(model) if HEAD.match(name) and not (begun and name.startswith(PROJECTION))]


def full(model: Model, argument: str) -> list[str]:
    """The policy `full`: train all parameters."""
    return _names(model)


def head(model: Model, argument: str) -> list[str]:
    """The policy `head`: train the head; the rest is a fixed feature extractor."""
    return _head(model)


def attention(model: Model, argument: str) -> list[str]:
    """The policy `attention`: train the attention layers and the head (Touvron et al., 2022)."""
    return _head(model) + [name for name in _names(model) if re.match(r"blocks\.\d+\.attn\.(qkv|proj)\.", name)]


def last(model: Model, argument: str) -> list[str]:
    """The policy `last`: train the last N blocks, the final norm and the head."""
    assert isinstance(model, ViT)  # `apply_policy` checks it
    depth = model.config.depth
    if not argument.isdecimal() or not 1 <= int(argument) <= depth:
        raise ValueError(f"last:N takes a number of blocks from 1 to {depth}, got {'last:' + argument!r}")
    taken = "|".join(str(i) for i in range(depth - int(argument), depth))
    taken = rf"blocks\.({taken})\.|(fc_)?norm\.|{PROJECTION}"
    return _head(model) + [name for name in _names(model) if re.match(taken, name)]


def lora(model: Model, argument: str) -> list[str]:
    """The policy `lora`: train low-rank updates (LoRA) to the attention layers, and the head."""
    return _head(model) + [name for name in _names(model) if ".lora_" in name]


POLICIES: dict[str, Callable[[Model, str], list[str]]] = {
    "full": full,
    "head": head,
    "attention": attention,
    "last": last,
    "lora": lora,
}


def apply_policy(
    model: Model, policy: str, *, train_norms: bool = False, train_pool: bool = False, lora_rank: int = 8
) -> list[str]:
    """Make the parameters of a policy trainable and freeze the rest; return the names of the trainable ones.

    `train_norms` adds the blocks' norms, `train_pool` attention pooling, which is new in `--readout attention`.

    >>> from vitreous.models.vit_config import ViTConfig
    >>> model = ViT(ViTConfig(image_size=8, patch_size=4, width=16, depth=2, heads=2, classes=3))
    >>> apply_policy(model, "head")
    ['head.weight', 'head.bias']
    """
    name, _, argument = policy.partition(":")
    if name not in POLICIES or (argument and name != "last"):
        raise ValueError(f"policy must be one of {', '.join(POLICIES).replace('last', 'last:N')}, got {policy!r}")
    if not isinstance(model, ViT) and name not in ("full", "head"):
        raise ValueError(f"policy {policy} needs the blocks of a ViT: a ResNet or timm classifier takes full or head")
    if name == "lora":
        _add_lora(model, lora_rank)
    chosen = set(POLICIES[name](model, argument))
    if train_norms:
        chosen |= {each for each in _names(model) if NORMS.match(each)}
    if train_pool:
        chosen |= {each for each in _names(model) if each.startswith("attn_pool.")}
    for each, parameter in model.named_parameters():
        parameter.requires_grad_(each in chosen)
    for module in model.modules():  # frozen layers keep their running statistics too
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            learns = name == "full" if module.weight is None else module.weight.requires_grad
            if not learns:
                module.eval()
    return [each for each in _names(model) if each in chosen]


def _add_lora(model: Model, rank: int) -> None:
    """Add LoRA's matrices to the attention layers, by peft."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise ImportError("policy lora needs peft: pip install 'vitreous[lora]'") from error
    layers = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=r"blocks\.\d+\.attn\.(qkv|proj)")
    inject_adapter_in_model(layers, model)


def merge_lora(model: Model) -> Model:
    """Add LoRA's matrices to the weights of their layers; a model without LoRA does not change."""
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if hasattr(layer, "lora_A"):
                layer.merge()
                setattr(parent, name, layer.get_base_layer())
    return model
