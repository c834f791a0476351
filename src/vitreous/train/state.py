"""All that a run is made of at one moment, as named tensors that can be copied out and copied back in place.

Copied in place, because a captured step holds the tensors' addresses. Data has no state here: order and augmentation
are functions of (seed, epoch, index), see `data/chance.py`.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from vitreous.weights.load import Model


@dataclass
class State:
    """Model, optimisers, average of weights, running totals, and where the run is."""

    model: Model
    optimisers: list[torch.optim.Optimizer]
    device: torch.device
    average: dict[str, Tensor] = field(default_factory=dict)
    """The moving average of the parameters that learn; empty where there is none."""
    totals: Tensor = field(default_factory=lambda: torch.zeros(4, dtype=torch.float64))
    """Of this epoch: loss × pictures, right first guesses, pictures; and the first update without a finite loss + 1."""
    epoch: int = 0
    step: int = 0
    """Updates done in this epoch."""
    seconds: float = 0.0
    """Time spent training, over all sittings."""

    def tensors(self) -> dict[str, Tensor]:
        """Everything by name, as it is: no copies."""
        found = {f"model/{name}": value for name, value in self.model.state_dict().items()}
        found |= {f"average/{name}": value for name, value in self.average.items()}
        for place, optimiser in enumerate(self.optimisers):
            members = [parameter for group in optimiser.param_groups for parameter in group["params"]]
            for i, parameter in enumerate(members):
                for name, value in optimiser.state[parameter].items():
                    if isinstance(value, Tensor):
                        found[f"optimiser/{place}/{i}/{name}"] = value
        return found | {"totals": self.totals}

    def finite(self) -> bool:
        """Whether every weight is still a number."""
        largest = torch._foreach_norm([weight.detach() for weight in self.model.parameters()], float("inf"))
        return bool(torch.isfinite(torch.stack(largest)).all())

    def copy(self) -> dict[str, Tensor]:
        """A copy of every tensor and of every random state, on the CPU."""
        saved = {name: value.detach().to("cpu", copy=True).contiguous() for name, value in self.tensors().items()}
        saved["random/cpu"] = torch.get_rng_state()
        if self.device.type == "cuda":
            saved["random/cuda"] = torch.cuda.get_rng_state(self.device)
        return saved

    @torch.no_grad()
    def restore(self, saved: dict[str, Tensor]) -> None:
        """Put a copy back in place; names that do not match on both sides are an error."""
        wanted = self.tensors()
        given = {name for name in saved if not name.startswith("random/")}
        if stray := sorted(given ^ set(wanted)):
            raise ValueError(f"the checkpoint is of another model or optimiser: {', '.join(stray[:4])}")
        for name, value in wanted.items():
            value.copy_(saved[name])
        torch.set_rng_state(saved["random/cpu"])
        if self.device.type == "cuda" and "random/cuda" in saved:
            torch.cuda.set_rng_state(saved["random/cuda"], self.device)
