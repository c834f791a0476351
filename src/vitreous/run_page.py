"""`write_run_page`: a run's folder, finished or not, to one HTML file that tells all of it.

What was trained and how well it does; curves; how soon it was how good; the inside of the model over training; every
setting with its explanation. `run_charts.py` makes the figures.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import partial
from html import escape
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from matplotlib.colors import to_hex

from vitreous.field_docs import field_docs
from vitreous.figures.scale import Scale, short_numbers
from vitreous.page import document, image, short
from vitreous.run_charts import Chart, Row, curves, over_training
from vitreous.snapshots import read_snapshots
from vitreous.train.config import TrainConfig
from vitreous.train.folder import RunFolder
from vitreous.weights.save import write_atomic

LEVELS = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99)
"""Accuracies that are looked for in a run."""


def write_run_page(folder: RunFolder | str | Path) -> Path:
    """Write `run.html` into a run's folder, from what is there by now."""
    folder = folder if isinstance(folder, RunFolder) else RunFolder(folder)
    config = folder.read_config()
    if config is None:
        raise FileNotFoundError(f"{folder.path} holds no run: expected {folder.config}")
    rows = folder.read_metrics()
    views = over_training(read_snapshots(folder.snapshots), rows)
    text = html(config, rows, folder.read_result(), views)
    return write_atomic(folder.path / "run.html", partial(Path.write_text, data=text, encoding="utf-8"))


def html(config: TrainConfig, rows: Sequence[Row], result: Mapping[str, Any] | None, views: Sequence[Chart]) -> str:
    """The whole page."""
    drawn = curves(rows, config)
    names = {chart.name: chart.title for chart in drawn}
    names |= {"time": "Time to accuracy"} if rows else {}
    names |= {chart.name: chart.title for chart in views} | {"settings": "Settings"}
    links = " ".join(f'<a href="#{name}">{escape(title)}</a>' for name, title in names.items())
    title = f"{short(config.model)} on {short(config.data)}"
    body = f"<header><h1>{escape(title)}</h1><p>{escape(summary(config))}</p>{_result(config, rows, result)}"
    body += f"<nav>{links}</nav></header>\n"
    if rows:
        body += f'<h2>Training</h2><div class="pair">{"".join(map(_section, drawn))}{_time(rows)}</div>\n'
    if views:
        body += f"<h2>The inside over training</h2>{''.join(map(_section, views))}\n"
    return document(title, body + _settings(config), STYLE)


def summary(config: TrainConfig) -> str:
    """The run in a line.

    >>> summary(TrainConfig(epochs=20, optimizer="muon", seed=3))
    'Trained from scratch for 20 epochs with muon, batches of 64, seed 3'
    """
    what = "Trained from scratch"
    if config.pretrained:
        what = "Fine-tuned" if config.policy == "full" else f"Fine-tuned ({config.policy})"
    length = f"{config.epochs} epoch{'s' if config.epochs != 1 else ''}"
    return f"{what} for {length} with {config.optimizer}, batches of {config.batch_size}, seed {config.seed}"


# --- the result -------------------------------------------------------------------------------------------------------


def _result(config: TrainConfig, rows: Sequence[Row], result: Mapping[str, Any] | None) -> str:
    """The numbers one came for, in large type."""
    last = next((row for row in reversed(rows) if "test_top1" in row), None)
    done = rows[-1]["epoch"] if rows else 0
    seconds = result["seconds"] if result else rows[-1]["seconds"] if rows else 0.0
    held_out = "held-out pictures" if not config.validation else "training pictures held out for validation"
    numbers = []
    if result or last:
        top1 = result["top1"] if result else last["test_top1"]  # type: ignore[index]
        count = result["pictures"] if result else last["test_pictures"]  # type: ignore[index]
        when = "" if result else f", after epoch {last['epoch']}"  # type: ignore[index]
        numbers.append((percent(top1), f"of {count:,} {held_out} right{when}"))
    epochs = f"{done:,}" if done == config.epochs else f"{done:,} of {config.epochs:,}"
    numbers += [(epochs, "epoch" if epochs == "1" else "epochs"), (duration(seconds), "in all")]
    cells = "".join(f"<div><strong>{escape(n)}</strong><span>{escape(what)}</span></div>" for n, what in numbers)
    said = "" if result else '<p class="unfinished">This run is not finished: the page shows what there is so far.</p>'
    if result:
        said = f"<p>The right class is among the first five guesses for {percent(result['top5'])}; "
        said += f"the loss is {result['loss']:.4g}.</p>"
    return f'<div class="result">{cells}</div>{said}'


def percent(share: float) -> str:
    """
    >>> percent(0.98765), percent(1.0)
    ('98.77 %', '100 %')
    """
    return f"{100 * share:.2f} %".replace("100.00", "100")


def duration(seconds: float) -> str:
    """
    >>> duration(4.26), duration(38.2), duration(260), duration(7270)
    ('4.3 s', '38 s', '4 min 20 s', '2 h 01 min')
    """
    if seconds < 59.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def time_to_accuracy(rows: Sequence[Row], levels: Sequence[float] = LEVELS) -> list[tuple[float, int, float]]:
    """When each of the levels was first reached on held-out pictures: (level, epoch, seconds); others are left out.

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
        f'<table class="numbers"><thead><tr><th>accuracy</th><th>epoch</th><th>time</th></tr></thead>'
        f"<tbody>{lines}</tbody></table>"
        if reached
        else f"<p>Accuracy on held-out pictures has not reached {100 * LEVELS[0]:.0f}&nbsp;% yet.</p>"
    )
    return (
        f'<section id="time"><h3>Time to accuracy</h3>{table}'
        "<p>The first look at the held-out pictures that was at least so good, and the time from the start until then: "
        "opening the data, evaluation and checkpoints count too.</p>"
        '<p class="beware">A level may be lost again afterwards. Times are those of one machine, perhaps a busy '
        "one.</p>"
        "</section>\n"
    )


# --- figures ----------------------------------------------------------------------------------------------------------


def _section(chart: Chart) -> str:
    if chart.layout == "one":
        drawn = "".join(image(figure, f"{chart.title}: {chart.read}") for figure in chart.panels.values())
    else:
        panels = "".join(
            f"<figure>{image(figure, f'{chart.title}, {name}')}<figcaption>{escape(name)}</figcaption></figure>"
            for name, figure in chart.panels.items()
        )
        count = len(chart.panels)
        layout = "alone" if count == 1 else "four" if chart.layout == "six" and count <= 4 else chart.layout
        drawn = f'<div class="panels {layout}" style="--count: {max(count, 8)}">{panels}</div>'
    bar = _bar(chart.scale) if chart.scale is not None else ""
    return (
        f'<section id="{chart.name}"><h3>{escape(chart.title)}</h3>{drawn}{bar}'
        f'<p>{escape(chart.read)}</p><p class="beware">{escape(chart.beware)}</p></section>\n'
    )


def _bar(scale: Scale) -> str:
    """What the colours mean: a bar, and what stands at its ends."""
    stops = ", ".join(to_hex(scale.colours(i / 12)) for i in range(13))
    low, high = scale.ends or short_numbers([scale.low, scale.high])
    return (
        f'<p class="bar"><span>{low}</span><i style="background: linear-gradient(to right, {stops})"></i>'
        f"<span>{high}</span> {escape(scale.label)}</p>"
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
        lines.append(f"<tr{mark}><th>{name}</th><td>{said}</td><td>{_code(docs.get(name, ''))}</td></tr>")
    return (
        '<h2>Settings</h2><section id="settings"><p>What decided this run. Settings in bold are not the usual ones of '
        f"<code>TrainConfig</code>.</p><table>{''.join(lines)}</table></section>"
    )


def spell(value: object) -> str:
    """A setting as it is read; of a path on this machine only the end, for the rest is nobody's business.

    >>> spell(None), spell(True), spell((0.4, 1.0)), spell(0.001), spell("/home/me/pictures")
    ('none', 'yes', '0.4 to 1', '0.001', '…/pictures')
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


STYLE = """
.result { display: flex; flex-wrap: wrap; gap: .5rem 2.5rem; margin: 1.25rem 0 .5rem; }
.result strong { display: block; font-size: 2.6rem; line-height: 1.15; font-weight: 600; letter-spacing: -.02em; }
.result div:first-child { margin-right: 1rem; }
.result span { color: var(--soft); font-size: .92rem; }
.unfinished { border-left: 3px solid #d55e00; padding-left: .75rem; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); gap: 1.25rem;
  margin: 1.25rem 0; }
.pair section { margin: 0; }
.panels { display: grid; gap: .9rem .75rem; align-items: start; }
.panels figure { margin: 0; }
.panels img { width: 100%; margin: 0; border-radius: 3px; }
.panels figcaption { font-size: .8rem; color: var(--soft); text-align: center; line-height: 1.3; margin-top: .3rem; }
.alone { max-width: 22rem; }
.six { grid-template-columns: repeat(6, 1fr); }
.four { grid-template-columns: repeat(4, 1fr); }
.strips { grid-template-columns: repeat(var(--count), 1fr); gap: .9rem .4rem; }
.strips figcaption { font-size: .7rem; }
@media (max-width: 50rem) {
  .six { grid-template-columns: repeat(4, 1fr); }
  .four { grid-template-columns: repeat(3, 1fr); }
  .strips { grid-template-columns: repeat(7, 1fr); }
}
@media (max-width: 34rem) {
  main { padding: 1.5rem .75rem 3rem; }
  section { padding: 1rem .85rem; }
  .six { grid-template-columns: repeat(3, 1fr); }
  .four { grid-template-columns: repeat(2, 1fr); }
  .strips { grid-template-columns: repeat(5, 1fr); }
}
section p.bar { display: flex; align-items: center; gap: .5rem; font-size: .85rem; color: var(--soft); }
.bar i { width: 9rem; height: .6rem; border-radius: 2px; }
.numbers td, .numbers th { padding: .2rem 2rem .2rem 0; text-align: right; font-variant-numeric: tabular-nums; }
#time table { margin-top: 0; }
#settings p { margin: 0; }
#settings table { width: 100%; }
#settings th, #settings td { padding: .3rem 1.25rem .3rem 0; border-top: 1px solid var(--line); vertical-align: top; }
#settings td:last-child { color: var(--soft); padding-right: 0; }
#settings td:nth-child(2) { min-width: 11rem; overflow-wrap: break-word; }
#settings small { color: var(--soft); white-space: nowrap; margin-left: .3rem; }
#settings .changed th { color: var(--ink); font-weight: 700; }
code { font-size: .92em; }
@media (max-width: 44rem) {
  #settings tr { display: grid; grid-template-columns: auto 1fr; border-top: 1px solid var(--line); padding: .4rem 0; }
  #settings th, #settings td { border: 0; padding: 0 1rem 0 0; }
  #settings td:nth-child(2) { min-width: 0; overflow-wrap: anywhere; }
  #settings td:last-child { grid-column: 1 / -1; }
}
"""
