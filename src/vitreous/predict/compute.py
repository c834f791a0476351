"""`compute`: pixels `[b c h w]` → a model's outputs, by the plain model or by the fastest way this machine offers.

Shapes:  b images   c colours   h height   w width
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vitreous.models.last_block import Compute, OutputKind, logits_only
from vitreous.models.vit import ViT
from vitreous.predict.pipeline import to_model
from vitreous.runtime.device import max_lanes, pick_device, pick_dtype
from vitreous.runtime.files import cache_folder
from vitreous.weights.load import Model

MANY = 64
"""From this many images on, packing the weights for a CPU, some tenths of a second, pays off."""


def embedding(model: Model, x: Tensor) -> Tensor:
    """Return the vector of an image: the features below a classifier, or a headless or projecting model's output."""
    return model.features(x) if model.card.head == "classifier" else model(x)


FORWARDS: dict[str, Callable[[Any, Tensor], Tensor]] = {"logits": logits_only, "features": embedding}


@dataclass(frozen=True)
class PlainCompute:
    """The plain model as `compute`; results stay on the model's device."""

    model: Model
    output: OutputKind = "logits"
    lanes: int = 1
    forward: Callable[[Any, Tensor], Tensor] | None = None
    """Computes the output instead, such as a forward pass that merges tokens."""

    @torch.inference_mode()
    def __call__(self, batch: Tensor) -> Tensor:
        forward = self.forward or FORWARDS[self.output]
        x = to_model(batch, self.model.card.preprocess, next(self.model.parameters()))
        return forward(self.model, x).float()


def plain_compute(model: Model, output: OutputKind, device: str = "auto", precision: str = "fp32") -> PlainCompute:
    """Run the plain model on a device in a precision; the caller's model is not changed."""
    return PlainCompute(copy_to(model, device, precision), output)


def copy_to(model: Model, device: str, precision: str) -> Model:
    """Return the model in evaluation mode on a device: a copy, or the model itself if it is there already."""
    target, dtype = pick_device(device), pick_dtype(precision)
    parameter = next(model.parameters())
    target = torch.device(target.type, target.index if target.index is not None else parameter.device.index)
    if parameter.device == target and parameter.dtype == dtype and not model.training:
        return model
    return copy.deepcopy(model).to(device=target, dtype=dtype).eval()


def lanes_of(compute: object) -> int:
    """Return how many batches may be computed at the same time: 1 unless `compute` has `lanes`."""
    return int(getattr(compute, "lanes", 1))


def choose_compute(
    model: Model,
    output: OutputKind = "logits",
    *,
    fast: bool = False,
    merge: int = 0,
    images: int = 0,
    precision: str = "fp32",
    batch_size: int = 8,
    device: str = "auto",
    note: Callable[[str], object] = lambda line: None,
) -> Compute | None:
    """Choose what computes logits or features; None for the plain model. `note` gets lines about the choice.

    `fast`, int8 and fp8 use `optimize`; `merge` merges tokens in each block. From 64 `images` on, a CPU runs batches
    in parallel and logits with packed weights even without `fast`: that needs no timing or compiling, and changes
    logits by rounding alone. Features without `fast` are the plain model's, bit for bit.
    """
    narrow = precision in ("int8", "fp8")
    if not (fast or merge or narrow or images >= MANY):
        return None
    from vitreous.speed.backends import Forward  # not at the top: a tenth of a second to import
    from vitreous.speed.optimize import optimize, resolve_output

    if merge:
        note(f"merging {merge} tokens in each block: answers differ from the whole model's")
    options: dict[str, Any] = {"output": output, "batch_size": batch_size, "device": pick_device(device)}
    if fast or narrow:
        if precision == "fp16":
            raise ValueError("--fast takes fp32, bf16, int8 or fp8, got fp16: use bf16")
        note("finding the fastest backend; the first time on a machine takes about a minute")
        chosen = optimize(model, precision, merge=merge, cache=cache_folder(), **options)
        for line in chosen.notes:
            note(line)
        times = ", ".join(f"{name} {1000 * seconds:.1f} ms" for name, seconds in chosen.seconds.items())
        note(f"fast: {chosen.backend}" + (f" ({times} for a batch of {batch_size})" if times else ""))
        return chosen
    if merge:
        if not isinstance(model, ViT):
            raise ValueError("only a Vision Transformer has tokens to merge: leave --merge out for a ResNet")
        forward = Forward(resolve_output(model, output), merge).function
        return PlainCompute(copy_to(model, device, precision), output, forward=forward)
    if pick_device(device).type != "cpu":
        return None
    if isinstance(model, ViT) and precision != "fp16" and output == "logits":
        chosen = optimize(model, precision, backends=("packed",), **options)
        if chosen.backend == "packed":
            return chosen
    return PlainCompute(copy_to(model, device, precision), output, lanes=max_lanes())
