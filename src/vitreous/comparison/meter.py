"""What a run cost beside time: on which device it ran and how much energy that took, kept in its `meter.json`.

A run that went on in another sitting has an energy that nobody read in whole: it is not told, rather than told wrong.
The same where two runs of a study were on the go at once, since the counter is the whole GPU's.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from vitreous.comparison.energy import joules
from vitreous.runtime.device import device_name
from vitreous.runtime.files import write_json
from vitreous.training.listeners import Listener

if TYPE_CHECKING:
    from vitreous.training.assemble import Parts
    from vitreous.training.config import TrainConfig
    from vitreous.training.folder import RunFolder

FILE = "meter.json"


class Meter(Listener):
    """Reads the counter when the first update is about to come and when the run is done."""

    def __init__(self, crowded: Callable[[], bool] = lambda: False) -> None:
        self.crowded = crowded
        self.device = torch.device("cpu")
        self.before: float | None = None
        self.why = ""
        self.learning = 0

    def begin(self, parts: Parts, config: TrainConfig, folder: RunFolder) -> None:
        self.device = parts.state.device
        self.learning = sum(p.numel() for p in parts.model.parameters() if p.requires_grad)
        self.before = joules(self.device)
        self.why = "" if self.before is not None else "the device does not tell"
        if parts.state.epoch or parts.state.step:
            self.why = "the run was interrupted and went on"
        else:
            self._look_around()

    def epoch(self, row: dict[str, Any], parts: Parts) -> None:
        self._look_around()

    def end(self, result: dict[str, Any], folder: RunFolder) -> None:
        after = joules(self.device)
        self._look_around()
        used = after - self.before if after is not None and self.before is not None and not self.why else None
        message = {"device": device_name(self.device), "learning": self.learning, "joules": used, "why": self.why}
        write_json(folder.path / FILE, message)

    def _look_around(self) -> None:
        if not self.why and self.crowded():
            self.why = "another run used the device at the same time"


def read_meter(folder: Path) -> dict[str, Any]:
    """What a run's `meter.json` holds; where there is none, nothing is told."""
    path = folder / FILE
    if not path.is_file():
        return {"device": "", "learning": None, "joules": None, "why": "the run ended before it could be written"}
    return json.loads(path.read_text(encoding="utf-8"))
