"""`write_run_page`: a run's folder, finished or not, to one HTML file that tells all of it.

What was trained and how well it does; curves; how soon it was how good; the inside of the model over training, moment
by moment; every setting with its explanation. `pages/run_curves.py` and `pages/run_inside.py` say what is drawn, and
`pages/assets/run.js` draws it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import partial
from html import escape
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from vitreous.pages.interactive import NO_SCRIPT, scripted_page
from vitreous.pages.line_chart import line_chart
from vitreous.pages.page import short
from vitreous.pages.payload import Payload
from vitreous.pages.run_curves import Curves, Row, curves
from vitreous.pages.run_inside import VIEWS, View, moments_payload, said_of
from vitreous.runtime.field_docs import field_docs
from vitreous.runtime.files import write_atomic
from vitreous.training.config import TrainConfig
from vitreous.training.folder import RunFolder
from vitreous.training.snapshots import read_snapshots

RUN_PAGE = "run.html"
LEVELS = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99)
"""Accuracies that are looked for in a run."""


def write_run_page(folder: RunFolder | str | Path) -> Path:
    """Write `run.html` into a run's folder, from what is there by now."""
    folder = folder if isinstance(folder, RunFolder) else RunFolder(folder)
    config = folder.read_config()
    if config is None:
        raise FileNotFoundError(f"{folder.path} holds no run: expected {folder.config}")
    rows = folder.read_metrics()
    inside = moments_payload(read_snapshots(folder.snapshots), rows)
    text = html(config, rows, folder.read_result(), inside, folder.read_classes())
    return write_atomic(folder.path / RUN_PAGE, partial(Path.write_text, data=text, encoding="utf-8"))


def html(
    config: TrainConfig,
    rows: Sequence[Row],
    result: Mapping[str, Any] | None,
    inside: Payload | None,
    classes: int | None = None,
) -> str:
    """The whole page."""
    drawn = curves(rows, config)
    views = [view for view in VIEWS if inside is not None and view.name in inside.header["views"]]
    names = {chart.name: chart.title for chart in drawn}
    names |= {"time": "Time to accuracy"} if rows else {}
    names |= {view.name: view.title for view in views} | {"settings": "Settings"}
    links = " ".join(f'<a href="#{name}">{escape(title)}</a>' for name, title in names.items())
    title = f"{short(config.model)} on {short(config.data)}"
    body = f"<header><h1>{escape(title)}</h1><p>{escape(summary(config, rows))}</p>"
    body += _result(config, rows, result, classes)
    body += f'<nav aria-label="Parts of this page">{links}</nav></header>\n{NO_SCRIPT}'
    if inside is not None:
        body += '<div id="scrubber"></div>\n'
    if rows:
        body += f'<h2>Training</h2><div class="pair">{"".join(map(_curves, drawn))}{_time(rows)}</div>\n'
    if inside is not None:
        body += f"<h2>The inside over training</h2>{''.join(_view(view, inside.header) for view in views)}\n"
    payloads = [] if inside is None else [("run", inside)]
    return scripted_page(title, body + _settings(config), "run.js", payloads, ["run.css"])


def summary(config: TrainConfig, rows: Sequence[Row] = ()) -> str:
    """The run in a line; its rows know the batch size that was used, where there were fewer images than asked for.

    >>> summary(TrainConfig(epochs=20, optimizer="muon", seed=3))
    'Trained from scratch for 20 epochs with muon, batches of 64, seed 3'
    >>> summary(TrainConfig(epochs=1), [{"batch_size": 21}])
    'Trained from scratch for 1 epoch with adamw, batches of 21, seed 0'
    """
    size = rows[-1].get("batch_size", config.batch_size) if rows else config.batch_size
    what = "Trained from scratch"
    if config.pretrained:
        what = "Fine-tuned" if config.policy == "full" else f"Fine-tuned ({config.policy})"
    length = f"{config.epochs} epoch{'s' if config.epochs != 1 else ''}"
    return f"{what} for {length} with {config.optimizer}, batches of {size}, seed {config.seed}"


# --- the result -------------------------------------------------------------------------------------------------------


def _result(config: TrainConfig, rows: Sequence[Row], result: Mapping[str, Any] | None, classes: int | None) -> str:
    """The numbers one came for, in large type."""
    last = next((row for row in reversed(rows) if "test_top1" in row), None)
    done = rows[-1]["epoch"] if rows else 0
    seconds = result["seconds"] if result else rows[-1]["seconds"] if rows else 0.0
    held_out = "held-out images" if not config.validation else "training images held out for validation"
    numbers = []
    if result or last:
        top1 = result["top1"] if result else last["test_top1"]  # type: ignore[index]
        count = result["images"] if result else last["test_images"]  # type: ignore[index]
        when = "" if result else f", after epoch {last['epoch']}"  # type: ignore[index]
        numbers.append((percent(top1), f"of {count:,} {held_out} right{when}"))
    epochs = f"{done:,}" if done == config.epochs else f"{done:,} of {config.epochs:,}"
    numbers += [(epochs, "epoch" if epochs == "1" else "epochs"), (duration(seconds), "in all")]
    cells = "".join(f"<div><strong>{escape(n)}</strong><span>{escape(what)}</span></div>" for n, what in numbers)
    said = "" if result else '<p class="unfinished">This run is not finished: the page shows what there is so far.</p>'
    if result:
        # of five classes or fewer, each is among the first five
        five = f"The right class is among the first five guesses for {percent(result['top5'])}; the loss"
        said = f"<p>{five if classes is None or classes > 5 else 'The loss'} is {result['loss']:.4g}.</p>"
    return f'<div class="result">{cells}</div>{said}'


def percent(share: float) -> str:
    """A share of 1, to a hundredth of a percent.

    >>> percent(0.98765), percent(1.0)
    ('98.77 %', '100 %')
    """
    return f"{100 * share:.2f} %".replace("100.00", "100")


def duration(seconds: float) -> str:
    """A time as one would say it.

    >>> duration(4.26), duration(38.2), duration(260), duration(7270)
    ('4.3 s', '38 s', '4 min 20 s', '2 h 01 min')
    """
    if seconds < 59.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def time_to_accuracy(rows: Sequence[Row], levels: Sequence[float] = LEVELS) -> list[tuple[float, int, float]]:
    """When each of the levels was first reached on held-out images: (level, epoch, seconds); others are left out.

    >>> time_to_accuracy([{"epoch": 1, "seconds": 2.0, "test_top1": 0.65}, {"epoch": 2, "seconds": 4.0}])
    [(0.5, 1, 2.0), (0.6, 1, 2.0)]
    """
    looked = [row for row in rows if "test_top1" in row]
    firsts = ((level, next((row for row in looked if row["test_top1"] >= level), None)) for level in levels)
    return [(level, row["epoch"], row["seconds"]) for level, row in firsts if row is not None]


def _time(rows: Sequence[Row]) -> str:
    reached = time_to_accuracy(rows)
    lines = "".join(
        f"<tr><td>{100 * level:.0f}&nbsp;%</td><td>{epoch:,}</td><td>{duration(seconds)}</td></tr>"
        for level, epoch, seconds in reached
    )
    table = (
        f'<table class="numbers"><thead><tr><th scope="col">accuracy</th><th scope="col">epoch</th>'
        f'<th scope="col">time</th></tr></thead>'
        f"<tbody>{lines}</tbody></table>"
        if reached
        else f"<p>Accuracy on held-out images has not reached {100 * LEVELS[0]:.0f}&nbsp;% yet.</p>"
    )
    return (
        f'<section id="time"><h3>Time to accuracy</h3>{table}'
        "<p>The first look at the held-out images that was at least so good, and the time from the start until then: "
        "opening the data, evaluation and checkpoints count too.</p>"
        '<p class="beware">A level may be lost again afterwards. Times are those of one machine, perhaps a busy '
        "one.</p>"
        "</section>\n"
    )


# --- charts -----------------------------------------------------------------------------------------------------------


def _curves(found: Curves) -> str:
    drawn = line_chart(
        found.lines, title=found.title, x_label="epoch", y_label=found.y_label, unit=found.unit, x_from=0
    )
    return _section(found.name, found.title, drawn, found.read, found.beware)


def _view(view: View, header: Mapping[str, Any]) -> str:
    """Where the page draws a view: of the chosen moment, and of all moments where they differ."""
    drawn = f'<div class="moment" data-view="{view.name}"></div>'
    places = header["views"][view.name]
    if len(set(places)) > 1:
        drawn += (
            f'<details class="all" data-view="{view.name}"><summary>All moments side by side</summary>'
            '<div class="panels"></div></details>'
        )
    return _section(view.name, view.title, drawn, said_of(view, header), view.beware)


def _section(name: str, title: str, drawn: str, read: str, beware: str) -> str:
    return (
        f'<section id="{name}"><h3>{escape(title)}</h3>{drawn}'
        f'<p>{escape(read)}</p><p class="beware">{escape(beware)}</p></section>\n'
    )


# --- settings ---------------------------------------------------------------------------------------------------------


def _settings(config: TrainConfig) -> str:
    usual, docs = TrainConfig(), field_docs(TrainConfig)
    lines = []
    for name in (field.name for field in fields(config)):
        value, default = spell(getattr(config, name)), spell(getattr(usual, name))
        changed = value != default
        said = f"<b>{escape(value)}</b> <small>default {escape(default)}</small>" if changed else escape(value)
        mark = ' class="changed"' if changed else ""
        message = f'<th scope="row">{name}</th><td>{said}</td><td>{_code(docs.get(name, ""))}</td>'
        lines.append(f"<tr{mark}>{message}</tr>")
    return (
        '<h2>Settings</h2><section id="settings"><p>What decided this run. Settings in bold are not the '
        f"usual ones of <code>TrainConfig</code>.</p><table>{''.join(lines)}</table></section>"
    )


def spell(value: object) -> str:
    """A setting as it is read; of a path on this machine only the end, for the rest is nobody's business.

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
    return f"…/{short(text)}" if absolute else text


def _code(text: str) -> str:
    """Words between backticks as code."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if number % 2 else part for number, part in enumerate(parts))
