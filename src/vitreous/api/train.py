"""`train` and `finetune`: a recipe or a checkpoint and images in; a run's folder with its model and page out."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Console

from vitreous.pages.run import RUN_PAGE, write_run_page
from vitreous.runtime.distributed import this_rank
from vitreous.training.config import TrainConfig
from vitreous.training.listeners import Listener, ProgressDisplay, TensorBoard
from vitreous.training.loop import Stopped
from vitreous.training.loop import train as run_training
from vitreous.training.recipes import FINETUNE, find_recipe, finetune_config
from vitreous.training.run_folder import RunFolder, free_folder
from vitreous.training.snapshots import SnapshotRecorder
from vitreous.weights.load import Model, load


@dataclass(frozen=True, repr=False)
class TrainingRun:
    """A finished run."""

    folder: Path
    config: TrainConfig
    result: dict[str, Any]
    """The content of `result.json`: top1, top5, loss and images of the test set, epochs, seconds, …"""

    @property
    def accuracy(self) -> float:
        """Top-1 accuracy on the held-out images."""
        return float(self.result["top1"])

    @property
    def page(self) -> Path:
        """The HTML page with curves, snapshots of the internals, and settings."""
        return self.folder / RUN_PAGE

    @cached_property
    def model(self) -> Model:
        """The trained model, loaded when it is first used."""
        return load(self.folder / "model")

    def __repr__(self) -> str:
        result, config = self.result, self.config
        return (
            f"{config.model} on {config.data}: {self.accuracy:.2%} of {result['images']:,} held-out images after "
            f"{result['epochs']} epochs\n{self.folder}"
        )


class RunPageWriter(Listener):
    """Write the run's page when the run ends."""

    def end(self, result: dict[str, Any], folder: RunFolder) -> None:
        write_run_page(folder)


def train(
    recipe: str | TrainConfig = "digits",
    *,
    output: str | Path | None = None,
    data_root: str | Path | None = None,
    listeners: Sequence[Listener] = (),
    progress: bool = True,
    **settings: Any,
) -> TrainingRun:
    """Train a model by a recipe (`RECIPES`), with any field of `TrainConfig` changed in `settings`.

    The run is written to `output`, by default `runs/RECIPE`. Call it again with the same arguments after an
    interruption, and it resumes from the last checkpoint. `progress` shows progress bars on standard error.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = train("digits", epochs=1, warmup=0, device="cpu", output=f"{folder}/run", progress=False)
    ...     page, classes = run.page.name, run.model.config.classes
    >>> page, classes, run.result["images"], 0 < run.accuracy <= 1
    ('run.html', 10, 360, True)
    """
    base, name = (recipe, "run") if isinstance(recipe, TrainConfig) else (find_recipe(recipe).config, recipe)
    return _run(base.with_settings(**settings), name, output, data_root, listeners, progress)


def finetune(
    data: str | Path,
    model: str | Path,
    policy: str = FINETUNE.policy,
    *,
    output: str | Path | None = None,
    data_root: str | Path | None = None,
    listeners: Sequence[Listener] = (),
    progress: bool = True,
    **settings: Any,
) -> TrainingRun:
    """Fine-tune a checkpoint on a dataset or a folder of images with one sub-folder for each class.

    `policy` says which parameters learn: full, head, attention, last:N or lora. The run is written to `output`, by
    default `runs/MODEL-POLICY`. The other arguments are those of `train`.

    >>> import tempfile
    >>> brief = {"epochs": 1, "warmup": 0, "snapshots": 0, "device": "cpu", "progress": False}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     start = train("digits", output=f"{folder}/start", **brief)
    ...     run = finetune("digits", f"{folder}/start/model", "head", output=f"{folder}/tuned", **brief)
    >>> run.config.policy, run.config.learning_rate, run.result["epochs"]
    ('head', 0.003, 1)
    """
    config = finetune_config(policy).with_settings(**{"data": str(data), "model": str(model), **settings})
    name = f"{Path(config.model).stem}-{config.policy.replace(':', '')}"
    return _run(config, name, output, data_root, listeners, progress)


def _run(
    config: TrainConfig,
    name: str,
    output: str | Path | None,
    data_root: str | Path | None,
    listeners: Sequence[Listener],
    progress: bool,
) -> TrainingRun:
    """Run a config in `output` or `runs/NAME`, with the listeners that every run has."""
    folder = RunFolder(output) if output is not None else free_folder(name, config)
    first, members = this_rank().first, list(listeners)
    display = ProgressDisplay(Console(stderr=True, highlight=False, soft_wrap=True)) if progress and first else None
    if display is not None:
        members.append(display)
    if config.snapshots:
        members.append(SnapshotRecorder())  # on every rank: all must provide their part of the weights
    if first:
        members += [TensorBoard()] if config.log == "tensorboard" else []
        members.append(RunPageWriter())
    try:
        with display or nullcontext():
            root = Path(data_root) if data_root is not None else None
            result = run_training(config, folder.path, data_root=root, listeners=members)
    except Stopped as stopped:
        if folder.config.is_file():
            stopped.folder = folder.path
            if first:
                with folder.explain_errors():
                    write_run_page(folder)
        raise
    return TrainingRun(folder.path, config, result)
