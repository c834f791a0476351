"""The table: what is told of each model, measure by measure, in words. The terminal and the page show the same."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vitreous.pages.run import duration, percent

Row = Mapping[str, Any]


def interval(row: Row) -> str:
    """How far the accuracy may lie from the truth, and over what.

    >>> interval({"interval": [0.97, 0.99], "interval_over": "seeds"})
    '± 1.00 over seeds'
    >>> interval({"interval": [0.97, 0.99], "interval_over": "images"})
    '97.00 to 99.00 over images (one seed)'
    """
    low, high = (100 * end for end in row["interval"])
    if row["interval_over"] == "seeds":
        return f"± {(high - low) / 2:.2f} over seeds"
    return f"{low:.2f} to {high:.2f} over images (one seed)"


def count(number: float | None) -> str:
    """A large number in three digits.

    >>> count(54_218), count(11_173_962), count(1.11e9), count(None)
    ('54.2 k', '11.2 M', '1.11 G', 'not told')
    """
    if number is None:
        return "not told"
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {letter}"
    return f"{number:.3g}"


def energy(row: Row) -> str:
    """What the training took, or why nobody knows.

    >>> energy({"joules": 5400.0, "joules_why": ""}), energy({"joules": None, "joules_why": "the device does not tell"})
    ('5.4 kJ', 'not told: the device does not tell')
    """
    if row["joules"] is None:
        return "not told" + (f": {row['joules_why']}" if row["joules_why"] else "")
    return f"{row['joules'] / 1e3:,.3g} kJ" if row["joules"] < 1e6 else f"{row['joules'] / 1e6:,.3g} MJ"


def memory(row: Row) -> str:
    """The most that an update took, on a GPU."""
    return "not told" if row["memory"] is None else f"{row['memory'] / 2**20:,.0f} MiB"


def rate(number: float | None, why: str = "") -> str:
    """Images a second, or why there is no such number.

    >>> rate(12345.6), rate(None, "no C++ compiler here")
    ('12,346', 'none: no C++ compiler here')
    """
    return f"none: {why}" if number is None else f"{number:,.0f}"


MEASURES: dict[str, Callable[[Row], str]] = {
    "begins": lambda row: row["start"],
    "accuracy": lambda row: percent(row["accuracy"]),
    "95 % interval": interval,
    "parameters": lambda row: count(row["parameters"]),
    "of them learn": lambda row: count(row["learning"]),
    "FLOPs an image": lambda row: count(row["flops"]),
    "pixels": lambda row: "×".join(map(str, row["image_size"])),
    "images/s, eager": lambda row: rate(row["eager"]),
    "images/s, compiled": lambda row: rate(row["compiled"], row["why"]),
    "peak memory of an update": memory,
    "epochs": lambda row: f"{row['epochs']:,}",
    "time of a run": lambda row: duration(row["seconds"]),
    "of it getting ready": lambda row: duration(row["ready"]),
    "energy of training": energy,
}
"""What the table tells, top to bottom: name → a row's words."""
QUOTED = "the report's own figure (quoted)"


def cells(rows: Sequence[Row]) -> list[tuple[str, list[str]]]:
    """The table with measures down and models across."""
    found = [(name, [tell(row) for row in rows]) for name, tell in MEASURES.items()]
    if any(row["quoted"] is not None for row in rows):
        message = ["" if row["quoted"] is None else f"{row['quoted']:.2f} %" for row in rows]
        found.insert(3, (QUOTED, message))
    return found


def verdicts(table: Mapping[str, Any]) -> list[str]:
    """What the table says, a sentence a pair; for all pairs that began differently, one."""
    unlike = "different starts: no verdict"
    message = [f"{pair['reason']} ({evidence(pair)})" for pair in table["pairs"] if pair["reason"] != unlike]
    if table["alike"]:
        return message
    return [f"{unlike} between models of which one had seen other images before and the other had not", *message]


def evidence(pair: Mapping[str, Any]) -> str:
    """The numbers behind a verdict.

    >>> evidence({"difference": 0.0125, "half": 0.004, "chance": 0.0002, "seed_chance": 0.01, "raised": 0.01})
    'difference +1.25 ± 0.40 points over seeds; p = 0.0002 over images, p = 0.01 over seeds'
    """
    half = "" if pair["half"] is None else f" ± {100 * pair['half']:.2f}"
    over = " over seeds" if pair["half"] is not None else ""
    sign = "+" if pair["difference"] >= 0 else "−"
    least = max(pair["chance"], pair["seed_chance"])
    seeds = f", p {_is(pair['seed_chance'])} over seeds" if pair["half"] is not None else ""
    raised = f", corrected for all pairs p {_is(pair['raised'])}" if chance(pair["raised"]) != chance(least) else ""
    difference = f"{sign}{100 * abs(pair['difference']):.2f}{half} points{over}"
    return f"difference {difference}; p {_is(pair['chance'])} over images{seeds}{raised}"


def chance(p: float) -> str:
    """A p-value in two digits.

    >>> chance(0.0312), chance(3e-9), chance(1.0)
    ('0.031', 'below 0.0001', '1')
    """
    return "below 0.0001" if p < 1e-4 else f"{p:.2g}"


def _is(p: float) -> str:
    return chance(p) if p < 1e-4 else f"= {chance(p)}"


def capital(sentence: str) -> str:
    """A sentence as it begins a line.

    >>> capital("difference +1.25 points")
    'Difference +1.25 points'
    """
    return sentence[0].upper() + sentence[1:]


def as_text(table: Mapping[str, Any]) -> str:
    """For a terminal."""
    names = [row["name"] for row in table["rows"]]
    lines = [("", names), *cells(table["rows"])]
    first = max(len(name) for name, _ in lines)
    wide = [max(len(message[i]) for _, message in lines) for i in range(len(names))]
    text = [f"{table['data']}: {table['images']:,} test images, {table['seeds']} seed(s), recipe {table['recipe']}"]
    for name, message in lines:
        columns = (value.rjust(width) for value, width in zip(message, wide, strict=True))
        text.append(f"{name:<{first}}  {'  '.join(columns)}".rstrip())
    text += [f"{row['name']}: {note}" for row in table["rows"] for note in row["notes"]]
    return "\n".join([*text, "", *verdicts(table)])


def missing_as_text(table: Mapping[str, Any]) -> str:
    """For a terminal, of a dataset that was not at hand."""
    return f"{table['data']}: nothing was run. {table['missing']}"
