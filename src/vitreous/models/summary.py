"""Summaries of a model: its shape in one line, its FLOPs, and the tensor shapes traced along a forward pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vitreous.models.hooks import Hook, Turn, activate
from vitreous.models.timm_classifier import TimmClassifier, TimmConfig, flops_by_torch
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig

if TYPE_CHECKING:
    from vitreous.models.resnet import ResNet  # it imports torchvision, which takes seconds

    Model: TypeAlias = ViT | ResNet | TimmClassifier

Rows = list[tuple[str, str]]


def describe(model: Model) -> str:
    """Summarise a model's shape in one line.

    >>> from vitreous.models.variants import variant
    >>> describe(ViT(variant("vit_tiny_patch16_224")))
    '224×224 px, 16×16 patches in 14×14, width 192, depth 12, heads 3'
    """
    config = model.config
    if isinstance(config, TimmConfig):
        return f"{config.timm}, {config.size[0]}×{config.size[1]} px"
    if not isinstance(config, ViTConfig):
        return f"depth {config.depth}"
    (h, w), (p, q), (rows, columns) = config.size, config.patch, config.grid
    line = f"{h}×{w} px, {p}×{q} patches in {rows}×{columns}, width {config.width}, depth {config.depth}, "
    unusual = [f"heads {config.heads}"]
    default = ViTConfig()
    for field in fields(config):
        if field.name in ("image_size", "patch_size", "width", "depth", "heads", "mlp_width", "classes"):
            continue
        if (value := getattr(config, field.name)) != getattr(default, field.name):
            unusual.append(f"{field.name} {value}")
    if config.mlp_width != 4 * config.width:
        unusual.append(f"mlp_width {config.mlp_width}")
    return line + ", ".join(unusual)


def count_flops(model: Model) -> int:
    """Count the floating-point operations of a forward pass of one image: two for each multiply-add of a product."""
    like, training = next(model.parameters()), model.training
    image = torch.zeros(1, model.config.channels, *model.config.size, device=like.device, dtype=like.dtype)
    if isinstance(model, TimmClassifier):  # it may multiply in ways that our counter does not know
        return flops_by_torch(model, image)
    counter = FlopCounter()
    try:  # a real pass: torch's meta device imports its compiler
        with counter, torch.inference_mode():
            model.eval()(image)
    finally:
        model.train(training)
    return counter.total


class FlopCounter(TorchFunctionMode):
    """Count the products of a forward pass: `torch.utils.flop_counter` does too, but imports torch's compiler first."""

    total: int = 0

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = function(*args, **(kwargs or {}))
        if function in (F.linear, torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm):
            self.total += 2 * out.numel() * args[0].shape[-1]
        elif function in (F.conv2d, torch.conv2d):
            self.total += 2 * out.numel() * args[1][0].numel()
        elif function is F.scaled_dot_product_attention:  # queries × keys, then weights × values
            self.total += 2 * (args[0].numel() + out.numel()) * args[1].shape[-2]
        return out


def _assembled(model: Model) -> str:
    """Say in the summary of a model's shapes what the embedding adds to the patches: prefix tokens and positions."""
    config: Any = model.config
    parts = {"class token": config.class_token, "registers": config.registers, "positions": config.position != "none"}
    return f"with {' and '.join(held)}" if (held := [name for name, has in parts.items() if has]) else "first tokens"


@torch.no_grad()
def trace(model: Model) -> Rows:
    """List the tensor shapes of one image's forward pass, read from a real one.

    >>> from vitreous.models.variants import variant
    >>> dict(trace(ViT(variant("vit_base_patch16_224", depth=1)).eval()))["queries, keys and values, joined"]
    '197×2304'
    """
    if not isinstance(model, ViT):
        raise ValueError("--trace follows a ViT's tokens; this is another network")
    config, like, found = model.config, next(model.parameters()), _FirstValues()
    image = torch.zeros(1, config.channels, *config.size, device=like.device, dtype=like.dtype)
    with activate(found):
        logits = model(image)
    value = found.values
    q, k = value["q"], value["k"]  # [b h t k]
    rows = [
        ("image", image),
        ("patches, flattened and embedded", value["patches"]),
        (_assembled(model), value["embedding"]),
        ("block 0: after the first norm", value["norm1"]),
        ("queries, keys and values, joined", torch.cat([value[name].mT.flatten(1, 2).mT for name in "qkv"], dim=-1)),
        ("queries, split into heads", q),
        ("attention: queries × keys", q @ k.mT),
        ("attention's output", value["attention_output"]),
        ("hidden layer of the MLP", value["mlp_hidden"]),
        ("block 0's output", value["output"]),
        (f"after {config.depth} blocks and the last norm", value["tokens"]),
        *([("pooled", value["pooled"])] if "pooled" in value else []),  # a dense head reads the patches instead
        ("logits of each pixel" if logits.dim() > 2 else "logits" if config.classes else "features", logits),
    ]
    return [(name, "×".join(str(side) for side in each.shape[1:])) for name, each in rows]


class _FirstValues(Hook):
    """Keep the first value of each name for the trace of shapes: of the blocks, those of block 0."""

    turn = Turn.RECORD

    def __init__(self) -> None:
        self.values: dict[str, Tensor] = {}

    def on_value(self, module: nn.Module, name: str, value: Tensor) -> Tensor:
        self.values.setdefault(name, value)
        return value
