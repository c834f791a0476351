"""`train` and `finetune`: a recipe or a checkpoint and images in; `TrainingRun`, a folder with model and page, out."""

import json
import math
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Console

from vitreous.data.image_dataset import ImageDataset
from vitreous.pages.run import RUN_PAGE, write_run_page
from vitreous.predict.scores import SCORES
from vitreous.runtime.distributed import this_rank
from vitreous.runtime.files import spell_path
from vitreous.runtime.wording import count
from vitreous.training.config import TrainConfig
from vitreous.training.data_check import typical_image
from vitreous.training.evaluation import spell_errors
from vitreous.training.held_out import AnswerRecorder
from vitreous.training.listeners import Listener, ProgressDisplay, TensorBoard
from vitreous.training.loop import Stopped
from vitreous.training.loop import train as run_training
from vitreous.training.recipes import (
    FINETUNE,
    RECIPES,
    enough_from_scratch,
    find_recipe,
    finetune_config,
    scratch_config,
)
from vitreous.training.run_folder import RunFolder, free_folder, run_name
from vitreous.training.setup import TrainingParts, open_data
from vitreous.training.snapshots import SnapshotRecorder
from vitreous.training.stream_batches import train_stream
from vitreous.weights.load import Model, load
from vitreous.weights.runs import MODEL_FILE

PAGE_SECONDS = 10.0  # between two writings of the page of a run that goes on


@dataclass(frozen=True, repr=False)
class TrainingRun:
    """The result of `train` or `finetune`: a finished run with its folder, accuracy, page and model."""

    folder: Path
    config: TrainConfig
    result: dict[str, Any]
    """The content of `result.json`: figures of the task, loss and images of the test set, epochs, seconds, …; balanced
    and classes (name → recognised, images), if classes are of unequal size."""

    @property
    def task(self) -> str:
        """The task of a run that `vitreous.train` or `finetune` returned: classify, multilabel, regress or segment."""
        # numbers that are the same for all held-out images have no R²
        return next((task for task, scores in SCORES.items() if scores.main in self.result), "regress")

    @property
    def accuracy(self) -> float:
        """The figure that counts of what `train` or `finetune` taught: top-1, mean average precision, R² or mean IoU.

        R² is nan if all held-out images have the same numbers.
        """
        return float(self.result.get(SCORES[self.task].main, math.nan))

    def describe(self) -> str:
        """Describe in one line the run that the Python API's `train` or `finetune` returned."""
        scores = SCORES[self.task]
        held_out, epochs = count(self.result["images"], "held-out image"), count(self.result["epochs"], "epoch")
        if self.config.validation:
            held_out = f"{count(self.result['images'], 'training image')} held out for validation"
        if self.task == "classify":
            return f"{self.accuracy:.2%} of {held_out} after {epochs}"
        errors = spell_errors(self.result, self.class_names) if self.task == "regress" else ""
        score = f"{scores.title} {scores.format(self.accuracy)}" if scores.main in self.result else ""
        return f"{', '.join(filter(None, (score, errors)))} on {held_out} after {epochs}"

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes, labels, numbers or pixel classes that `train` or `finetune` taught."""
        described = json.loads((self.folder / MODEL_FILE).read_text(encoding="utf-8"))
        return tuple(described["vitreous"]["class_names"])

    @property
    def page(self) -> Path:
        """The HTML page that `vitreous.train` or `finetune` wrote: curves, mistakes, internals, settings."""
        return self.folder / RUN_PAGE

    @cached_property
    def model(self) -> Model:
        """The model that `train` or `finetune` trained, loaded when it is first used."""
        return load(self.folder / "model")

    def __repr__(self) -> str:
        return f"{self.config.model} on {self.config.data}: {self.describe()}\n{self.folder}"


class RunPageWriter(Listener):
    """Write a training run's page after the first epoch, now and then, and when the run ends."""

    def begin(self, parts: TrainingParts, config: TrainConfig, folder: RunFolder) -> None:
        self.folder, self.written = folder, -PAGE_SECONDS

    def epoch(self, row: dict[str, Any], parts: TrainingParts) -> None:
        if time.monotonic() - self.written >= PAGE_SECONDS:
            write_run_page(self.folder)
            self.written = time.monotonic()

    def end(self, result: dict[str, Any], folder: RunFolder) -> None:
        write_run_page(folder)


def train(
    recipe: str | TrainConfig | None = None,
    *,
    output: str | Path | None = None,
    data_root: str | Path | None = None,
    listeners: Sequence[Listener] = (),
    progress: bool = True,
    **settings: Any,
) -> TrainingRun:
    """Train a model by a recipe (`RECIPES`), with any field of `TrainConfig` changed in `settings`.

    Without a recipe, `data` chooses one, or model, image size and epochs that suit its images; without `data`, the
    recipe is `digits`. The run is written to `output`, by default `runs/RECIPE` or `runs/DATA`. Call it again with the
    same arguments after an interruption, and it resumes from the last checkpoint. `progress` shows progress bars on
    standard error.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = train("digits", epochs=1, warmup=0, device="cpu", output=f"{folder}/run", progress=False)
    ...     page, classes = run.page.name, run.model.config.classes
    >>> page, classes, run.result["images"], 0 < run.accuracy <= 1
    ('run.html', 10, 360, True)
    """
    remark = ""
    if isinstance(recipe, TrainConfig):
        config, name = recipe.with_settings(**settings), "run"
    elif recipe is None and (data := settings.get("data")) is not None and spell_path(data) not in RECIPES:
        name = run_name(data)
        config, remark = _suited_to(settings, data_root)
    else:
        name = recipe or str(settings.get("data", "digits"))
        chosen = find_recipe(name)
        config = chosen.config.with_settings(**settings)
        if not config.data:
            raise ValueError(f"{name} has no data of its own: pass --data, such as what `{chosen.make}` writes")
    return _run(config, name, output, data_root, listeners, progress, remark)


def _suited_to(settings: dict[str, Any], data_root: str | Path | None) -> tuple[TrainConfig, str]:
    """Complete a Python call of `vitreous.train` without a recipe by what suits the user's own images.

    Return the config, in which settings come first, and a line that says what was chosen.
    """
    asked = TrainConfig().with_settings(**settings)
    images, _ = open_data(asked, Path(data_root) if data_root is not None else None)
    if not isinstance(images, ImageDataset):  # a stream
        return asked, ""
    width, height, colour = typical_image(images)
    config = scratch_config(len(images), width, height, colour=colour, task=images.task)
    if {"model", "pretrained"} & set(settings):
        return replace(config, model=asked.model, image_size=None).with_settings(**settings), ""
    if len(images) < (needed := enough_from_scratch(width, height)):
        raise ValueError(
            f"{len(images):,} training images of about {width}×{height} px are too few to learn from scratch (from "
            f"about {needed:,} on): use vitreous finetune --data {settings['data']}, or name a recipe or --model"
        )
    config = config.with_settings(**settings)
    return config, (
        f"{len(images):,} training images of about {width}×{height} px: {config.model} at {config.image_size} px for "
        f"{count(config.epochs, 'epoch')} (--model, --image-size and --epochs change that)"
    )


def finetune(
    data: str | Path,
    model: str | Path | None = None,
    policy: str = FINETUNE.policy,
    *,
    output: str | Path | None = None,
    data_root: str | Path | None = None,
    listeners: Sequence[Listener] = (),
    progress: bool = True,
    **settings: Any,
) -> TrainingRun:
    """Fine-tune a checkpoint on a dataset or a folder of images with one sub-folder for each class.

    A table with several labels or numbers for each image, or a folder with `images/` and `masks/`, makes another task
    of it: `task` multilabel, regress or segment; by default the data decides. `model` is a name or path for `load`;
    None: the packaged model. `policy` says which parameters learn: full, head, attention, last:N or lora. Batch size
    and epochs follow the number of images. The run is written to `output`, by default `runs/DATA`. The other arguments
    are those of `train`.

    >>> import tempfile
    >>> brief = {"epochs": 1, "warmup": 0, "snapshots": 0, "device": "cpu", "progress": False}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     start = train("digits", output=f"{folder}/start", **brief)
    ...     run = finetune("digits", f"{folder}/start/model", "head", output=f"{folder}/tuned", **brief)
    >>> run.config.policy, run.config.learning_rate, run.result["epochs"]
    ('head', 0.003, 1)
    """
    settings |= {"data": data} | ({"model": str(model)} if model is not None else {})
    config = finetune_config(policy).with_settings(**settings)
    root = Path(data_root) if data_root is not None else None
    if config.stream:
        config = finetune_config(policy, task=train_stream(config, root).task).with_settings(**settings)
    else:
        images, held_out = open_data(config, root)
        config = finetune_config(policy, len(images), images.task, len(held_out)).with_settings(**settings)
    return _run(config, run_name(data), output, data_root, listeners, progress)


def _run(
    config: TrainConfig,
    name: str,
    output: str | Path | None,
    data_root: str | Path | None,
    listeners: Sequence[Listener],
    progress: bool,
    remark: str = "",
) -> TrainingRun:
    """Run what `vitreous.train` or `finetune` was called for in `output` or `runs/NAME`, with the usual listeners."""
    folder = RunFolder(output) if output is not None else free_folder(name, config)
    first, members = this_rank().first, list(listeners)
    display = ProgressDisplay(Console(stderr=True, highlight=False, soft_wrap=True)) if progress and first else None
    if display is not None:
        members.append(display)
    if config.snapshots:
        members.append(SnapshotRecorder())  # on every rank: all must provide their part of the weights
    if first:
        members += [TensorBoard()] if config.log == "tensorboard" else []
        members += [AnswerRecorder(), RunPageWriter()]
    try:
        with display or nullcontext():
            for member in members if remark else ():
                member.log(remark)
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
