"""Where a model runs and in which number format, from the words a user writes."""

import torch

from vitreous.runtime.distributed import this_rank

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
MOST_LANES = 8
"""Batches at once at the most: each takes memory for what is between its layers."""


def pick_device(name: str = "auto") -> torch.device:
    """`auto` takes the best there is: a CUDA GPU, Apple's, else the CPU.

    Where `torchrun` started several processes, each takes the GPU of its number on the machine, for `auto` and `cuda`.

    >>> pick_device("cpu")
    device(type='cpu')
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    if name == "cuda" and this_rank().world_size > 1:
        name = f"cuda:{this_rank().local_rank}"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"device must be auto, cpu, cuda, cuda:N or mps, got {name!r}") from error
    if device.type == "cuda":
        count = torch.cuda.device_count()
        if not torch.cuda.is_available() or (device.index or 0) >= count:
            raise ValueError(f"{name} is not there: torch sees {count} CUDA device(s); try --device cpu")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ValueError("mps is not there: torch sees no Apple GPU; try --device cpu")
    return device


def pick_dtype(precision: str) -> torch.dtype:
    """The number format of a precision's name."""
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, got {precision!r}")
    return PRECISIONS[precision]


def settle(device: torch.device) -> None:
    """Wait until the device has done all it was given; a CPU has, when a call returns."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def most_lanes() -> int:
    """How many batches a CPU is best asked for at once, where there are many: one a thread."""
    return min(MOST_LANES, torch.get_num_threads())


def device_name(device: torch.device) -> str:
    """A device as a reader knows it: a GPU's name, or how many threads of the CPU compute."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{threads} CPU thread{'s' * (threads > 1)}" if device.type == "cpu" else device.type


def lacks_compiler(device: torch.device) -> bool:
    """Whether `torch.compile` cannot work for want of a C++ compiler, which it calls for a CPU's kernels."""
    if device.type != "cpu":
        return False
    try:
        from torch._inductor.cpp_builder import get_cpp_compiler

        get_cpp_compiler()
    except Exception:  # torch has a class of its own for this, and it has moved before
        return True
    return False
