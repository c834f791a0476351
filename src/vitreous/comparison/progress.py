"""A study as it is seen on a terminal: each run's bars in turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitreous.training.display import Display

if TYPE_CHECKING:
    from vitreous.training.assemble import Parts
    from vitreous.training.config import TrainConfig
    from vitreous.training.folder import RunFolder


class StudyDisplay(Display):
    """Takes the last run's bars down when the next one begins."""

    def begin(self, parts: Parts, config: TrainConfig, folder: RunFolder) -> None:
        for task in self.tasks.values():
            self.bars.remove_task(task)
        self.tasks.clear()
        super().begin(parts, config, folder)
