"""All that a run is made of at one moment, as named tensors that can be copied out and copied back in place.

What the ranks of a run have in common (`tensors`, each rank perhaps a slice of them) and what each has of its own
(`own`: random state and running totals) are kept apart.

Copied in place, because a captured step holds the tensors' addresses. Data has no state here: order and augmentation
are functions of (seed, epoch, index), see `data/counter_random.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from vitreous.runtime.distributed import Rank
from vitreous.training.parallel import local, sliced
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
    """Of this epoch: loss × images, right first guesses, images; and the first update without a finite loss + 1."""
    epoch: int = 0
    step: int = 0
    """Updates done in this epoch."""

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
        return found

    def own(self) -> dict[str, Tensor]:
        """What belongs to this process alone, as copies on the CPU."""
        found = {"totals": self.totals.to("cpu", copy=True), "random/cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            found["random/cuda"] = torch.cuda.get_rng_state(self.device)
        return found

    def finite(self) -> bool:
        """Whether every weight that this rank holds is still a number."""
        held = [local(weight.detach()) for weight in self.model.parameters()]
        largest = torch._foreach_norm([weight for weight in held if weight.numel()], float("inf"))
        return bool(torch.isfinite(torch.stack(largest)).all())

    def copy(self) -> dict[str, Tensor]:
        """A copy of everything in this process, on the CPU."""
        held = {name: local(value).detach() for name, value in self.tensors().items()}
        return {name: value.to("cpu", copy=True).contiguous() for name, value in held.items()} | self.own()

    @torch.no_grad()
    def put_back(self, copied: dict[str, Tensor]) -> None:
        """Undo what happened since `copy`, in place."""
        for name, value in self.tensors().items():
            local(value).copy_(copied[name])
        self._take_own(copied)

    @torch.no_grad()
    def restore(self, saved: dict[str, Tensor]) -> None:
        """Put whole tensors in place, each rank its slice; names that do not match on both sides are an error."""
        wanted = self.tensors()
        self.check({name for name in saved if name != "totals" and not name.startswith("random/")})
        for name, value in wanted.items():
            local(value).copy_(local(sliced(saved[name].to(value.device), value)))

    def check(self, names: set[str]) -> None:
        """Refuse a checkpoint that holds other tensors than ours."""
        if stray := sorted(names ^ set(self.tensors())):
            raise ValueError(f"the checkpoint is of another model or optimiser: {', '.join(stray[:4])}")

    @torch.no_grad()
    def take_part(self, own: Sequence[dict[str, Tensor]], place: Rank, seed: int) -> None:
        """Go on with what this rank had of its own; where there were more or fewer ranks, the first one takes it up."""
        if len(own) == place.world_size:
            self._take_own(own[place.rank])
            return
        self._take_own(own[0])
        together = torch.stack([each["totals"].double() for each in own]).sum(dim=0)
        self.totals.copy_(together if place.first else torch.zeros(4))
        if not place.first:
            seed_rank(seed, place)

    def _take_own(self, saved: dict[str, Tensor]) -> None:
        self.totals.copy_(saved["totals"])
        torch.set_rng_state(saved["random/cpu"])
        if self.device.type == "cuda" and "random/cuda" in saved:
            torch.cuda.set_rng_state(saved["random/cuda"], self.device)


def seed_rank(seed: int, place: Rank) -> None:
    """Let each rank draw its own dropout: it sees other images than the rest."""
    torch.manual_seed((seed + place.rank * 0x9E3779B97F4A7C15) % 2**63)
