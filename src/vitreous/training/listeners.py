"""Who hears of a run while it goes on: a display, TensorBoard, the recorder of views. None of them can change it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitreous.training.assemble import Parts
    from vitreous.training.config import TrainConfig
    from vitreous.training.folder import RunFolder


class Listener:
    """Hears everything and does nothing; override what is of interest."""

    def say(self, text: str) -> None:
        """A remark, one line."""

    def decoding(self, what: str, total: int, done: int) -> None:
        """So many images of a set are decoded."""

    def begin(self, parts: Parts, config: TrainConfig, folder: RunFolder) -> None:
        """All is in place and the first update comes next, or, after a restart, the next one."""

    def step(self, parts: Parts, seconds: float) -> None:
        """Twice a second or so."""

    def epoch(self, row: dict[str, Any], parts: Parts) -> None:
        """An epoch is done; `row` is its line of metrics.jsonl."""

    def end(self, result: dict[str, Any], folder: RunFolder) -> None:
        """The run is done and everything but the page is written."""


class Everyone(Listener):
    """Passes on to all."""

    def __init__(self, members: Sequence[Listener]) -> None:
        self.members = members
        for name in ("say", "decoding", "begin", "step", "epoch", "end"):
            setattr(self, name, self._passing(name))

    def _passing(self, name: str) -> Callable[..., None]:
        def tell(*arguments: Any) -> None:
            for member in self.members:
                getattr(member, name)(*arguments)

        return tell
