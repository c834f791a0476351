"""Record a call as a CUDA graph, which replays its kernels without Python: backends, training steps, contenders."""

from collections.abc import Callable
from typing import TypeVar

import torch

Output = TypeVar("Output")


def record(
    call: Callable[[], Output], warm_up: Callable[[], object], device: torch.device
) -> tuple[torch.cuda.CUDAGraph, Output]:
    """Warm up on a stream of the device, then record `call` there; return the graph and what `call` returned.

    The graph refers to tensors by address: whatever `call` reads or writes must live as long.
    """
    stream = torch.cuda.Stream(device)  # torch's default stream for recording would be the first device's
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        warm_up()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        output = call()
    return graph, output


def clear_workspaces() -> None:
    """Let matrix products allocate new workspaces outside a recorded CUDA graph, if this torch has a call for it."""
    getattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None)()
