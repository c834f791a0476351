"""How much energy a GPU has used since its driver was loaded, as NVIDIA's management library tells; others do not."""

import ctypes
from functools import lru_cache
from typing import Any

import torch

LIBRARY = "libnvidia-ml.so.1"


def joules(device: torch.device) -> float | None:
    """The device's counter in joules, to be read before and after; None where the device does not tell.

    It counts the whole GPU, whoever uses it.

    >>> joules(torch.device("cpu")) is None
    True
    """
    if device.type != "cuda" or (library := _library()) is None:
        return None
    properties: Any = torch.cuda.get_device_properties(device)
    handle, used = ctypes.c_void_p(), ctypes.c_ulonglong()
    name = f"GPU-{getattr(properties, 'uuid', '')}".encode()  # torch's number of a GPU need not be the driver's
    if library.nvmlDeviceGetHandleByUUID(name, ctypes.byref(handle)) != 0:
        return None
    if library.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(used)) != 0:  # before Volta
        return None
    return used.value / 1000  # it counts in millijoules


@lru_cache(maxsize=1)
def _library() -> Any:
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError:
        return None
    return library if library.nvmlInit_v2() == 0 else None
