"""Optimisers (AdamW, Adam, SGD, Muon) and their states, groups by weight decay and depth, learning-rate schedule."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from itertools import cycle
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from vitreous.runtime.device import cpu_multiplies
from vitreous.training.config import TrainConfig
from vitreous.training.parallel import full_tensor, local, shard_like, stack_like
from vitreous.weights.load import Model


def build_optimisers(model: Model, config: TrainConfig) -> list[torch.optim.Optimizer]:
    """Build one optimiser, or two for Muon: Muon for the matrices of the blocks, AdamW for the rest.

    Each group's `lr` is a tensor on the device, so that a captured step follows the schedule; `scale` is the group's
    largest learning rate.
    """
    trainable = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    if not trainable:
        raise ValueError(f"policy {config.policy} has no trainable parameters in this model: choose another")
    device = trainable[0][1].device
    if config.optimizer != "muon":
        return [_create(config.optimizer, _groups(trainable, config, model, device), config)]
    matrices = [(n, p) for n, p in trainable if p.dim() == 2 and n.startswith("blocks.")]
    taken = {name for name, _ in matrices}
    rest = [(n, p) for n, p in trainable if n not in taken]
    optimisers = [_create("muon", _groups(matrices, config, model, device), config)] if matrices else []
    return [*optimisers, _create("adamw", _groups(rest, config, model, device), config)] if rest else optimisers


def _groups(
    parameters: Iterable[tuple[str, nn.Parameter]], config: TrainConfig, model: Model, device: torch.device
) -> list[dict[str, Any]]:
    """Group parameters by learning rate (layer decay) and weight decay."""
    depth = getattr(model.config, "depth", 0)  # a timm classifier's layers all learn alike
    found: dict[tuple[float, bool], list[nn.Parameter]] = {}
    for name, parameter in parameters:
        scale = config.layer_decay ** (depth + 1 - layer_index(name, depth))
        found.setdefault((scale, has_weight_decay(name, parameter)), []).append(parameter)
    return [
        {
            "params": members,
            "scale": scale * config.learning_rate,
            "lr": torch.zeros((), device=device),
            "weight_decay": config.weight_decay if decaying and config.optimizer != "adam" else 0.0,
        }
        for (scale, decaying), members in found.items()
    ]


def layer_index(name: str, depth: int) -> int:
    """Return the layer of a parameter: 0 for the embedding, 1 for the first block, `depth` + 1 for the head.

    >>> layer_index("pos_embed", 12), layer_index("blocks.0.attn.qkv.weight", 12), layer_index("head.weight", 12)
    (0, 1, 13)
    """
    if match := re.match(r"blocks\.(\d+)\.", name):
        return int(match[1]) + 1
    early = ("patch_embed", "cls_token", "dist_token", "reg_token", "pos_embed", "norm_pre", "shared_rel_pos")
    return 0 if name.startswith(early) else depth + 1


def has_weight_decay(name: str, parameter: nn.Parameter) -> bool:
    """Return whether weight decay applies to a parameter: to matrices; not to norms, biases, tokens and positions."""
    return parameter.dim() > 1 and not name.endswith(("_token", "pos_embed", "latent", "bias_table"))


def _create(kind: str, groups: list[dict[str, Any]], config: TrainConfig) -> torch.optim.Optimizer:
    """Create an optimiser by its name."""
    device = groups[0]["params"][0].device
    if kind == "muon":
        return Muon(groups)
    if kind == "sgd":
        # torch's fused SGD reads the learning-rate tensor on the device; the plain one reads it on the host.
        # The fused one does not support sharded parameters.
        fused = device.type in ("cuda", "cpu") and not isinstance(groups[0]["params"][0], DTensor)
        return torch.optim.SGD(groups, momentum=0.9, nesterov=True, fused=fused, foreach=None if fused else False)
    fused = device.type in ("cuda", "cpu")
    return torch.optim.AdamW(
        groups,
        betas=(0.9, config.beta2),
        fused=fused,
        capturable=device.type == "cuda",
        foreach=None if fused else False,
    )


def create_states(optimisers: list[torch.optim.Optimizer]) -> None:
    """Create every tensor of the optimisers' states before a step, filled with zeros, without changing a weight.

    A step with learning rate 0 on zero gradients does this; step counters are set back.
    """
    for optimiser in optimisers:
        for group in optimiser.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.zeros_like(parameter)
            group["lr"].zero_()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        for state in optimiser.state.values():
            for value in state.values():
                if isinstance(value, Tensor):
                    value.zero_()


def set_learning_rates(optimisers: list[torch.optim.Optimizer], factor: Tensor) -> None:
    """Set every group's learning rate to `factor`, a tensor on the device, times the group's scale."""
    for optimiser in optimisers:
        for group in optimiser.param_groups:
            torch.mul(factor, group["scale"], out=group["lr"])


def rate_factor(step: int, steps: int, warmup: int = 0, final: float = 0.0, schedule: str = "cosine") -> float:
    """Return the learning rate at `step` of `steps` as a share of the largest: linear warm-up, then the schedule.

    It starts above 0 and ends at `final`. A function of the step alone has no state to restore when a run resumes
    (torch's `SequentialLR` keeps one).

    >>> [round(rate_factor(step, 8, warmup=2), 2) for step in range(8)]
    [0.5, 1.0, 1.0, 0.93, 0.75, 0.5, 0.25, 0.07]
    """
    if step < warmup:
        return (step + 1) / warmup
    done = (step - warmup) / max(1, steps - warmup)
    left = 1 - min(done, 1.0) if schedule == "linear" else 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))
    return final + (1 - final) * left


STREAMS = 4  # on which updates run at the same time: a block's matrices have four shapes


@cache
def _side_streams(device: torch.device) -> list[torch.cuda.Stream]:
    """Create the CUDA streams of an optimiser's updates; always the same few, since each keeps memory of its own."""
    return [torch.cuda.Stream(device) for _ in range(STREAMS)]


def run_at_once(calls: Sequence[Callable[[], None]], device: torch.device) -> None:
    """Run an optimiser's updates that do not depend on each other at the same time, on a few CUDA streams.

    Their products are too small for a whole GPU. A CUDA graph records the streams too.
    """
    here, streams = torch.cuda.current_stream(device), _side_streams(device)
    for stream in streams:
        stream.wait_stream(here)
    for call, stream in zip(calls, cycle(streams), strict=False):
        with torch.cuda.stream(stream):
            call()
    for stream in streams:
        here.wait_stream(stream)


# --- Muon -------------------------------------------------------------------------------------------------------------

QUINTIC = (3.4445, -4.7750, 2.0315)  # a quintic that pulls singular values towards 1, steep at 0
NEWTON_SCHULZ_STEPS = 5


def orthogonalise(matrices: Tensor) -> Tensor:
    """Bring the singular values of Muon's matrices `[n rows columns]` near 1 by Newton-Schulz iteration, in bf16.

    A CPU without instructions for bf16 would take 25 times as long as in fp32, which it computes in.
    """
    x = matrices.bfloat16() if matrices.device.type != "cpu" or cpu_multiplies(torch.bfloat16) else matrices.float()
    wide = x.shape[-2] <= x.shape[-1]
    x = x if wide else x.mT
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    a, b, c = QUINTIC
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x if wide else x.mT


class Muon(torch.optim.Optimizer):
    """Muon (Jordan et al., 2024): momentum for matrices, with the singular values of each update brought near 1.

    Norms, biases and embeddings belong to AdamW. The same update as `torch.optim.Muon` with
    `adjust_lr_fn="match_rms_adamw"`. It is written again because torch's goes matrix by matrix, hundreds of small
    products a step, and takes the learning rate as a number, which a captured graph would freeze. Here matrices of one
    shape are stacked and orthogonalised together, and the learning rate may be a tensor. Sharded matrices (FSDP2) are
    gathered first, since a slice of a matrix has other singular vectors than the matrix.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.dim() != 2:
                    raise ValueError(f"Muon takes matrices only, got a parameter of shape {list(parameter.shape)}")

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        updates: list[Callable[[], None]] = []
        for group in self.param_groups:
            shapes: dict[torch.Size, list[Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    shapes.setdefault(parameter.shape, []).append(parameter)
            updates += [partial(self._update, found, max(shape), group) for shape, found in shapes.items()]
        first = self.param_groups[0]["params"][0]
        if first.is_cuda and not isinstance(first, DTensor):
            run_at_once(updates, first.device)
        else:
            for update in updates:
                update()

    def _update(self, parameters: list[Tensor], longest: int, group: dict[str, Any]) -> None:
        """Update matrices of one shape by Muon, all at once."""
        gradients = [local(parameter.grad) for parameter in parameters if parameter.grad is not None]
        for parameter in parameters:
            if "momentum_buffer" not in self.state[parameter]:
                self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        buffers = [local(self.state[parameter]["momentum_buffer"]) for parameter in parameters]
        torch._foreach_lerp_(buffers, gradients, 1 - group["momentum"])
        ahead = torch._foreach_lerp(gradients, buffers, group["momentum"])  # Nesterov
        stack = stack_like(list(ahead), parameters[0])  # [n rows columns]
        updates = local(shard_like(orthogonalise(full_tensor(stack)), stack))
        held = [local(parameter) for parameter in parameters]
        torch._foreach_mul_(held, 1 - group["lr"] * group["weight_decay"])
        # the update has the root mean square that AdamW's would have at this learning rate
        scaled = list((updates.to(held[0].dtype) * (0.2 * longest**0.5 * group["lr"])).unbind(0))
        torch._foreach_sub_(held, scaled)
