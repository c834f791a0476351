"""One model over several processes, by torch's own engines: DDP keeps it whole on each, FSDP2 keeps a part on each.

With FSDP2 parameters are `DTensor`s: a rank holds a slice of each (`local`), and `whole` puts one together.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn.parallel import DistributedDataParallel

from vitreous.models.vit import ViT
from vitreous.runtime.distributed import World
from vitreous.training.config import TrainConfig
from vitreous.weights.load import Model


def is_sharded(config: TrainConfig, world: World) -> bool:
    """Whether each rank keeps a part of the weights alone."""
    return world.distributed and config.parallel == "fsdp"


def spread(module: nn.Module, model: Model, config: TrainConfig, world: World) -> nn.Module:
    """`module`, which computes with `model`, so that its gradients are those of all ranks' images together."""
    if not world.distributed:
        if config.compile:
            module.compile(fullgraph=True, dynamic=False)
        return module
    if is_sharded(config, world):
        return shard(module, model, config, world)
    device = next(model.parameters()).device
    places = [device] if device.type == "cuda" else None
    if config.compile:
        module.compile(fullgraph=True, dynamic=False)
    return DistributedDataParallel(module, device_ids=places, gradient_as_bucket_view=True)


def shard(module: nn.Module, model: Model, config: TrainConfig, world: World) -> nn.Module:
    """FSDP2: each block is put together when it is its turn, and what is left with `module` as a whole.

    The model may lie on the CPU: a block goes to the device when it is sharded, so that no GPU ever holds all of them.
    """
    assert world.mesh is not None
    half = config.precision == "bf16"
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if half else MixedPrecisionPolicy()
    for block in blocks(model):
        if config.compile:  # block by block: what FSDP2 does between them cannot be compiled
            block.forward = torch.compile(block.forward, fullgraph=True, dynamic=False)
        fully_shard(block, mesh=world.mesh, mp_policy=policy)
    # reshard: a state dict that is read after a forward alone would hold whole parameters otherwise
    fully_shard(module, mesh=world.mesh, mp_policy=policy, reshard_after_forward=True)
    return module


def blocks(model: Model) -> list[nn.Module]:
    """The parts that are put together one after the other."""
    if isinstance(model, ViT):
        return list(model.blocks)
    return [block for layer in (model.layer1, model.layer2, model.layer3, model.layer4) for block in layer]


@torch.no_grad()
def even(buffers: list[Tensor], world: World) -> None:
    """Give all ranks the mean of what each has: running statistics of batch norms, each of its own images."""
    if not world.distributed or not buffers:
        return
    together = world.sum(torch.cat([local(buffer).flatten() for buffer in buffers])) / world.world_size
    for buffer, mean in zip(buffers, together.split([buffer.numel() for buffer in buffers]), strict=True):
        local(buffer).copy_(mean.view_as(buffer))


@contextmanager
def synchronised(module: nn.Module, now: bool) -> Iterator[None]:
    """Compute a backward pass; ranks exchange gradients `now`, or keep adding up their own until a later pass."""
    if isinstance(module, DistributedDataParallel) and not now:
        with module.no_sync():
            yield
        return
    if isinstance(module, FSDPModule):
        module.set_requires_gradient_sync(now)
    yield


def local(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor: the slice of one that is sharded, else all of it. Shares its memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor, on every rank; all have to ask for it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def stacked(locals_: list[Tensor], like: Tensor) -> Tensor:
    """What this rank holds of several tensors, each sharded as `like` is, as their stack: sharded one axis further."""
    stack = torch.stack(locals_)
    if not isinstance(like, DTensor):
        return stack
    places = [Shard(p.dim + 1) if isinstance(p, Shard) else p for p in like.placements]
    shape = torch.Size([len(locals_), *like.shape])
    strides = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(stack, like.device_mesh, places, run_check=False, shape=shape, stride=strides)


def sliced(tensor: Tensor, like: Tensor) -> Tensor:
    """A whole tensor, the same on all ranks, shared out as `like` is."""
    if not isinstance(like, DTensor):
        return tensor
    everywhere = DTensor.from_local(tensor, like.device_mesh, [Replicate()] * like.device_mesh.ndim, run_check=False)
    return everywhere.redistribute(like.device_mesh, like.placements)
