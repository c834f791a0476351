"""`write_run_page`: the folder of a run, finished or not, to one HTML file.

It shows what was trained and how well it does, the curves, the time to each accuracy, the inside of the model over
training (`pages/run_snapshots.py`) and every setting with its explanation. `pages/assets/run.js` draws it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache, partial
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import docstring_parser
from markupsafe import Markup

from vitreous.pages.payload import Payload
from vitreous.pages.render import Line, line_chart, render, scripted_page
from vitreous.pages.run_snapshots import snapshots_payload, views_of
from vitreous.runtime.files import short_name, write_atomic
from vitreous.training.config import TrainConfig
from vitreous.training.run_folder import RunFolder
from vitreous.training.snapshots import read_snapshots

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
    rows = folder.read_metrics()
    snapshots = snapshots_payload(read_snapshots(folder.snapshots), rows)
    text = run_page(config, rows, folder.read_result(), snapshots, folder.read_classes())
    return write_atomic(folder.path / RUN_PAGE, partial(Path.write_text, data=text, encoding="utf-8"))


def run_page(
    config: TrainConfig,
    rows: Sequence[Row],
    result: Mapping[str, Any] | None,
    snapshots: Payload | None,
    classes: int | None = None,
) -> str:
    """Render the page."""
    charts, views = curves(rows, config), [] if snapshots is None else views_of(snapshots)
    links = {chart.name: chart.title for chart in charts} | ({"time": "Time to accuracy"} if rows else {})
    links |= {view.name: view.title for view in views} | {"settings": "Settings"}
    moments = {} if snapshots is None else snapshots.header["views"]
    title = f"{short_name(config.model)} on {short_name(config.data)}"
    body = render(
        "run.html",
        title=title,
        summary=summary(config, rows),
        numbers=_numbers(config, rows, result),
        result=result,
        show_top5=classes is None or classes > 5,  # of five classes or fewer, each is among the first five
        links=links,
        charts=[(chart, chart.draw()) for chart in charts],
        reached=time_to_accuracy(rows),
        first_level=LEVELS[0],
        views=views,
        changing=[name for name, indices in moments.items() if len(set(indices)) > 1],
        settings=_settings(config),
        percent=percent,
        duration=duration,
    )
    payloads = [] if snapshots is None else [("run", snapshots)]
    return scripted_page(title, body, "run.js", payloads, ["run.css"])


def summary(config: TrainConfig, rows: Sequence[Row] = ()) -> str:
    """Describe the run in a line; the batch size is the one used, which is smaller if there were fewer images.

    >>> summary(TrainConfig(epochs=20, optimizer="muon", seed=3))
    'Trained from scratch for 20 epochs with muon, batches of 64, seed 3'
    >>> summary(TrainConfig(epochs=1), [{"batch_size": 21}])
    'Trained from scratch for 1 epoch with adamw, batches of 21, seed 0'
    """
    size = rows[-1].get("batch_size", config.batch_size) if rows else config.batch_size
    start = "Trained from scratch"
    if config.pretrained:
        start = "Fine-tuned" if config.policy == "full" else f"Fine-tuned ({config.policy})"
    length = f"{config.epochs} epoch{'s' * (config.epochs != 1)}"
    return f"{start} for {length} with {config.optimizer}, batches of {size}, seed {config.seed}"


def _numbers(config: TrainConfig, rows: Sequence[Row], result: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """The main numbers, in large type: accuracy, epochs, time."""
    last = next((row for row in reversed(rows) if "test_top1" in row), None)
    held_out = "held-out images" if not config.validation else "training images held out for validation"
    numbers = []
    if result is not None:
        numbers.append((percent(result["top1"]), f"accuracy on {result['images']:,} {held_out}"))
    elif last is not None:
        after = f"after epoch {last['epoch']}"
        numbers.append((percent(last["test_top1"]), f"accuracy on {last['test_images']:,} {held_out}, {after}"))
    done = rows[-1]["epoch"] if rows else 0
    epochs = f"{done:,}" if done == config.epochs else f"{done:,} of {config.epochs:,}"
    seconds = result["seconds"] if result else rows[-1]["seconds"] if rows else 0.0
    return [*numbers, (epochs, "epoch" if epochs == "1" else "epochs"), (duration(seconds), "in all")]


def time_to_accuracy(rows: Sequence[Row], levels: Sequence[float] = LEVELS) -> list[tuple[float, int, float]]:
    """When each level was first reached on held-out images: (level, epoch, seconds); others are left out.

    >>> time_to_accuracy([{"epoch": 1, "seconds": 2.0, "test_top1": 0.65}, {"epoch": 2, "seconds": 4.0}])
    [(0.5, 1, 2.0), (0.6, 1, 2.0)]
    """
    evaluated = [row for row in rows if "test_top1" in row]
    firsts = ((level, next((row for row in evaluated if row["test_top1"] >= level), None)) for level in levels)
    return [(level, row["epoch"], row["seconds"]) for level, row in firsts if row is not None]


# --- curves -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MetricChart:
    """Lines that belong on one chart, and the sentences below them."""

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
        return line_chart(self.lines, title=self.title, x_label="epoch", y_label=self.y_label, unit=self.unit, x_from=0)


def curves(rows: Sequence[Row], config: TrainConfig) -> list[MetricChart]:
    """Loss, accuracy and learning rate by epoch."""
    if not rows:
        return []
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
    """The epochs that have a number of this name, and the numbers.

    >>> column([{"epoch": 1, "loss": 2.0}, {"epoch": 2, "loss": 1.0, "top1": 0.5}], "top1", 100)
    ([2], [50.0])
    """
    known = [row for row in rows if isinstance(row.get(name), (int, float))]
    return [row["epoch"] for row in known], [factor * row[name] for row in known]


def _lines(rows: Sequence[Row], factor: float = 1.0, **names: str) -> list[Line]:
    lines = [Line(label.replace("_", " "), *column(rows, name, factor)) for label, name in names.items()]
    return [line for line in lines if line.x]


def _schedule(config: TrainConfig) -> str:
    """The learning rate's schedule, as the end of a sentence.

    >>> _schedule(TrainConfig(epochs=9, warmup=1))
    ': it grows for 1 epoch, then follows half a cosine.'
    >>> _schedule(TrainConfig(epochs=2, warmup=5))
    ': it grows all the time, because the run is no longer than its warm-up.'
    """
    if not config.warmup:
        return "."
    if config.warmup >= config.epochs:
        return ": it grows all the time, because the run is no longer than its warm-up."
    epochs = f"{config.warmup:g} epoch{'s' * (config.warmup != 1)}"
    return f": it grows for {epochs}, then follows half a cosine."


def _loss_beware(config: TrainConfig) -> str:
    mixed = config.mixup or config.cutmix
    if mixed or config.label_smoothing or config.augment != "none" or config.dropout or config.stochastic_depth:
        how = "mixed" if mixed else "augmented"
        return f"Training images are {how}, and so harder than held-out ones: their line may lie above. "
    return "The training line is a mean over the epoch, while the weights still moved. "


def _accuracy_beware(config: TrainConfig) -> str:
    if config.mixup or config.cutmix:
        return "Of a mixed training image, the class with the larger share counts: the line may stay below the other. "
    return "The training line is a mean over the epoch, while the weights still moved. "


# --- settings and words -----------------------------------------------------------------------------------------------


def _settings(config: TrainConfig) -> list[tuple[str, str, str, str]]:
    """Name, value, default and explanation of every setting."""
    names, default, docs = [field.name for field in fields(config)], TrainConfig(), config_docs()
    return [(name, spell(getattr(config, name)), spell(getattr(default, name)), docs.get(name, "")) for name in names]


@cache
def config_docs() -> dict[str, str]:
    """The docstring of each field of `TrainConfig`; empty if its source is not installed.

    >>> config_docs()["epochs"]
    'Passes over the training images.'
    """
    parsed = docstring_parser.parse_from_object(TrainConfig)
    return {field.arg_name: field.description or "" for field in parsed.params}


def percent(share: float) -> str:
    """A share of 1, to a hundredth of a percent.

    >>> percent(0.98765), percent(1.0)
    ('98.77 %', '100 %')
    """
    return f"{100 * share:.2f} %".replace("100.00", "100")


def duration(seconds: float) -> str:
    """A time in the usual units.

    >>> duration(4.26), duration(38.2), duration(260), duration(7270)
    ('4.3 s', '38 s', '4 min 20 s', '2 h 01 min')
    """
    if seconds < 59.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def spell(value: object) -> str:
    """A setting in words; local paths are cut to their last part, because pages and results may be shared.

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
    absolute = PurePosixPath(text).is_absolute() or PureWindowsPath(text).is_absolute() or text.startswith("~")
    return f"…/{short_name(text)}" if absolute else text
