"""`compute`: pixels `[b c h w]` → a model's outputs, by the plain model or by the fastest way this machine offers.

Shapes:  b images   c colours   h height   w width
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from vitreous.models.last_block import logits_only
from vitreous.models.vit import ViT
from vitreous.predict.pipeline import to_model
from vitreous.runtime.device import max_lanes, pick_device, pick_dtype
from vitreous.runtime.files import cache_folder
from vitreous.weights.load import Model

Compute: TypeAlias = Callable[[Tensor], Tensor]
"""Pixels, uint8 `[b c h w]`, or normalised images → outputs. Its attribute `lanes`, if any, is how many batches may be
computed at the same time."""
Output: TypeAlias = Literal["logits", "embedding"]

MANY = 64
"""From this many images on, packing the weights for a CPU, some tenths of a second, pays off."""


def embedding(model: Model, x: Tensor) -> Tensor:
    """Return the vector of an image: the features below a classifier, or a headless or projecting model's output."""
    return model.features(x) if model.card.head == "classifier" else model(x)


FORWARDS: dict[str, Callable[[Any, Tensor], Tensor]] = {"logits": logits_only, "embedding": embedding}


@dataclass(frozen=True)
class PlainCompute:
    """The plain model as `compute`; results stay on the model's device."""

    model: Model
    output: Output = "logits"
    lanes: int = 1
    forward: Callable[[Any, Tensor], Tensor] | None = None
    """Computes the output instead, such as a forward pass that merges tokens."""

    @torch.inference_mode()
    def __call__(self, batch: Tensor) -> Tensor:
        forward = self.forward or FORWARDS[self.output]
        x = to_model(batch, self.model.card.preprocess, next(self.model.parameters()))
        return forward(self.model, x).float()


def plain_compute(model: Model, output: Output, device: str = "auto", precision: str = "fp32") -> PlainCompute:
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


def fast_compute(
    model: Model,
    output: Output = "logits",
    *,
    fast: bool = False,
    merge: int = 0,
    images: int = 0,
    precision: str = "fp32",
    batch_size: int = 8,
    device: str = "auto",
) -> tuple[Compute | None, list[str]]:
    """Choose how to compute: None for the plain model; and notes on what was chosen.

    `fast`, and the precisions int8 and fp8, ask for `optimize`; `merge` tokens are merged in each block. Many `images`
    on a CPU get packed weights and batches in parallel unasked: that is found at once and changes outputs by rounding
    alone.
    """
    forward, notes = None, []
    if merge:
        from vitreous.speed.token_merging import merging

        forward = merging(merge, features=output == "embedding")
        notes.append(f"merging {merge} tokens in each block: answers differ from the whole model's")
    if fast or precision in ("int8", "fp8"):
        if precision == "fp16":
            raise ValueError("--fast takes fp32, bf16, int8 or fp8, got fp16: use bf16")
        chosen = _optimized(model, output, forward, precision, batch_size, device, cache=cache_folder())
        times = ", ".join(f"{name} {1000 * seconds:.1f} ms" for name, seconds in chosen.tried.items())
        notes += [*chosen.remarks, f"fast: {chosen.way}" + (f" ({times} a batch of {chosen.batch})" if times else "")]
        return chosen, notes
    if merge:
        return PlainCompute(copy_to(model, device, precision), output, forward=forward), notes
    if images < MANY or pick_device(device).type != "cpu":
        return None, notes
    if isinstance(model, ViT) and precision != "fp16":
        chosen = _optimized(model, output, None, precision, batch_size, device, ways=("packed",))
        if chosen.way == "packed":
            return chosen, notes
    return PlainCompute(copy_to(model, device, precision), output, lanes=max_lanes()), notes


def _optimized(
    model: Model,
    output: Output,
    forward: Callable[[Any, Tensor], Tensor] | None,
    precision: str,
    batch_size: int,
    device: str,
    **options: Any,
) -> Any:
    from vitreous.speed.optimize import optimize

    compute = forward or FORWARDS[output]
    return optimize(model, precision, batch=batch_size, device=pick_device(device), compute=compute, **options)
