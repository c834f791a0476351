"""Choose devices and precisions by name (`auto`, `bf16`); what hardware has: cores, lanes, a compiler, energy used."""

import ctypes
import logging
import os
import platform
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from vitreous.runtime.distributed import this_rank
from vitreous.runtime.wording import count

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
MAX_LANES = 8
"""Limit on batches computed in parallel on a CPU: each needs memory for its activations."""
NVML = "libnvidia-ml.so.1"


def pick_device(name: str | torch.device = "auto") -> torch.device:
    """Return the device of a name; `auto` takes a CUDA GPU, else Apple's GPU, else the CPU.

    If `torchrun` started several processes, `auto` and `cuda` give each the GPU of its local rank.

    >>> pick_device("cpu")
    device(type='cpu')
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    if name == "cuda" and this_rank().world_size > 1:
        name = f"cuda:{this_rank().local_rank}"
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"device must be auto, cpu, cuda, cuda:N or mps, got {name!r}") from error
    if device.type not in ("cpu", "cuda", "mps"):
        raise ValueError(f"device must be auto, cpu, cuda, cuda:N or mps, got {str(name)!r}")
    if device.type == "cuda":
        count = torch.cuda.device_count()
        if not torch.cuda.is_available() or (device.index or 0) >= count:
            raise ValueError(f"{name} is not available: torch sees {count} CUDA device(s); try --device cpu")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ValueError("mps is not available: torch sees no Apple GPU; try --device cpu")
    return device


def pick_dtype(precision: str) -> torch.dtype:
    """Return the dtype of a precision's name."""
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, got {precision!r}")
    return PRECISIONS[precision]


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished its queued work; a CPU has none."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def max_lanes() -> int:
    """Return how many lanes a CPU device has for batches side by side: one for each thread, up to `MAX_LANES`."""
    return min(MAX_LANES, torch.get_num_threads())


def device_name(device: torch.device) -> str:
    """Return a device's readable name: the GPU's model, or the number of CPU threads in use."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return count(torch.get_num_threads(), "CPU thread") if device.type == "cpu" else device.type


def cpu_multiplies(dtype: torch.dtype) -> bool:
    """Return whether the CPU has instructions for products of `dtype` (bf16: AVX-512); without them they are slow."""
    narrow = {torch.bfloat16: "bf16", torch.float16: "fp16"}.get(dtype)
    return narrow is None or bool(getattr(torch.ops.mkldnn, f"_is_mkldnn_{narrow}_supported", bool)())


def cpu_name() -> str:
    """Return the CPU's model name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def cpu_vendor() -> str:
    """Return the CPU's vendor by the processor's own name for it, such as "AuthenticAMD"; empty if it is unknown."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = platform.processor()  # Windows: "AMD64 Family 25 Model 33 Stepping 0, AuthenticAMD"
    return next((vendor for vendor in ("AuthenticAMD", "GenuineIntel") if vendor in text), "")


def cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def joules(device: torch.device) -> float | None:
    """Read how much energy a device has used, in joules, from its own counter; None if it has none.

    >>> joules(torch.device("cpu")) is None
    True
    """
    if device.type != "cuda" or (library := _nvml()) is None:
        return None
    properties: Any = torch.cuda.get_device_properties(device)
    handle, used = ctypes.c_void_p(), ctypes.c_ulonglong()
    name = f"GPU-{getattr(properties, 'uuid', '')}".encode()  # torch's index of a GPU need not be the driver's
    if library.nvmlDeviceGetHandleByUUID(name, ctypes.byref(handle)) != 0:
        return None
    if library.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(used)) != 0:  # before Volta
        return None
    return used.value / 1000  # it counts in millijoules


@lru_cache(maxsize=1)
def _nvml() -> Any:
    """Load NVIDIA's management library, which counts the energy that a GPU uses.

    Through `ctypes`: two calls need no package.
    """
    try:
        library = ctypes.CDLL(NVML)
    except OSError:
        return None
    return library if library.nvmlInit_v2() == 0 else None


def lacks_compiler(device: torch.device) -> bool:
    """Return whether a device is a CPU on a machine without the C++ compiler that `torch.compile` needs there."""
    if device.type != "cpu":
        return False
    try:
        from torch._inductor.cpp_builder import get_cpp_compiler

        get_cpp_compiler()
    except Exception:  # torch has an own class for this, and has moved it before
        return True
    return False


def quieten_compiler() -> None:
    """Silence torch's warning that no GPU device was found, on a machine with CUDA's tools alone.

    torch logs it when it compiles for a CPU.
    """
    logging.getLogger("torch.utils.cpp_extension").addFilter(_is_of_use)


def _is_of_use(record: logging.LogRecord) -> bool:
    """Return whether torch's log record says something else than that this machine has no GPU device."""
    return not str(record.msg).startswith("No CUDA runtime is found")
