"""The batch size: settle it before a run, find the largest that fits, and explain running out of memory."""

import copy
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from vitreous.runtime.distributed import World
from vitreous.runtime.memory import is_out_of_memory
from vitreous.training.config import TrainConfig
from vitreous.training.model import choose_forward
from vitreous.weights.load import Model

LIMIT = 4096
CPU_LIMIT = 64


def settle_batch_size(
    config: TrainConfig,
    model: Model,
    images: int,
    device: torch.device,
    log: Callable[[str], object],
    world: World | None = None,
) -> TrainConfig:
    """Return the config with a batch size that is a number, at most the dataset's size, and equal on all ranks."""
    world = world or World()
    parts = config.accumulate * world.world_size
    if images < parts:
        ranks = f" × {world.world_size} processes" if world.world_size > 1 else ""
        raise ValueError(
            f"{images} training images are fewer than --accumulate {config.accumulate}{ranks}: choose a smaller number"
        )
    if config.batch_size == "auto":
        if config.parallel == "fsdp" and world.distributed and device.type == "cuda":
            raise ValueError(
                "--batch-size auto tries the unsharded model on one GPU: with --parallel fsdp pass a number"
            )
        limit = (LIMIT if device.type == "cuda" else CPU_LIMIT) // config.accumulate
        limit = max(1, min(limit, images // parts))
        size = 2 ** (limit.bit_length() - 1)
        if device.type == "cuda":
            size = largest(lambda batch: fits_memory(model, config, device, batch * config.accumulate), size)
        size = -world.maximum(-size)[0]  # the smallest that any rank found
        why = "the largest power of two that fits" if device.type == "cuda" else "the default on a CPU"
        log(
            f"batch size {size * parts}, {why}" + (f", of {world.world_size} processes" if world.world_size > 1 else "")
        )
        config = replace(config, batch_size=size * parts)
    if int(config.batch_size) > images:
        size = images // parts * parts
        log(f"batch size {size} instead of {config.batch_size}: there are {images} training images")
        config = replace(config, batch_size=size)
    if int(config.batch_size) % parts:
        ranks = f"{world.world_size} processes" + (
            f" × --accumulate {config.accumulate}" if config.accumulate > 1 else ""
        )
        below = int(config.batch_size) // parts * parts
        near = f"--batch-size {max(below, parts)}"
        raise ValueError(f"batch size {config.batch_size} cannot be divided equally between {ranks}: pass {near}")
    return config


def largest(fits: Callable[[int], bool], limit: int) -> int:
    """Find the largest batch size that fits for a run: halve it from `limit` on; raise if not even 1 does.

    >>> largest(lambda batch: batch <= 100, 1024)
    64
    """
    size = limit
    while size and not fits(size):
        size //= 2
    if not size:
        raise ValueError("not even one image fits into memory: try a smaller --image-size or --policy head")
    return size


def fits_memory(model: Model, config: TrainConfig, device: torch.device, batch: int) -> bool:
    """Return whether a training step with `batch` images fits into memory: compute one on a copy of the model."""
    trial = copy.deepcopy(model)
    view = model.card.preprocess
    try:
        trainable = [parameter for parameter in trial.parameters() if parameter.requires_grad]
        kept = [torch.zeros_like(parameter) for parameter in trainable for _ in range(3)]  # two moments, average
        x = torch.zeros(max(1, batch // config.accumulate), len(view.mean), *view.size, device=device)
        with torch.autocast(device.type, torch.bfloat16, enabled=config.precision == "bf16"):
            forward = choose_forward(trial, device, replace(config, compile=False))  # for one step each
            loss = forward(trial, x).float().square().mean()
        loss.backward()
        del kept, x, loss
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return False
    finally:
        del trial
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return True


@contextmanager
def explain_out_of_memory(config: TrainConfig, model: Model, device: torch.device) -> Iterator[None]:
    """Suggest a batch size that fits if a training step runs out of memory, in an error of one line."""
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        traceback.clear_frames(error.__traceback__)  # else the failed step's tensors stay in memory
        if device.type == "cuda":
            torch.cuda.empty_cache()
        asked, parts = int(config.batch_size), config.accumulate
        if torch.distributed.is_available() and torch.distributed.is_initialized():  # other ranks wait: no trials
            problem = f"out of memory with batch size {asked}, {config.accumulate} part(s) on each process"
            raise ValueError(f"{problem}: pass a smaller --batch-size, or --accumulate {2 * parts}") from None
        fits = parts * largest(lambda batch: fits_memory(model, config, device, batch * parts), asked // parts // 2)
        pieces = parts * -(-asked // fits)
        same = f", or --accumulate {pieces} to compute it in parts" if asked % pieces == 0 else ""
        raise ValueError(
            f"out of memory with batch size {asked}: {fits} fits. Pass --batch-size {fits} or --batch-size auto{same}"
        ) from None
