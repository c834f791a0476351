"""`write_run_page`: the folder of a run, finished or not, to one HTML file: curves, mistakes, confusions, settings.

It shows what was trained and how well it does, the curves, the time to each accuracy, the mistakes on held-out images,
the inside of the model over training (`pages/run_snapshots.py`) and every setting with its explanation.
`pages/assets/run.js` draws it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import docstring_parser
from markupsafe import Markup

from vitreous.pages.payload import Payload
from vitreous.pages.render import Line, line_chart, render, scripted_page
from vitreous.pages.run_held_out import held_out_section, outputs_section
from vitreous.pages.run_snapshots import snapshots_payload, views_of
from vitreous.predict.scores import SCORES
from vitreous.runtime.files import short_name, write_text
from vitreous.runtime.wording import accuracy, duration
from vitreous.training.config import TrainConfig
from vitreous.training.evaluation import LISTED_ERRORS, mean_errors
from vitreous.training.held_out import HeldOutAnswers, HeldOutOutputs, read_answers
from vitreous.training.loop import TRAINING_FIGURES
from vitreous.training.run_folder import RunFolder
from vitreous.training.snapshots import read_snapshots
from vitreous.weights.names import PACKAGED

Row = Mapping[str, Any]
"""A line of `metrics.jsonl`."""
RUN_PAGE = "run.html"
LEVELS = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99)
"""Accuracies in the table of times."""


def write_run_page(folder: RunFolder | str | Path) -> Path:
    """Write `run.html` into a run's folder, from what is there so far."""
    folder = folder if isinstance(folder, RunFolder) else RunFolder(folder)
    config = folder.read_config()
    if config is None:
        raise FileNotFoundError(f"{folder.path} holds no run: expected {folder.config}")
    rows, result = folder.read_metrics(), folder.read_result()
    # a run that goes on has been evaluated since its last snapshot: the caption's accuracy would be another
    snapshots = snapshots_payload(read_snapshots(folder.snapshots), rows if result is not None else ())
    answers = read_answers(folder.held_out, next((row["epoch"] for row in reversed(rows) if "test_loss" in row), None))
    text = run_page(config, rows, result, snapshots, folder.read_classes(), answers)
    return write_text(folder.path / RUN_PAGE, text)


def run_page(
    config: TrainConfig,
    rows: Sequence[Row],
    result: Mapping[str, Any] | None,
    snapshots: Payload | None,
    classes: int | None = None,
    answers: HeldOutAnswers | HeldOutOutputs | None = None,
) -> str:
    """Render the page of a training run."""
    task = task_of(rows)
    charts, views = curves(rows, config, task), [] if snapshots is None else views_of(snapshots)
    timed = bool(rows) and task == "classify"
    links = {chart.name: chart.title for chart in charts} | ({"time": "Time to accuracy"} if timed else {})
    held_out = held_out_section(answers) if isinstance(answers, HeldOutAnswers) else None
    outputs = outputs_section(answers) if isinstance(answers, HeldOutOutputs) else None
    links |= {"mistakes": "Mistakes"} if held_out is not None else {}
    links |= {"held-out": "Held-out images"} if outputs is not None else {}
    links |= {view.name: view.title for view in views} | {"settings": "Settings"}
    moments = {} if snapshots is None else snapshots.header["views"]
    name = f"packaged {PACKAGED[config.model]}" if config.model in PACKAGED else short_name(config.model)
    title = f"{name} on {short_name(config.data)}"
    body = render(
        "run.html",
        title=title,
        summary=summary(config, rows),
        numbers=_numbers(config, rows, result, task, () if answers is None else answers.class_names),
        result=result,
        # of five classes or fewer, each is among the first five
        show_top5=task == "classify" and (classes is None or classes > 5),
        timed=timed,
        outputs=outputs,
        links=links,
        charts=[(chart, chart.draw()) for chart in charts],
        held_out=held_out,
        reached=time_to_accuracy(rows),
        first_level=LEVELS[0],
        views=views,
        changing=[name for name, indices in moments.items() if len(set(indices)) > 1],
        settings=_settings(config),
        accuracy=accuracy,
        duration=duration,
    )
    payloads = [] if snapshots is None else [("run", snapshots)]
    return scripted_page(title, body, "run.js", payloads, ["run.css"])


def summary(config: TrainConfig, rows: Sequence[Row] = ()) -> str:
    """Describe a training run in a line of its page; the batch size is the one used, which may be smaller.

    >>> summary(TrainConfig(epochs=20, optimizer="muon", seed=3), [{"epoch": 13}])
    'Trained from scratch for 13 of 20 epochs with muon, batches of 64, seed 3'
    >>> summary(TrainConfig(epochs=1), [{"epoch": 1, "batch_size": 21}])
    'Trained from scratch for 1 epoch with adamw, batches of 21, seed 0'
    """
    done = rows[-1]["epoch"] if rows else 0
    size = rows[-1].get("batch_size", config.batch_size) if rows else config.batch_size
    start = "Trained from scratch"
    if config.pretrained:
        start = "Fine-tuned" if config.policy == "full" else f"Fine-tuned ({config.policy})"
    length = f"{config.epochs} epoch{'s' * (config.epochs != 1)}"
    length = length if done == config.epochs else f"{done} of {length}"
    return f"{start} for {length} with {config.optimizer}, batches of {size}, seed {config.seed}"


def task_of(rows: Sequence[Row]) -> str:
    """Return which task the page of a run is about, by the figures in the run's metrics.

    >>> task_of([{"epoch": 1, "test_map": 0.5}]), task_of([{"epoch": 1, "test_mae": 2.0}]), task_of([])
    ('multilabel', 'regress', 'classify')
    >>> task_of([{"epoch": 1, "pixel_accuracy": 0.5}])
    'segment'
    """
    found = {name for row in rows for name in row}
    if any(name.startswith("test_mae") for name in found):  # without R² if all held-out images have the same numbers
        return "regress"
    names = {task: (f"test_{scores.main}", TRAINING_FIGURES[task]) for task, scores in SCORES.items()}
    return next((task for task, known in names.items() if found.intersection(known)), "classify")


def _numbers(
    config: TrainConfig, rows: Sequence[Row], result: Mapping[str, Any] | None, task: str, names: Sequence[str]
) -> list[tuple[str, str]]:
    """Write the main numbers of the run's page, in large type: accuracy or another figure, epochs, time."""
    scores = SCORES[task]
    last = next((row for row in reversed(rows) if "test_loss" in row), None)
    held_out = "held-out images" if not config.validation else "training images held out for validation"
    numbers = []
    found = result or {name.removeprefix("test_"): value for name, value in (last or {}).items()}
    if found:
        after = "" if result is not None or last is None else f", after epoch {last['epoch']}"
        if scores.main in found:
            shown = accuracy(found["top1"]) if task == "classify" else scores.format(found[scores.main])
            numbers.append((shown, f"{scores.title} on {found['images']:,} {held_out}{after}"))
        errors = list(mean_errors(found, names).items())[:LISTED_ERRORS]
        numbers += [(f"{error:.3g}", "mean absolute error" + f" of {name}" * bool(name)) for name, error in errors]
    done = rows[-1]["epoch"] if rows else 0
    epochs = f"{done:,}" if done == config.epochs else f"{done:,} of {config.epochs:,}"
    seconds = result["seconds"] if result else rows[-1]["seconds"] if rows else 0.0
    return [*numbers, (epochs, "epoch" if epochs == "1" else "epochs"), (duration(seconds), "in all")]


def time_to_accuracy(rows: Sequence[Row], levels: Sequence[float] = LEVELS) -> list[tuple[float, int, float]]:
    """List for the page of a run when it first reached each level of accuracy: (level, epoch, seconds).

    Held-out images count. Of several levels that one evaluation reached first, the highest stands for all.

    >>> time_to_accuracy([{"epoch": 1, "seconds": 2.0, "test_top1": 0.65}, {"epoch": 2, "seconds": 4.0}])
    [(0.6, 1, 2.0)]
    """
    evaluated = [row for row in rows if "test_top1" in row]
    firsts = ((level, next((row for row in evaluated if row["test_top1"] >= level), None)) for level in levels)
    highest = {row["epoch"]: (level, row["epoch"], row["seconds"]) for level, row in firsts if row is not None}
    return list(highest.values())


# --- curves -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MetricChart:
    """Lines of a run's metrics that belong on one chart, and the sentences below them."""

    name: str
    title: str
    lines: list[Line]
    y_label: str
    read: str
    """How to read it."""
    beware: str
    """What it does not show."""
    unit: str = ""

    def draw(self) -> Markup:
        """Return this chart of metrics as an element of the run's page."""
        return line_chart(self.lines, title=self.title, x_label="epoch", y_label=self.y_label, unit=self.unit, x_from=0)


FIGURE_CHARTS = {
    "multilabel": (
        "map",
        "Mean average precision",
        {"held_out": "test_map", "F1_at_0.5": "test_f1"},
        "For each label, images are ranked by its probability: 1 means that all that have it come first. The mean over "
        "labels; F1 counts the labels that are called present from a probability of 0.5 on.",
        "A mean over labels: a rare one may be much worse. Average precision does not depend on a threshold.",
    ),
    "regress": (
        "r2",
        "R²",
        {"held_out": "test_r2"},
        "The share of the numbers' spread that the model explains: 1 is perfect, 0 is as good as always answering "
        "their mean.",
        "Of several numbers, the mean. A few images that are far off can dominate it.",
    ),
    "segment": (
        "miou",
        "Mean IoU",
        {"held_out": "test_miou", "pixel_accuracy": "test_pixel_accuracy", "boundary_F": "test_boundary_f"},
        "IoU is the overlap of predicted and labelled pixels of a class, divided by their union; the mean over "
        "classes. A line of boundary F, where there is one, says how well edges agree, within 0.75 % of the "
        "image's diagonal.",
        "Measured on the image as the model sees it. Pixel accuracy is high where one class fills most of an image.",
    ),
}
"""Task → name, title, lines and texts of the chart that stands where the accuracy of classes is."""


def curves(rows: Sequence[Row], config: TrainConfig, task: str = "classify") -> list[MetricChart]:
    """Prepare the run page's charts: loss, accuracy (or the task's figures) and learning rate by epoch."""
    if not rows:
        return []
    if task in FIGURE_CHARTS:
        name, title, lines, read, beware = FIGURE_CHARTS[task]
        figure = MetricChart(name, title, _lines(rows, 1.0, **lines), title, read, beware)
        return [figure if chart.name == "accuracy" else chart for chart in curves(rows, config)]
    return [
        MetricChart(
            "loss",
            "Loss",
            _lines(rows, training="loss", held_out="test_loss"),
            "loss",
            "How far the model's answers are from the correct ones: lower is better. If the held-out line rises while "
            "the training line still falls, the model overfits.",
            _loss_beware(config) + "Small steps in the loss may be large ones in accuracy, and the other way round.",
        ),
        MetricChart(
            "accuracy",
            "Accuracy",
            _lines(rows, 100, training="top1", held_out="test_top1"),
            "top-1 accuracy",
            "The share of images whose own class is the first guess. The gap between the lines is what the model knows "
            "of its training images alone.",
            _accuracy_beware(config) + "One number for all classes: a rare class may be much worse.",
            " %",
        ),
        MetricChart(
            "learning-rate",
            "Learning rate",
            _lines(rows, learning_rate="learning_rate"),
            "learning rate",
            "The step size of an update, at the end of each epoch" + _schedule(config),
            "The plan, not the movement: how far the weights move depends on the optimiser and the gradients."
            + (" Earlier blocks move less than this." if config.layer_decay < 1 else ""),
        ),
    ]


def column(rows: Sequence[Row], name: str, factor: float = 1.0) -> tuple[list[float], list[float]]:
    """Select a metric's epochs and numbers for a chart of the run's page.

    >>> column([{"epoch": 1, "loss": 2.0}, {"epoch": 2, "loss": 1.0, "top1": 0.5}], "top1", 100)
    ([2], [50.0])
    """
    known = [row for row in rows if isinstance(row.get(name), (int, float))]
    return [row["epoch"] for row in known], [factor * row[name] for row in known]


def _lines(rows: Sequence[Row], factor: float = 1.0, **names: str) -> list[Line]:
    """Make the lines of a chart on the run's page from columns of its metrics."""
    lines = [Line(label.replace("_", " "), *column(rows, name, factor)) for label, name in names.items()]
    return [line for line in lines if line.x]


def _schedule(config: TrainConfig) -> str:
    """Describe the learning rate's schedule below its chart on the run's page.

    >>> _schedule(TrainConfig(epochs=9, warmup=1))
    ': it grows for 1 epoch, then follows half a cosine.'
    >>> _schedule(TrainConfig(epochs=9, warmup=1, schedule="linear"))
    ': it grows for 1 epoch, then falls along a straight line.'
    >>> _schedule(TrainConfig(epochs=2, warmup=5))
    ': it grows all the time, because the run is no longer than its warm-up.'
    """
    if not config.warmup:
        return "."
    if config.warmup >= config.epochs:
        return ": it grows all the time, because the run is no longer than its warm-up."
    epochs = f"{config.warmup:g} epoch{'s' * (config.warmup != 1)}"
    falls = "falls along a straight line" if config.schedule == "linear" else "follows half a cosine"
    return f": it grows for {epochs}, then {falls}."


def _loss_beware(config: TrainConfig) -> str:
    """Write below the run page's curve of the training loss what it does not show."""
    mixed = config.mixup or config.cutmix
    if mixed or config.label_smoothing or config.augment != "none" or config.dropout or config.stochastic_depth:
        how = "mixed" if mixed else "augmented"
        return f"Training images are {how}, and so harder than held-out ones: their line may lie above. "
    return "The training line is a mean over the epoch, while the weights still moved. "


def _accuracy_beware(config: TrainConfig) -> str:
    """Write below the run page's curve of the training accuracy what it does not show."""
    if config.mixup or config.cutmix:
        return "Of a mixed training image, the class with the larger share counts: the line may stay below the other. "
    return "The training line is a mean over the epoch, while the weights still moved. "


# --- settings and words -----------------------------------------------------------------------------------------------


def _settings(config: TrainConfig) -> list[tuple[str, str, str, str]]:
    """List name, value, default and explanation of every setting for the run's page."""
    names, default, docs = [field.name for field in fields(config)], TrainConfig(), config_docs()
    return [(name, spell(getattr(config, name)), spell(getattr(default, name)), docs.get(name, "")) for name in names]


@cache
def config_docs() -> dict[str, str]:
    """Read the explanation of each setting on the run's page from `TrainConfig`'s source; empty if not installed.

    >>> config_docs()["epochs"]
    'Passes over the training images.'
    """
    parsed = docstring_parser.parse_from_object(TrainConfig)
    return {field.arg_name: field.description or "" for field in parsed.params}


def spell(value: object) -> str:
    """Write a setting of a run for its page; local paths are cut to their last part, because pages may be shared.

    >>> spell(None), spell(True), spell((0.4, 1.0)), spell(0.001), spell("/home/me/images")
    ('none', 'yes', '0.4 to 1', '0.001', '…/images')
    """
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return " to ".join(spell(part) for part in value)
    if isinstance(value, float):
        return f"{value:g}"
    text = str(value)
    if text.startswith("timm:") and "@" in text:  # the weights of a timm classifier
        name, _, weights = text.partition("@")
        return f"{name}@{spell(weights)}"
    absolute = PurePosixPath(text).is_absolute() or PureWindowsPath(text).is_absolute() or text.startswith("~")
    return f"…/{short_name(text)}" if absolute else text
