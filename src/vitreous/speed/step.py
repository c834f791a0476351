"""One training step for any library's model: forward, backward, AdamW. The same optimiser and loss for all."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.speed.contenders import Run, Setting

STATES = 2
"""AdamW's moments: numbers it keeps for each weight."""


def training_step(run: Run, module: nn.Module, x: Tensor, setting: Setting) -> Callable[[], object]:
    """A call that takes one step on `x` `[b c H W]` with made-up classes; `run` is `module`'s way to logits."""
    generator = torch.Generator().manual_seed(2)
    classes = torch.randint(setting.config.classes, (len(x),), generator=generator).to(x.device)  # [b]
    fused = x.device.type in ("cuda", "cpu")
    # a step so small that thousands of rounds on noise end where they began
    optimiser = torch.optim.AdamW(module.parameters(), lr=1e-7, weight_decay=0.05, fused=fused)
    narrow = setting.precision != "fp32"

    def step() -> None:
        with torch.autocast(x.device.type, setting.dtype, enabled=narrow):
            loss = F.cross_entropy(run(x).float(), classes)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    return step


def held(module: nn.Module, train: bool) -> int:
    """Bytes that a model holds between calls: its weights, and when it trains the optimiser's moments."""
    weights = sum(parameter.nbytes for parameter in module.parameters())
    learning = sum(parameter.nbytes for parameter in module.parameters() if parameter.requires_grad)
    return weights + (STATES * learning if train else 0)
