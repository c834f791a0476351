"""Work through a study: train each run that is neither done nor held by another process, and predict its test images.

Any number of processes may work on one study: each takes the next run whose folder is free. A process that finds all
remaining runs held waits for them, and takes one over if its holder is killed; then it goes on to the table.

Shapes:  n images of the test set, in its order · m numbers of a row of scores · k labels or numbers
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.comparison.cost import Meter
from vitreous.comparison.study import Run, Study
from vitreous.data.image_dataset import ImageDataset
from vitreous.data.images import ImageError
from vitreous.models.last_block import logits_only
from vitreous.pages.run import write_run_page
from vitreous.predict.pipeline import check_finite, decode_batches, to_device
from vitreous.predict.scores import SCORES, class_rows
from vitreous.runtime.device import pick_device
from vitreous.runtime.files import write_arrays
from vitreous.runtime.wording import duration
from vitreous.training.listeners import Listener, ProgressDisplay
from vitreous.training.loop import train
from vitreous.training.run_folder import LockedError, RunFolder
from vitreous.training.setup import open_data
from vitreous.training.snapshots import SnapshotRecorder
from vitreous.weights.load import Model, load

if TYPE_CHECKING:
    from vitreous.training.config import TrainConfig
    from vitreous.training.setup import TrainingParts

PREDICTIONS = "predictions.npz"
BATCH = 64
PAUSE = 2.0
"""Seconds between two checks of runs that other processes hold."""


def finish_runs(
    study: Study,
    *,
    data_root: Path | None = None,
    listeners: Sequence[Listener] = (),
    say: Callable[[str], object] = lambda line: None,
) -> None:
    """Train the runs of a study until every one is done, by this process or another."""
    waiting = False
    took: list[float] = []
    while left := [run for run in study.runs() if not run.done]:
        progress = False
        for run in left:
            if run.done or held(run.folder):  # another process may have taken it meanwhile
                continue
            others = [each.folder for each in study.runs() if each.folder != run.folder]
            begun, remaining = time.monotonic(), [each for each in study.runs() if not each.done]
            number = f"run {len(study.runs()) - len(remaining) + 1} of {len(study.runs())}"
            if took:
                number += f", about {duration(sum(took) / len(took) * len(remaining))} left"
            try:
                finish(run, data_root, listeners, partial(_say_after, number, say), others)
            except LockedError:  # taken a moment before
                pass
            except ValueError as error:
                raise ValueError(f"{run.entrant.label}, seed {run.config.seed}: {error}") from error
            else:
                progress = True
                took.append(time.monotonic() - begun)
        if not progress:
            if not waiting:
                say(f"{len(left)} run(s) are held by other processes: waiting for them")
            waiting = True
            time.sleep(PAUSE)


def _say_after(prefix: str, say: Callable[[str], object], line: str) -> None:
    """Pass a message of a study's run on after the name of the run."""
    say(f"{prefix}: {line}")


def finish(
    run: Run,
    data_root: Path | None,
    listeners: Sequence[Listener],
    say: Callable[[str], object],
    others: Sequence[Path] = (),
) -> None:
    """Train a study's run if that is not done, then predict every test image; `others` are the other runs' folders."""
    folder = RunFolder(run.folder)
    if folder.read_result() is None:
        say(f"{run.entrant.label}, seed {run.config.seed}")
        meter = Meter(crowded=lambda: any(map(held, others)))
        train(run.config, run.folder, data_root=data_root, listeners=[*listeners, SnapshotRecorder(), meter])
    with folder.lock():
        if not run.done:
            _, tested = open_data(run.config, data_root)
            model = load(folder.model)
            answer = predict if tested.task == "classify" else predict_task
            predictions = answer(model, tested, device=run.config.device, precision=run.config.precision)
            write_run_page(folder)
            predictions.write(run.folder / PREDICTIONS)


def held(folder: Path) -> bool:
    """Return whether another process works on a study's run at this moment."""
    if not (folder / "config.json").is_file():
        return False
    try:
        with RunFolder(folder).lock():
            return False
    except LockedError:
        return True


@dataclass(frozen=True)
class Predictions:
    """A trained model's answer to every test image, so that no second pass is needed; arrays `[n]`."""

    label: NDArray[np.int64]
    """The image's class."""
    predicted: NDArray[np.int64]
    """The first guess."""
    probability: NDArray[np.float32]
    """The probability of the first guess."""

    @property
    def correct(self) -> NDArray[np.bool_]:
        return np.equal(self.predicted, self.label)

    def write(self, path: Path) -> Path:
        """Write the predictions of a study's run as an npz file, with `correct` as well for other readers."""
        arrays = {field.name: getattr(self, field.name) for field in fields(self)}
        return write_arrays(path, {**arrays, "correct": self.correct})

    @classmethod
    def read(cls, path: Path) -> Self:
        with np.load(path) as found:
            return cls(*(found[field.name] for field in fields(cls)))


@dataclass(frozen=True)
class TaskPredictions:
    """The scores of a trained model that answers test images with labels, numbers or masks (`predict/scores.py`)."""

    rows: NDArray[np.float32]
    """`[n m]`"""
    targets: NDArray[np.float32]
    """The images' labels or numbers `[n k]`; empty for masks, whose rows have counted them."""

    def write(self, path: Path) -> Path:
        """Write what one of a study's runs predicted as an npz file, for a task other than classify."""
        return write_arrays(path, {"rows": self.rows, "targets": self.targets})

    @classmethod
    def read(cls, path: Path) -> Self:
        with np.load(path) as found:
            return cls(found["rows"], found["targets"])


def predict(model: Model, data: ImageDataset, *, device: str = "auto", precision: str = "fp32") -> Predictions:
    """Predict the test images of a study's run in one pass, in training's precision; classes are the dataset's own."""
    scored = [
        (part, class_rows(logits, part.to(logits.device)).cpu())
        for logits, part in _outputs(model, data, device, precision)
    ]
    labels, rows = (torch.cat(parts).numpy() for parts in zip(*scored, strict=True))
    return Predictions(labels, rows[:, 0].astype(np.int64), rows[:, 1])


def predict_task(model: Model, data: ImageDataset, *, device: str = "auto", precision: str = "fp32") -> TaskPredictions:
    """Predict a run's test images, once it is trained, in one pass, for a task other than classify.

    A row of scores of each is kept.
    """
    score = SCORES[data.task].rows
    rows = [score(outputs, part.to(outputs.device)).cpu() for outputs, part in _outputs(model, data, device, precision)]
    targets = np.zeros((len(data), 0), np.float32) if data.targets is None else data.targets
    return TaskPredictions(torch.cat(rows).numpy().astype(np.float32), targets)


@torch.inference_mode()
def _outputs(model: Model, data: ImageDataset, device: str, precision: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Compute the outputs of a study's run for its test images, batch by batch, each with its targets."""
    chosen = pick_device(device)
    model = model.to(chosen).eval()
    problems: list[ImageError] = []
    for tensors, part in decode_batches(data, model.card.preprocess, BATCH, problems):
        half = precision == "bf16" and data.task != "regress"  # which would round numbers
        with torch.autocast(chosen.type, torch.bfloat16, enabled=half):
            outputs = logits_only(model, model.card.preprocess.normalise(to_device(tensors, chosen))).float()
        check_finite(outputs, model.card.name)
        yield outputs, part
    if problems:  # images are compared by their index: none may be missing
        raise problems[0]


class StudyDisplay(ProgressDisplay):
    """Show the progress bars of a study's runs in turn: a run's bars go when the next one begins."""

    def begin(self, parts: TrainingParts, config: TrainConfig, folder: RunFolder) -> None:
        for task in self.tasks.values():
            self.bars.remove_task(task)
        self.tasks.clear()
        super().begin(parts, config, folder)
