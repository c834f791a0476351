"""Batches and memory: how many images an update can take on this device."""

import copy
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from vitreous.runtime.distributed import World
from vitreous.training.config import TrainConfig
from vitreous.training.objective import forward
from vitreous.weights.load import Model

MOST = 4096
ON_A_CPU = 64


def settle_batch(
    config: TrainConfig,
    model: Model,
    images: int,
    device: torch.device,
    say: Callable[[str], object],
    world: World | None = None,
) -> TrainConfig:
    """The config with a batch size that is a number, no larger than the set, and the same for all ranks."""
    world = world or World()
    parts = config.accumulate * world.world_size
    if images < parts:
        ranks = f" × {world.world_size} processes" if world.world_size > 1 else ""
        raise ValueError(
            f"{images} images to learn from are fewer than --accumulate {config.accumulate}{ranks}: take less of it"
        )
    if config.batch_size == "auto":
        if config.parallel == "fsdp" and world.distributed and device.type == "cuda":
            raise ValueError("--batch-size auto tries the whole model on one GPU: with --parallel fsdp say a number")
        cap = (MOST if device.type == "cuda" else ON_A_CPU) // config.accumulate
        most = max(1, min(cap, images // parts))
        size = 2 ** (most.bit_length() - 1)
        if device.type == "cuda":
            size = largest(lambda batch: attempt(model, config, device, batch * config.accumulate), size)
        size = -world.maximum(-size)[0]  # the smallest that any found
        why = "the largest power of two that fits" if device.type == "cuda" else "the usual one on a CPU"
        say(
            f"batch size {size * parts}, {why}" + (f", of {world.world_size} processes" if world.world_size > 1 else "")
        )
        config = replace(config, batch_size=size * parts)
    if int(config.batch_size) > images:
        size = images // parts * parts
        say(f"batch size {size} instead of {config.batch_size}: there are {images} images to learn from")
        config = replace(config, batch_size=size)
    if int(config.batch_size) % parts:
        ranks = f"{world.world_size} processes" + (
            f" × --accumulate {config.accumulate}" if config.accumulate > 1 else ""
        )
        below = int(config.batch_size) // parts * parts
        near = f"--batch-size {max(below, parts)}"
        raise ValueError(f"batch size {config.batch_size} cannot be shared equally by {ranks}: pass {near}")
    return config


def largest(fits: Callable[[int], bool], most: int) -> int:
    """The largest of `most`, `most` / 2, `most` / 4, … that fits; an error where not even 1 does.

    >>> largest(lambda batch: batch <= 100, 1024)
    64
    """
    size = most
    while size and not fits(size):
        size //= 2
    if not size:
        raise ValueError("not even one image fits the memory: try a smaller --image-size or --policy head")
    return size


def attempt(model: Model, config: TrainConfig, device: torch.device, batch: int) -> bool:
    """Whether an update of `batch` images fits, found by computing one on a copy of the model."""
    trial = copy.deepcopy(model)
    view = model.card.preprocess
    try:
        learning = [parameter for parameter in trial.parameters() if parameter.requires_grad]
        kept = [torch.zeros_like(parameter) for parameter in learning for _ in range(3)]  # two moments, average
        x = torch.zeros(max(1, batch // config.accumulate), len(view.mean), *view.size, device=device)
        with torch.autocast(device.type, torch.bfloat16, enabled=config.precision == "bf16"):
            loss = forward(trial, x, config).float().square().mean()  # as an update will: recomputing takes less
        loss.backward()
        del kept, x, loss
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
        return False
    finally:
        del trial
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return True


def out_of_memory(error: RuntimeError) -> bool:
    """Whether that is what went wrong; on a CPU torch has no class of its own for it."""
    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)


@contextmanager
def explained(config: TrainConfig, model: Model, device: torch.device) -> Iterator[None]:
    """Turn running out of memory into one line that names a batch size which fits."""
    try:
        yield
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
        traceback.clear_frames(error.__traceback__)  # or the failed update's tensors would fill the memory still
        if device.type == "cuda":
            torch.cuda.empty_cache()
        asked, parts = int(config.batch_size), config.accumulate
        if torch.distributed.is_available() and torch.distributed.is_initialized():  # others wait: no time to try
            message = f"out of memory with batch size {asked}, {config.accumulate} part(s) on each process"
            raise ValueError(f"{message}: pass a smaller --batch-size, or --accumulate {2 * parts}") from None
        fits = parts * largest(lambda batch: attempt(model, config, device, batch * parts), asked // parts // 2)
        pieces = parts * -(-asked // fits)
        same = f", or --accumulate {pieces} to compute it in parts" if asked % pieces == 0 else ""
        raise ValueError(
            f"out of memory with batch size {asked}: {fits} fits. Pass --batch-size {fits} or --batch-size auto{same}"
        ) from None
