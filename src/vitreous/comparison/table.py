"""Write the table of a comparison in words, cell by cell, with verdicts and p-values, for terminal and page."""

from collections.abc import Callable, Mapping
from typing import Any

from vitreous.comparison.statistics import DIFFERENT_STARTS, ENOUGH_SEEDS
from vitreous.comparison.task_scores import SHARES, spell_figure
from vitreous.predict.scores import SCORES
from vitreous.runtime.wording import FIGURES, accuracy, count, duration

Row = Mapping[str, Any]


def interval(row: Row) -> str:
    """Write a cell of the comparison's table: the accuracy's interval, and whether it is over seeds or over images.

    >>> interval({"interval": [0.97, 0.99], "interval_over": "seeds"})
    '± 1.00 over seeds'
    >>> interval({"interval": [0.97, 0.99], "interval_over": "images"})
    '97.00 to 99.00 over images (3 seeds would give one over seeds)'
    """
    low, high = (100 * end for end in row["interval"])
    if row["interval_over"] == "seeds":
        return f"± {(high - low) / 2:.2f} over seeds"
    return f"{low:.2f} to {high:.2f} over images ({ENOUGH_SEEDS} seeds would give one over seeds)"


def magnitude(number: float | None) -> str:
    """Write a cell of the comparison's table: a large number in three digits.

    >>> magnitude(54_218), magnitude(11_173_962), magnitude(1.11e9), magnitude(None)
    ('54.2 k', '11.2 M', '1.11 G', 'unknown')
    """
    if number is None:
        return "unknown"
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {letter}"
    return f"{number:.3g}"


def energy(row: Row) -> str:
    """Write a cell of the comparison's table: the energy of a training run, or why it is unknown.

    >>> energy({"joules": 5400.0, "joules_why": ""}), energy({"joules": None, "joules_why": "no counter"})
    ('5.4 kJ', 'unknown: no counter')
    """
    if row["joules"] is None:
        return "unknown" + (f": {row['joules_why']}" if row["joules_why"] else "")
    return f"{row['joules'] / 1e3:,.3g} kJ" if row["joules"] < 1e6 else f"{row['joules'] / 1e6:,.3g} MJ"


def memory(row: Row) -> str:
    """Write a cell of the comparison's table: peak memory of an update on a GPU."""
    return "unknown" if row["memory"] is None else f"{row['memory'] / 2**20:,.0f} MiB"


def rate(number: float | None, why: str = "") -> str:
    """Write a cell of the comparison's table: images per second, or why there is no such number.

    >>> rate(12345.6), rate(None, "no C++ compiler here")
    ('12,346', 'none: no C++ compiler here')
    """
    return f"none: {why}" if number is None else f"{number:,.0f}"


MEASURES: dict[str, Callable[[Row], str]] = {
    "begins": lambda row: str(row["start"]),
    "accuracy": lambda row: accuracy(row["accuracy"]),
    "95 % interval": interval,
    "parameters": lambda row: magnitude(row["parameters"]),
    "of them learn": lambda row: magnitude(row["learning"]),
    "FLOPs per image": lambda row: magnitude(row["flops"]),
    "pixels": lambda row: "×".join(map(str, row["image_size"])),
    "images/s, eager": lambda row: rate(row["eager"]),
    "images/s, compiled": lambda row: rate(row["compiled"], row["why"]),
    "peak memory of an update": memory,
    "epochs": lambda row: f"{row['epochs']:,}",
    "time of a run": lambda row: duration(row["seconds"]),
    "of it start-up": lambda row: duration(row["ready"]),
    "energy of training": energy,
}
"""The lines of the table, top to bottom: name → a row in words."""
QUOTED = "the report's own figure (quoted)"
SIZES_DIFFER = (
    "Masks are measured at each model's own image size, and the sizes differ: a coarser one has an easier task. In the "
    "test over images each image counts the same for both models."
)
NUMBERS = 6
"""Numbers whose mean absolute errors have a line each; of more, the first ones."""


def task_interval(row: Row, name: str) -> str:
    """Write a cell of the comparison's table: the interval over seeds of labels', numbers' or masks' score.

    >>> task_interval({"interval": [0.97, 0.99]}, "miou"), task_interval({"interval": [0.97, 0.99]}, "r2")
    ('± 1.00 over seeds', '± 0.010 over seeds')
    >>> task_interval({"interval": None}, "r2")
    'unknown: 3 seeds would give one'
    """
    if row["interval"] is None:
        return f"unknown: {ENOUGH_SEEDS} seeds would give one"
    half = (row["interval"][1] - row["interval"][0]) / 2
    return f"± {100 * half:.2f} over seeds" if name in SHARES else f"± {half:.3f} over seeds"


def task_measures(table: Mapping[str, Any]) -> dict[str, Callable[[Row], str]]:
    """List the lines of a comparison's table of labels, numbers or masks: their figures stand where accuracy does."""
    main, names = table["score"], table["classes"]["names"]
    found: dict[str, Callable[[Row], str]] = {
        "begins": MEASURES["begins"],
        FIGURES[main][0]: lambda row: spell_figure(main, row["score"]),
        "95 % interval": lambda row: task_interval(row, main),
    }
    for figure in table["rows"][0]["figures"]:
        kind, _, number = figure.rpartition("_") if figure.startswith("mae_") else (figure, "", "")
        if figure == main or (number and int(number) >= NUMBERS):
            continue
        title = FIGURES[kind][0] + (f" of {names[int(number)]}" if number else "")

        def line(row: Row, figure: str = figure, kind: str = kind) -> str:
            value = row["figures"].get(figure)
            return "unknown" if value is None else spell_figure(kind, value)

        found[title] = line
    return found | {name: spell for name, spell in MEASURES.items() if name not in ("accuracy", *found)}


def cells(table: Mapping[str, Any]) -> dict[str, list[str]]:
    """Write the comparison's table, measures down and models across: name of the measure → a cell for each model."""
    rows = table["rows"]
    measures = task_measures(table) if "task" in table else MEASURES
    lines = {name: [spell(row) for row in rows] for name, spell in measures.items()}
    if all(row["quoted"] is None for row in rows):
        return lines
    quoted = ["" if row["quoted"] is None else f"{row['quoted']:.2f} %" for row in rows]
    first = list(lines)[:3]
    return {name: lines.pop(name) for name in first} | {QUOTED: quoted} | lines


def verdicts(table: Mapping[str, Any]) -> list[str]:
    """Write the sentences below the comparison's table: verdicts, then one on different starts, then pairs without.

    Among several pairs, a sentence without a verdict names its pair; a verdict does so itself.
    """
    several = len(table["pairs"]) > 1
    found: dict[bool, list[str]] = {True: [], False: []}
    for pair in table["pairs"]:
        if pair["reason"] != DIFFERENT_STARTS:
            who = f"{pair['one']} and {pair['other']}, " * (several and not pair["verdict"])
            line = f"{who}{pair['reason']} ({evidence(pair, table.get('task'))})"
            found[bool(pair["verdict"])].append(line)
    unlike = [] if table["alike"] else [f"{DIFFERENT_STARTS} between a pre-trained model and one from scratch"]
    return [*found[True], *unlike, *found[False]]


def evidence(pair: Mapping[str, Any], task: str | None = None) -> str:
    """Write below the comparison's table the numbers behind a verdict; `task` is named if it is not classify.

    >>> pair = {"difference": 0.0125, "half_width": 0.004, "p_images": 0.0002, "p_seeds": 0.01, "p_corrected": 0.01}
    >>> evidence(pair)
    'difference +1.25 ± 0.40 points over seeds; p = 0.0002 over images, p = 0.01 over seeds'
    >>> evidence(pair, "regress")
    'difference in R² +0.013 ± 0.004 over seeds; p = 0.0002 over images, p = 0.01 over seeds'
    """
    difference, half = pair["difference"], pair["half_width"]
    main = "top1" if task is None else SCORES[task].main
    of = "" if task is None else f" in {FIGURES[main][0]}"
    scale, form, unit = (100, ".2f", " points") if task is None or main in SHARES else (1, ".3f", "")
    text = f"difference{of} {'+' if difference >= 0 else '−'}{scale * abs(difference):{form}}"
    text += f" ± {scale * half:{form}}{unit} over seeds" if half is not None else unit
    text += f"; {p_value(pair['p_images'])} over images"
    text += f", {p_value(pair['p_seeds'])} over seeds" if half is not None else ""
    corrected = p_value(pair["p_corrected"])
    if corrected != p_value(max(pair["p_images"], pair["p_seeds"])):
        text += f", corrected for all pairs {corrected}"
    return text


def p_value(p: float) -> str:
    """Write a p-value below the comparison's table in two digits.

    >>> p_value(0.0312), p_value(3e-9), p_value(1.0)
    ('p = 0.031', 'p below 0.0001', 'p = 1')
    """
    return "p below 0.0001" if p < 1e-4 else f"p = {p:.2g}"


def as_text(table: Mapping[str, Any]) -> str:
    """Format the table of a comparison on one dataset for a terminal, or say why nothing was run."""
    if "missing" in table:
        return f"{table['data']}: nothing was run. {table['missing']}"
    names = [row["name"] for row in table["rows"]]
    lines = {"": names} | cells(table)
    first = max(map(len, lines))
    widths = [max(len(line[i]) for line in lines.values()) for i in range(len(names))]
    tested = f"{count(table['images'], 'test image')}, {count(table['seeds'], 'seed')}"
    text = [f"{table['data']}: {tested}, recipe {table['recipe']}"]
    for name, line in lines.items():
        columns = (value.rjust(width) for value, width in zip(line, widths, strict=True))
        text.append(f"{name:<{first}}  {'  '.join(columns)}".rstrip())
    text += [f"{row['name']}: {note}" for row in table["rows"] for note in row["notes"]]
    text += [SIZES_DIFFER] if table.get("task") == "segment" and len(set(lines["pixels"])) > 1 else []
    return "\n".join([*text, "", *verdicts(table)])
