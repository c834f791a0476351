"""The training step that a benchmark times, for any library's model: the same loss and AdamW for all contenders."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.benchmarking.contenders import Setting
from vitreous.models.last_block import Compute
from vitreous.speed.cuda_graph import record

WARM_UP = 3  # steps before one is recorded: what is allocated on first use must not be part of it
STATES = 2
"""Numbers that AdamW keeps for each weight."""


def training_step(run: Compute, module: nn.Module, x: Tensor, setting: Setting) -> Callable[[], object]:
    """Make a call that trains a contender for one step on `x` `[b c H W]`; `run` computes `module`'s logits."""
    generator = torch.Generator().manual_seed(2)
    classes = torch.randint(setting.config.classes, (len(x),), generator=generator).to(x.device)  # [b]
    fused, cuda = x.device.type in ("cuda", "cpu"), x.device.type == "cuda"
    # so small that thousands of steps on noise change nothing
    optimiser = torch.optim.AdamW(module.parameters(), lr=1e-7, weight_decay=0.05, fused=fused, capturable=cuda)
    narrow = setting.precision != "fp32"

    def step() -> None:
        with torch.autocast(x.device.type, setting.dtype, enabled=narrow):
            loss = F.cross_entropy(run(x).float(), classes)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    return step


def recorded(step: Callable[[], object], device: torch.device) -> Callable[[], object]:
    """Record a contender's training step as a CUDA graph, so that Python launches no kernels."""

    def warm_up() -> None:
        for _ in range(WARM_UP):
            step()

    graph, _ = record(step, warm_up, device)

    def replay() -> object:
        graph.replay()
        return step  # the graph refers to its tensors by address: it must live as long

    return replay
