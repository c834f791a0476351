"""Muon (Jordan et al., 2024): momentum for matrices, with the singular values of each update brought near 1.

The same update as `torch.optim.Muon` with `adjust_lr_fn="match_rms_adamw"`. It is written again because torch's goes
matrix by matrix, hundreds of small products a step, and takes the learning rate as a number, which a captured graph
would freeze. Here matrices of one shape are stacked and orthogonalised together, and the learning rate may be a tensor.
Sharded matrices (FSDP2) are gathered first, since a slice of a matrix has other singular vectors than the matrix.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from vitreous.training.parallel import full_tensor, local, shard_like, stack_like

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # a quintic that pulls singular values towards 1, steep at 0
STEPS = 5


def orthogonalise(matrices: Tensor) -> Tensor:
    """Bring the singular values of matrices `[n rows columns]` near 1 by Newton-Schulz iteration, in bf16."""
    x = matrices.bfloat16()
    wide = x.shape[-2] <= x.shape[-1]
    x = x if wide else x.mT
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    a, b, c = COEFFICIENTS
    for _ in range(STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x if wide else x.mT


class Muon(torch.optim.Optimizer):
    """The optimiser for matrices `[rows columns]`; norms, biases and embeddings belong to AdamW."""

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
        for group in self.param_groups:
            shapes: dict[torch.Size, list[Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    shapes.setdefault(parameter.shape, []).append(parameter)
            for shape, parameters in shapes.items():
                self._update(parameters, max(shape), group)

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
