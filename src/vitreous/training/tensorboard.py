"""A run's metrics as TensorBoard's event files, in the run's folder under `tensorboard/`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vitreous.training.listeners import Listener

if TYPE_CHECKING:
    from vitreous.training.assemble import Parts
    from vitreous.training.config import TrainConfig
    from vitreous.training.folder import RunFolder


class TensorBoard(Listener):
    """Every number of metrics.jsonl that may change, by epoch."""

    def __init__(self) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ImportError("--log tensorboard needs TensorBoard: pip install 'vitreous[log]'") from error
        self.create = SummaryWriter
        self.writer: Any = None

    def begin(self, parts: Parts, config: TrainConfig, folder: RunFolder) -> None:
        self.writer = self.create(str(folder.path / "tensorboard"), purge_step=parts.state.epoch + 1)

    def epoch(self, row: dict[str, Any], parts: Parts) -> None:
        for name, value in row.items():
            kind, name = ("test", name.removeprefix("test_")) if name.startswith("test_") else ("train", name)
            if name not in ("epoch", "images", "batch_size"):
                self.writer.add_scalar(f"{name}/{kind}", value, row["epoch"])
        self.writer.flush()

    def end(self, result: dict[str, Any], folder: RunFolder) -> None:
        self.writer.close()
