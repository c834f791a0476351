"""Parameters to optimisers: groups by weight decay and depth, AdamW, Adam, SGD or Muon, and the average of weights."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from vitreous.training.config import TrainConfig
from vitreous.training.muon import Muon
from vitreous.training.policies import decays, depth_of
from vitreous.weights.load import Model


def build(model: Model, config: TrainConfig) -> list[torch.optim.Optimizer]:
    """One optimiser, or for Muon two: the matrices of the blocks, and AdamW for the rest.

    Each group's `lr` is a tensor on the device, so that a captured step follows the schedule; `scale` is its share.
    """
    learning = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    if not learning:
        raise ValueError(f"policy {config.policy} leaves nothing to learn in this model: choose another")
    device = learning[0][1].device
    if config.optimizer != "muon":
        return [_create(config.optimizer, _groups(learning, config, model, device), config)]
    matrices = [(n, p) for n, p in learning if p.dim() == 2 and n.startswith("blocks.")]
    taken = {name for name, _ in matrices}
    rest = [(n, p) for n, p in learning if n not in taken]
    optimisers = [_create("muon", _groups(matrices, config, model, device), config)] if matrices else []
    return [*optimisers, _create("adamw", _groups(rest, config, model, device), config)] if rest else optimisers


def _groups(
    parameters: Iterable[tuple[str, nn.Parameter]], config: TrainConfig, model: Model, device: torch.device
) -> list[dict[str, Any]]:
    depth = model.config.depth
    found: dict[tuple[float, bool], list[nn.Parameter]] = {}
    for name, parameter in parameters:
        scale = config.layer_decay ** (depth + 1 - depth_of(name, depth))
        found.setdefault((scale, decays(name, parameter)), []).append(parameter)
    return [
        {
            "params": members,
            "scale": scale * config.learning_rate,
            "lr": torch.zeros((), device=device),
            "weight_decay": config.weight_decay if decaying and config.optimizer != "adam" else 0.0,
        }
        for (scale, decaying), members in found.items()
    ]


def _create(kind: str, groups: list[dict[str, Any]], config: TrainConfig) -> torch.optim.Optimizer:
    device = groups[0]["params"][0].device
    if kind == "muon":
        return Muon(groups)
    if kind == "sgd":
        # torch's fused SGD reads a tensor of a step size where it lies; the plain one asks the host for its value
        # (and knows nothing of sharded parameters)
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


def materialise(optimisers: list[torch.optim.Optimizer]) -> None:
    """Make every tensor of the optimisers' states, at zero, without moving a weight.

    A step of length zero on gradients of zero does it; what it counted is set back.
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


def set_rates(optimisers: list[torch.optim.Optimizer], factor: Tensor) -> None:
    """Put every group's step size to its share of `factor`, a tensor on the device."""
    for optimiser in optimisers:
        for group in optimiser.param_groups:
            torch.mul(factor, group["scale"], out=group["lr"])
