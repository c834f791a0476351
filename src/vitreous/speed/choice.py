"""Which way was the fastest on this machine, kept in a small file so that the next start need not try."""

import hashlib
import json
import platform
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vitreous.runtime.files import write_json

AS_GOOD = 1.03
"""Ways that took no longer than this many times the fastest count as equal to it: the first of them is taken."""


def best(seconds: dict[str, float]) -> str:
    """The fastest way; among equals the one that was named first, so that noise does not choose.

    >>> best({"eager": 1.01, "compiled": 1.0, "frozen": 1.2})
    'eager'
    """
    return next(way for way, time in seconds.items() if time <= AS_GOOD * min(seconds.values()))


@dataclass(frozen=True)
class Choice:
    """One file with one answer."""

    path: Path

    def read(self) -> str | None:
        try:
            return str(json.loads(self.path.read_text(encoding="utf-8"))["way"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, way: str, seconds: dict[str, float]) -> None:
        with suppress(OSError):  # no room, no right, or on Windows a reader: it is found out again next time
            write_json(self.path, {"way": way, "seconds": seconds})


def choice(folder: Path | None, device: torch.device, *message: Any) -> Choice | None:
    """The file for this question on this machine; None without a folder to keep it in."""
    if folder is None:
        return None
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor()
    known = repr((*message, device.type, name, torch.get_num_threads(), torch.__version__))
    return Choice(folder / "ways" / f"{hashlib.sha256(known.encode()).hexdigest()[:24]}.json")


def processor() -> str:
    """What tells one CPU from another as far as speed goes."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
