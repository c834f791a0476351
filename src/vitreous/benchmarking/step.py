"""One training step for any library's model: forward, backward, AdamW. The same optimiser and loss for all."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.benchmarking.contenders import Run, Setting

WARM = 3  # steps before one is recorded: what is made on first use must not be part of it
STATES = 2
"""AdamW's moments: numbers it keeps for each weight."""


def training_step(run: Run, module: nn.Module, x: Tensor, setting: Setting) -> Callable[[], object]:
    """A call that takes one step on `x` `[b c H W]` with made-up classes; `run` is `module`'s way to logits."""
    generator = torch.Generator().manual_seed(2)
    classes = torch.randint(setting.config.classes, (len(x),), generator=generator).to(x.device)  # [b]
    fused, cuda = x.device.type in ("cuda", "cpu"), x.device.type == "cuda"
    # a step so small that thousands of rounds on noise end where they began
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
    """A step that has run before, as one CUDA graph: nothing is left for Python to start, kernel by kernel."""
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(WARM):
            step()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        step()

    def replay() -> object:
        graph.replay()
        return step  # the graph knows by address alone what this holds: it must live as long

    return replay


def held(module: nn.Module, train: bool) -> int:
    """Bytes that a model holds between calls: its weights, and when it trains the optimiser's moments."""
    weights = sum(parameter.nbytes for parameter in module.parameters())
    learning = sum(parameter.nbytes for parameter in module.parameters() if parameter.requires_grad)
    return weights + (STATES * learning if train else 0)
