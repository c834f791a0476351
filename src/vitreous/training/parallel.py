"""One model over several processes: DDP keeps a replica on each rank, FSDP2 a shard; sharded tensors gathered.

With FSDP2 parameters are `DTensor`s: a rank holds a slice of each (`local`), and `full_tensor` gathers one.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn.parallel import DistributedDataParallel

from vitreous.models.timm_classifier import TimmClassifier
from vitreous.models.vit import ViT
from vitreous.runtime.distributed import Rank, World
from vitreous.training.config import TrainConfig
from vitreous.training.model import compiles_parts
from vitreous.weights.load import Model


def is_sharded(config: TrainConfig, world: World) -> bool:
    """Return whether each rank holds only a shard of the weights."""
    return world.distributed and config.parallel == "fsdp"


def parallelise(module: nn.Module, model: Model, config: TrainConfig, world: World) -> nn.Module:
    """Wrap `module` with DDP or FSDP2, so that its gradients are the mean over all ranks; compile it if asked."""
    if is_sharded(config, world):
        return shard(module, model, config, world)
    if config.compile and not compiles_parts(model, config):
        module.compile(fullgraph=True, dynamic=False)
    if not world.distributed:
        return module
    device = next(model.parameters()).device
    device_ids = [device] if device.type == "cuda" else None
    return DistributedDataParallel(module, device_ids=device_ids, gradient_as_bucket_view=True)


def shard(module: nn.Module, model: Model, config: TrainConfig, world: World) -> nn.Module:
    """Shard `module` with FSDP2: each block is gathered when it runs, and the remaining weights with `module`.

    The model may be on the CPU: a block moves to the device when it is sharded, so that no GPU ever holds all of them.
    """
    assert world.mesh is not None
    half = config.precision == "bf16"
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if half else MixedPrecisionPolicy()
    for block in blocks(model):
        if config.compile:  # block by block: FSDP2's hooks between them cannot be compiled
            block.forward = torch.compile(block.forward, fullgraph=True, dynamic=False)
        fully_shard(block, mesh=world.mesh, mp_policy=policy)
    # reshard: otherwise a state dict read after a forward without a backward would hold gathered parameters
    fully_shard(module, mesh=world.mesh, mp_policy=policy, reshard_after_forward=True)
    return module


def blocks(model: Model) -> list[nn.Module]:
    """Return a model's modules that FSDP2 gathers one after the other."""
    if isinstance(model, ViT):
        return list(model.blocks)
    assert not isinstance(model, TimmClassifier)  # `build_model` refuses it
    return [block for layer in (model.layer1, model.layer2, model.layer3, model.layer4) for block in layer]


@torch.no_grad()
def average_buffers(buffers: list[Tensor], world: World) -> None:
    """Set a replica's buffers on all ranks to their mean: each rank's batch norms saw other images."""
    if not world.distributed or not buffers:
        return
    means = world.sum(torch.cat([local(buffer).flatten() for buffer in buffers])) / world.world_size
    for buffer, mean in zip(buffers, torch.split(means, [buffer.numel() for buffer in buffers]), strict=True):
        local(buffer).copy_(mean.view_as(buffer))


@contextmanager
def gradient_sync(module: nn.Module, now: bool) -> Iterator[None]:
    """Run a backward pass in the block; ranks exchange gradients `now`, or accumulate their own until a later pass."""
    if isinstance(module, DistributedDataParallel) and not now:
        with module.no_sync():
            yield
        return
    if isinstance(module, FSDPModule):
        module.set_requires_gradient_sync(now)
    yield


def local(tensor: Tensor) -> Tensor:
    """Return this rank's slice of a sharded tensor, or the tensor itself. Shares its memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def full_tensor(tensor: Tensor) -> Tensor:
    """Gather a tensor that FSDP2 has sharded, so that every rank has all of it; all ranks must call this."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def stack_like(locals_: list[Tensor], like: Tensor) -> Tensor:
    """Stack this rank's slices of several tensors, each sharded as `like`: the stack is sharded one axis further."""
    stack = torch.stack(locals_)
    if not isinstance(like, DTensor):
        return stack
    placements = [Shard(p.dim + 1) if isinstance(p, Shard) else p for p in like.placements]
    shape = torch.Size([len(locals_), *like.shape])
    strides = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(stack, like.device_mesh, placements, run_check=False, shape=shape, stride=strides)


def shard_like(tensor: Tensor, like: Tensor) -> Tensor:
    """Shard a tensor, equal on all ranks, as `like` is sharded."""
    if not isinstance(like, DTensor):
        return tensor
    replicated = DTensor.from_local(tensor, like.device_mesh, [Replicate()] * like.device_mesh.ndim, run_check=False)
    return replicated.redistribute(like.device_mesh, like.placements)


def seed_rank(seed: int, rank: Rank) -> None:
    """Seed torch differently on each rank, so that ranks draw different dropout masks."""
    torch.manual_seed((seed + rank.rank * 0x9E3779B97F4A7C15) % 2**63)
