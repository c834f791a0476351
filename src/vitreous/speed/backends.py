"""`BACKENDS`: ways to run a network (eager, compiled, frozen, fused, packed, CUDA graphs), built, timed, remembered.

Each is a builder: folded network, `Forward`, example batch → a callable.

Which one is fastest depends on the machine, so they are timed. On CUDA each backend is recorded once and then
replayed as a whole (a CUDA graph): at small batches launching kernels one by one takes longer than running them.
"""

import copy
import hashlib
import json
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.models.last_block import Compute, OutputKind, features_only, logits_only
from vitreous.runtime.device import cpu_name, quieten_compiler, synchronize
from vitreous.runtime.files import write_json
from vitreous.speed.cuda_graph import clear_workspaces, record
from vitreous.speed.fused_forward import SMALL_BATCH, fits, fits_own_attention, fused_forward, packed_forward
from vitreous.speed.fused_ops import has_triton
from vitreous.speed.onednn import onednn_available
from vitreous.speed.token_merging import merging

ROUNDS = 5  # timings of each backend
AS_FAST = 1.03
"""Backends that take at most this many times the fastest one's time count as equally fast: the first is taken."""
WARM_UP = 3  # calls before a graph is recorded: what is tuned on first use must not be part of it


class UnsupportedBackend(Exception):
    """The reason why a backend cannot run a network."""


@dataclass(frozen=True)
class Forward:
    """What a backend computes: logits or features, with or without token merging."""

    output: OutputKind = "logits"
    merge: int = 0
    """Tokens to merge in each block (`token_merging.py`)."""

    @property
    def function(self) -> Callable[[Any, Tensor], Tensor]:
        """What a backend computes, in plain torch: network and images `[b c H W]` → output."""
        if self.merge:
            return merging(self.merge, self.output)
        return logits_only if self.output == "logits" else features_only


Builder = Callable[[nn.Module, Forward, Tensor], Compute]


def eager(network: nn.Module, forward: Forward, example: Tensor) -> Compute:
    """Build the backend that runs the plain code."""
    function = forward.function
    return torch.no_grad()(lambda x: function(network, x))


def compiled(network: nn.Module, forward: Forward, example: Tensor) -> Compute:
    """Build the backend that compiles the plain code by `torch.compile`."""
    return _compiled(network, forward.function)


def _compiled(network: nn.Module, function: Callable[[Any, Tensor], Tensor]) -> Compute:
    """Compile a function of a network by `torch.compile`."""
    quieten_compiler()
    own = _own_code(lambda x: function(network, x))
    return torch.no_grad()(torch.compile(own, fullgraph=True, dynamic=False))


def _own_code(function: Any) -> Compute:
    """Copy a backend's function, with its own code object: torch counts compilations by it, and stops at the ninth."""
    code = function.__code__.replace()
    return FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)


def frozen(network: nn.Module, forward: Forward, example: Tensor) -> Compute:
    """Build the backend compiled with weights as constants, which the compiler packs for the machine's kernels."""
    from torch._inductor import config

    own = copy.deepcopy(network)
    inner = _compiled(own, forward.function)

    def compute(x: Tensor) -> Tensor:
        with config.patch(freezing=True):
            return inner(x)

    return compute


def fused(network: nn.Module, forward: Forward, example: Tensor) -> Compute:
    """Build the backend that compiles `fused_forward`, with fewer memory accesses; in bf16 GELU is in the products."""
    if forward.merge or not fits(network):
        raise UnsupportedBackend("it needs a GELU network whose head reads the class token, without token merging")
    output, fused_gelu = forward.output, example.dtype == torch.bfloat16
    return _compiled(network, lambda network, x: fused_forward(network, x, output=output, fused_gelu=fused_gelu))


def small_batch(network: nn.Module, forward: Forward, example: Tensor) -> Compute:
    """Build the backend `fused` in bf16 with an attention kernel for small batches, such as one image."""
    if forward.merge or not fits(network) or not has_triton(example.device):
        raise UnsupportedBackend("it needs a GELU network whose head reads the class token, and Triton")
    rows = len(example) * network.layout.tokens  # type: ignore[operator,union-attr]
    if example.dtype != torch.bfloat16 or rows > SMALL_BATCH or not fits_own_attention(network):
        limits = f"up to {SMALL_BATCH} tokens at once, and heads of 16 to 128 channels"
        raise UnsupportedBackend(f"it needs bf16, {limits}")
    output = forward.output
    return _compiled(network, lambda network, x: fused_forward(network, x, output=output, own_attention=True))


def packed(network: nn.Module, forward: Forward, example: Tensor) -> Compute:
    """Build the backend `packed`, which runs `packed_forward` on a CPU.

    Weights are packed, and GELU and residuals are inside the products.
    """
    if forward.merge or not fits(network) or example.device.type != "cpu" or not onednn_available(example.dtype):
        raise UnsupportedBackend("it needs a GELU network whose head reads the class token, on a CPU with oneDNN")
    return packed_forward(network, len(example), forward.output)  # type: ignore[arg-type]


def recorded(build: Builder) -> Builder:
    """Make another backend of one by its builder: the same, but replayed as a whole on CUDA.

    It is recorded as a CUDA graph. The next call overwrites the returned tensor: copy it before.
    """

    def start(network: nn.Module, forward: Forward, example: Tensor) -> Compute:
        compute = build(network, forward, example)
        x = example.clone()

        def warm_up() -> None:
            for _ in range(WARM_UP):
                compute(x)
            clear_workspaces()  # of an earlier graph: they would be freed together with it

        graph, y = record(lambda: compute(x), warm_up, x.device)
        clear_workspaces()  # this graph's are its own
        return Replay(compute, graph, x, y)

    return start


@dataclass(frozen=True)
class Replay:
    """A backend recorded as a CUDA graph. It refers to weights by address: `compute`, which holds them, stays too."""

    compute: Compute
    graph: Any
    x: Tensor
    y: Tensor

    def __call__(self, given: Tensor) -> Tensor:
        self.x.copy_(given)
        self.graph.replay()
        return self.y


BACKENDS: dict[str, Builder] = {
    "eager": eager,
    "compiled": compiled,
    "frozen": frozen,
    "fused": fused,
    "packed": packed,
    "eager graph": recorded(eager),
    "compiled graph": recorded(compiled),
    "fused graph": recorded(fused),
    "small-batch graph": recorded(small_batch),
}


def default_backends(device: torch.device, precision: str) -> tuple[str, ...]:
    """List the backends worth trying on a device."""
    if device.type == "cuda":
        if precision in ("int8", "fp8"):
            return ("compiled graph",)
        return ("eager graph", "compiled graph", "fused graph", "small-batch graph")
    return ("compiled",) if precision == "int8" else ("eager", "packed", "compiled", "frozen")


# --- choosing the fastest ---------------------------------------------------------------------------------------------


def build_backends(
    network: nn.Module, forward: Forward, example: Tensor, wanted: tuple[str, ...], notes: list[str]
) -> dict[str, Compute]:
    """Build every backend that works on this machine; the reasons of those that fail are added to `notes`."""
    built: dict[str, Compute] = {}
    for name in wanted:
        try:
            built[name] = BACKENDS[name](network, forward, example)
            built[name](example)
        except UnsupportedBackend:
            built.pop(name, None)
        except Exception as error:  # compilers raise many classes of errors
            built.pop(name, None)
            notes.append(f"{name} was left out: {type(error).__name__}: {' '.join(str(error).split())[:160]}")
    return built


def time_backends(built: dict[str, Compute], example: Tensor) -> dict[str, float]:
    """Time backends on an example batch, in turns, and return the median seconds of each.

    A busy machine then slows all alike.
    """
    times: dict[str, list[float]] = {name: [] for name in built}
    for _ in range(ROUNDS):
        for name, compute in built.items():
            start = time.perf_counter()
            compute(example)
            synchronize(example.device)
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(each) for name, each in times.items()}


def fastest(seconds: dict[str, float]) -> str:
    """Compare backends by their seconds: return the fastest, or the first of those that are about as fast.

    Noise then does not decide.

    >>> fastest({"eager": 1.01, "compiled": 1.0, "frozen": 1.2})
    'eager'
    """
    return next(name for name, time in seconds.items() if time <= AS_FAST * min(seconds.values()))


@dataclass(frozen=True)
class BackendChoice:
    """A file that remembers which backend was the fastest for a model on this machine."""

    path: Path

    def read(self) -> str | None:
        """Read which backend was the fastest here; None if none was remembered."""
        try:
            return str(json.loads(self.path.read_text(encoding="utf-8"))["backend"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, backend: str, seconds: dict[str, float]) -> None:
        """Remember the fastest backend, with the seconds of all."""
        with suppress(OSError):  # no space, no permission, or on Windows an open file: it is timed again next time
            write_json(self.path, {"backend": backend, "seconds": seconds})


def backend_choice(folder: Path | None, device: torch.device, *question: Any) -> BackendChoice | None:
    """Return the file that keeps the choice among backends for a model on this machine; None without a cache folder."""
    if folder is None:
        return None
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name()
    key = repr((*question, device.type, name, torch.get_num_threads(), torch.__version__))
    return BackendChoice(folder / "backends" / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.json")
