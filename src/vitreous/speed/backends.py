"""`WAYS`: how a folded network may be run, each a builder: network, what to compute, an example batch → a call.

Which one is fastest depends on the machine, so `optimize` lets them race. On CUDA each way is recorded once and then
replayed as a whole (a CUDA graph): at small batches starting kernels one by one takes longer than running them.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.models.last_block import logits_only
from vitreous.speed import cpu as laid_out
from vitreous.speed import gpu as trimmed
from vitreous.speed.fused import has_triton

Compute = Callable[[Any, Tensor], Tensor]
"""Network and images → what is wanted of them: logits, features."""
Run = Callable[[Tensor], Tensor]
WARM = 3  # calls before a graph is recorded: what is tuned on first use must not be part of it


class Unfit(Exception):
    """Why a way is not for this network."""


def eager(network: nn.Module, compute: Compute, example: Tensor) -> Run:
    """As it is written."""
    return torch.no_grad()(lambda x: compute(network, x))


def compiled(network: nn.Module, compute: Compute, example: Tensor) -> Run:
    """By torch's compiler."""
    return torch.no_grad()(torch.compile(own_code(lambda x: compute(network, x)), fullgraph=True, dynamic=False))


def own_code(function: Run) -> Run:
    """The same function with a code object of its own: torch counts compilations by code, and stops at the ninth."""
    code = function.__code__.replace()
    return FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)


def frozen(network: nn.Module, compute: Compute, example: Tensor) -> Run:
    """Compiled with the weights as constants, which are then laid out as the machine's kernels like them."""
    from torch._inductor import config

    own = copy.deepcopy(network)
    inner = compiled(own, compute, example)

    def run(x: Tensor) -> Tensor:
        with config.patch(freezing=True):
            return inner(x)

    return run


def lean(network: nn.Module, compute: Compute, example: Tensor) -> Run:
    """Compiled, with fewer trips to memory (`lean.py`); in bf16 with GELU inside the products."""
    if compute is not logits_only or not trimmed.fits(network):
        raise Unfit("it is made for logits of GELU networks whose head reads the class token")
    inside = example.dtype == torch.bfloat16
    return compiled(network, lambda network, x: trimmed.lean(network, x, inside=inside), example)


def few(network: nn.Module, compute: Compute, example: Tensor) -> Run:
    """As `lean`, in bf16, with an attention kernel for few tokens, such as one image's."""
    if compute is not logits_only or not trimmed.fits(network) or not has_triton(example.device):
        raise Unfit("it is made for logits of GELU networks whose head reads the class token, with Triton")
    rows = len(example) * network.layout.tokens  # type: ignore[operator,union-attr]
    if example.dtype != torch.bfloat16 or rows > trimmed.FEW or not trimmed.fits_few(network):
        raise Unfit(f"it is made for bf16, up to {trimmed.FEW} tokens at once, and heads of 16 to 128 channels")
    return compiled(network, lambda network, x: trimmed.lean(network, x, few=True), example)


def packed(network: nn.Module, compute: Compute, example: Tensor) -> Run:
    """With weights laid out for the CPU's kernels, and GELU and residuals inside the products (`packed.py`)."""
    here = example.device.type == "cpu" and laid_out.available()
    if compute is not logits_only or not trimmed.fits(network) or not here:
        raise Unfit("it is made for logits of GELU networks on a CPU with oneDNN")
    return laid_out.packed(network, len(example))  # type: ignore[arg-type]


def recorded(build: Callable[[nn.Module, Compute, Tensor], Run]) -> Callable[[nn.Module, Compute, Tensor], Run]:
    """The same as a CUDA graph. What a call gives lies where the next call writes: copy it before."""

    def start(network: nn.Module, compute: Compute, example: Tensor) -> Run:
        run = build(network, compute, example)
        x = example.clone()
        side = torch.cuda.Stream(x.device)
        side.wait_stream(torch.cuda.current_stream(x.device))
        with torch.cuda.stream(side):
            for _ in range(WARM):
                run(x)
        torch.cuda.current_stream(x.device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        _forget_workspaces()  # of a graph before this one: they would be gone when that one is thrown away
        with torch.cuda.graph(graph, stream=side):  # torch's own would be the first device's
            y = run(x)
        _forget_workspaces()  # this one's are its own

        return Replay(run, graph, x, y)

    return start


@dataclass(frozen=True)
class Replay:
    """A recorded graph. It knows weights by their addresses alone: `run`, which holds them, must live as long."""

    run: Run
    graph: Any
    x: Tensor
    y: Tensor

    def __call__(self, given: Tensor) -> Tensor:
        self.x.copy_(given)
        self.graph.replay()
        return self.y


def _forget_workspaces() -> None:
    """Let matrix products take new memory to work in, where torch lets us say so."""
    getattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None)()


WAYS: dict[str, Callable[[nn.Module, Compute, Tensor], Run]] = {
    "eager": eager,
    "compiled": compiled,
    "frozen": frozen,
    "lean": lean,
    "packed": packed,
    "eager graph": recorded(eager),
    "compiled graph": recorded(compiled),
    "lean graph": recorded(lean),
    "few graph": recorded(few),
}


def usual(device: torch.device, precision: str) -> tuple[str, ...]:
    """The ways worth trying."""
    if device.type == "cuda":
        eight = precision in ("int8", "fp8")
        return ("compiled graph",) if eight else ("eager graph", "compiled graph", "lean graph", "few graph")
    return ("compiled",) if precision == "int8" else ("eager", "packed", "compiled", "frozen")
