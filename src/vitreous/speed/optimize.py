"""`optimize`: find the fastest backend for this machine and return the model as a callable; equal but for rounding.

It returns a callable of images `[b c h w]`, normalised or as pixels (uint8), that computes what the model computes.
Work that cannot reach the output is skipped, constants are folded into weights, and the `BACKENDS` are timed against
each other; the fastest is remembered in a small file, so that the next start does not time them again.

Backends that keep the number format differ from the plain model by rounding alone; `bf16`, `int8` and `fp8` lose
accuracy, as `docs/guides/speed.md` states.
"""

from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.models.hooks import check_no_copy
from vitreous.models.last_block import Compute, OutputKind
from vitreous.models.vit import ViT
from vitreous.runtime.device import max_lanes, pick_device
from vitreous.runtime.memory import keep_freed_memory
from vitreous.speed import fp8, int8
from vitreous.speed.backends import (
    BACKENDS,
    Forward,
    backend_choice,
    build_backends,
    default_backends,
    fastest,
    time_backends,
)
from vitreous.speed.fused_forward import fits
from vitreous.speed.token_merging import check_merging
from vitreous.speed.weight_folding import fold

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "int8": torch.float32, "fp8": torch.bfloat16}
"""Precision → number format between layers; products are of 8-bit numbers in int8 and fp8."""


@dataclass
class OptimizedModel:
    """An optimised model, called with images `[b c h w]`: the model's output as float on the CPU, for any `b`.

    Threads may share it. A recorded graph reads and writes fixed memory, so threads wait for each other there.
    """

    compute: Compute
    """The chosen backend: takes `batch_size` prepared images."""
    batch_size: int
    """Images computed at once: fewer are padded, more are split, so that only one shape is compiled."""
    device: torch.device
    dtype: torch.dtype
    mean: Tensor
    std: Tensor
    size: tuple[int, int]
    """Height and width of an image."""
    pixels: bool = True
    """Whether the network itself takes values from 0 to 255; else it takes normalised images."""
    backend: str = "eager"
    """Name of the chosen backend."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds a batch of each backend that was timed; empty if the choice was known from before."""
    notes: list[str] = field(default_factory=list)
    """Backends that failed, and why."""
    lanes: int = 1
    """Batches to compute in parallel if there are many: one for each thread on a CPU with nothing compiled, since
    compiled code has a fixed number of threads."""
    lock: Lock = field(default_factory=Lock, repr=False, compare=False)

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        expected = (len(self.mean), *self.size)
        if not isinstance(images, Tensor):
            raise TypeError(f"this model takes a tensor [b {' '.join(map(str, expected))}], got {images!r:.60}")
        if images.shape[1:] != expected:
            message = f"this model takes [b {' '.join(map(str, expected))}], got {list(images.shape)}"
            raise ValueError(f"{message}: preprocess images with model.card.preprocess and stack them to a batch")
        if images.dtype != torch.uint8 and not images.is_floating_point():
            kind = str(images.dtype).removeprefix("torch.")
            raise ValueError(f"expected pixels as uint8, or floats normalised as the model's card says, got {kind}")
        parts = []
        for part in images.split(self.batch_size):
            x = self.prepare(part)
            if missing := self.batch_size - len(x):
                x = torch.cat([x, x.new_zeros(missing, *x.shape[1:])])
            with self.lock if self.lanes == 1 else nullcontext():
                parts.append(self.compute(x)[: len(part)].float().cpu())
        return torch.cat(parts)

    def __repr__(self) -> str:
        shape = " ".join(map(str, (len(self.mean), *self.size)))
        text = f"{self.backend} on {self.device}, batches of {self.batch_size}, images [b {shape}]"
        return f"OptimizedModel({text})"

    def prepare(self, images: Tensor) -> Tensor:
        """Move images to an optimised model's device and convert them to what it takes: pixels, or normalised."""
        x = images.to(self.device, non_blocking=True)
        if self.pixels and images.dtype != torch.uint8:  # normalised by the caller: undone, exact but for rounding
            x = (x.float() * self.std + self.mean) * 255
        elif not self.pixels and images.dtype == torch.uint8:
            x = (x.float() / 255 - self.mean) / self.std
        return x.to(self.dtype).contiguous()  # compiled code expects one memory layout


def optimize(
    model: Any,
    precision: str = "fp32",
    *,
    output: OutputKind = "logits",
    batch_size: int = 8,
    device: torch.device | str = "cpu",
    merge: int = 0,
    pixels: bool = True,
    backends: tuple[str, ...] | None = None,
    cache: str | Path | None = None,
) -> OptimizedModel:
    """Find the fastest backend for batches of this size on this device, and return the model as a callable.

    `output` is "logits", or "features" for the vectors that `embed` gives. `merge` tokens are merged in each block
    (faster, less exact). On a CPU, the process keeps freed memory for the next batch. `pixels` folds the normalisation
    into the network, which is best if images come as uint8. `backends` names the ones to try; `cache` is a folder in
    which the choice is remembered. The model needs a card with its preprocessing, as `load` gives it.

    >>> from vitreous.models.variants import variant
    >>> from types import SimpleNamespace
    >>> model = ViT(variant("vit_femto_patch4_32")).eval()
    >>> preprocess = SimpleNamespace(mean=(0.5,) * 3, std=(0.5,) * 3, size=(32, 32))
    >>> model.card = SimpleNamespace(preprocess=preprocess, head="classifier")
    >>> fast = optimize(model, backends=("eager",))
    >>> fast
    OptimizedModel(eager on cpu, batches of 8, images [b 3 32 32])
    >>> x = torch.randn(3, 3, 32, 32)
    >>> torch.allclose(fast(x), model(x), atol=1e-4)
    True
    """
    _check(model, precision, batch_size, merge, backends)
    check_no_copy(model, "leave out fast, int8 and fp8, or call optimize outside of them")
    device = device if isinstance(device, torch.device) else pick_device(device)
    if device.type == "cpu":
        keep_freed_memory()
    preprocess, dtype = model.card.preprocess, PRECISIONS[precision]
    forward = Forward(resolve_output(model, output), merge)
    check_merging(model, merge, forward.output)
    pixels = pixels and model.config.stem == "none"  # a stem standardises its weights: nothing can be folded into them
    network: nn.Module = fold(model, *((preprocess.mean, preprocess.std) if pixels else ())).to(device, dtype)
    if precision == "int8":
        if reason := int8.supports(device):
            raise ValueError(reason)
        int8.to_int8(network)
    elif precision == "fp8":
        network, forward = _to_fp8(network, forward, device), Forward()
    mean, std = (torch.tensor(values, device=device).view(-1, 1, 1) for values in (preprocess.mean, preprocess.std))
    fast = OptimizedModel(lambda x: x, batch_size, device, dtype, mean, std, tuple(preprocess.size), pixels)
    example = torch.randn(batch_size, len(preprocess.mean), *preprocess.size, device=device).to(dtype)
    question = (model.config, precision, batch_size, output, merge)
    choice = backend_choice(None if cache is None else Path(cache), device, *question) if backends is None else None
    attempts: list[tuple[str, ...]] = [backends or default_backends(device, precision), ("eager",)]
    if choice is not None and (before := choice.read()) in attempts[0]:
        attempts.insert(0, (before,))
    for names in attempts:
        if built := build_backends(network, forward, example, names, fast.notes):
            break
    else:
        message = f"no backend runs this model in {precision} on {device.type}: try fp32 on a CPU"
        raise ValueError(f"{message} ({fast.notes[-1]})")
    fast.seconds = time_backends(built, example) if len(built) > 1 else {}
    fast.backend = fastest(fast.seconds) if fast.seconds else next(iter(built))
    fast.compute = built[fast.backend]
    if device.type == "cpu" and fast.backend in ("eager", "packed"):
        fast.lanes = max_lanes()
    if choice is not None and fast.seconds:
        choice.write(fast.backend, fast.seconds)
    return fast


def resolve_output(model: Any, output: OutputKind) -> OutputKind:
    """Return what `optimize` computes: features of a model without a classifier are its own output."""
    if output not in ("logits", "features"):
        raise ValueError(f"output must be logits or features, got {output!r}")
    return output if model.card.head == "classifier" else "logits"


def _check(model: Any, precision: str, batch_size: int, merge: int, backends: tuple[str, ...] | None) -> None:
    """Raise for a model, precision, batch size or backend that `optimize` does not support."""
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, got {precision!r}")
    for what, number, least in (
        ("a batch holds at least one image, got batch size", batch_size, 1),
        ("tokens to merge in each block: 0 or more, got", merge, 0),
    ):
        if isinstance(number, bool) or not isinstance(number, int) or number < least:
            raise ValueError(f"{what} {number!r:.60}")
    if unknown := [name for name in backends or () if name not in BACKENDS]:
        message = f"no backend is called {unknown[0]!r}"
        raise ValueError(f"{message}: backends is a tuple of {', '.join(map(repr, BACKENDS))}")
    if not isinstance(model, ViT):
        kind = type(model).__name__
        raise ValueError(f"only Vision Transformers are optimized, got a {kind}: no --fast, int8 and fp8 here")
    if model.card is None:
        raise ValueError("optimize needs the model's preprocessing: set model.card, or get the model by load")


def _to_fp8(network: nn.Module, forward: Forward, device: torch.device) -> nn.Module:
    """Convert the folded network to fp8 in `optimize`, or say why that is not supported."""
    if reason := fp8.supports(device):
        raise ValueError(reason)
    if forward.merge or not fits(network):
        raise ValueError("fp8 needs a GELU network whose head reads the class token, without token merging: use bf16")
    assert isinstance(network, ViT)
    return fp8.Fp8ViT(network, forward.output)
