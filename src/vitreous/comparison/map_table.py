"""The tables of a comparison of heat maps: means with paired intervals over images, as JSON and as Markdown."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vitreous.comparison.statistics import seed_interval
from vitreous.inside.methods import Method

MapTable = dict[str, Any]
REFERENCE = "relevance"
"""The method that others are compared with."""
WORDS = {"blur": "blur", "mean": "mean colour", "removed": "tokens removed"}


def map_tables(
    read: Mapping[str, Mapping[str, np.ndarray]],
    methods: Mapping[str, Method],
    operators: Sequence[str],
    context: Mapping[str, Any],
) -> MapTable:
    """Gather the rows of `faithfulness` and `segmentation`, whichever there are."""
    tables: MapTable = dict(context)
    if "faithfulness" in read:
        tables["faithfulness"] = faithfulness_table(read["faithfulness"], methods, operators)
    if "segmentation" in read:
        tables["segmentation"] = segmentation_table(read["segmentation"], list(methods))
    return tables


def faithfulness_table(
    columns: Mapping[str, np.ndarray], methods: Mapping[str, Method], operators: Sequence[str]
) -> dict[str, Any]:
    """Scores of every method, best first; a difference is paired by image, with the half width of its interval.

    A method is ranked by its mean difference to the reference over the operators that it was not fitted with.
    """
    names = list(methods)
    gains = {way: columns[f"insertion_{way}"] - columns[f"deletion_{way}"] for way in operators}  # [images m]
    base = names.index(REFERENCE) if REFERENCE in names else 0
    sane = ~np.isnan(columns["sanity"][:, 0])
    rows = []
    for i, (name, method) in enumerate(methods.items()):
        free = [way for way in operators if way not in method.fitted]
        difference = np.mean([gains[way][:, i] - gains[way][:, base] for way in free], axis=0)
        row: dict[str, Any] = {
            "name": name,
            "paper": method.paper,
            "forward": method.forward,
            "backward": method.backward,
            "seconds": float(np.median(columns["seconds"][:, i])),
            "fitted": [way for way in operators if way in method.fitted],
            "over": _difference(difference),
        }
        for way in operators:
            row[way] = {
                "score": float(gains[way][:, i].mean()),
                "deletion": float(columns[f"deletion_{way}"][:, i].mean()),
                "insertion": float(columns[f"insertion_{way}"][:, i].mean()),
                "over": _difference(gains[way][:, i] - gains[way][:, base]),
            }
        for measure in ("road", "saco"):
            values = columns[measure]
            row[measure] = {"score": float(values[:, i].mean()), "over": _difference(values[:, i] - values[:, base])}
        row["sanity"] = float(np.abs(columns["sanity"][sane, i]).mean()) if method.trained and sane.any() else None
        rows.append(row)
    rows.sort(key=lambda row: -row["over"]["mean"])
    return {
        "images": len(columns["target"]),
        "correct": int(np.nansum(columns["correct"])),
        "sanity_images": int(sane.sum()),
        "reference": names[base],
        "operators": list(operators),
        "methods": rows,
        "greedy": _greedy(columns, gains, names, operators),
    }


def _greedy(
    columns: Mapping[str, np.ndarray], gains: Mapping[str, np.ndarray], names: Sequence[str], operators: Sequence[str]
) -> dict[str, Any] | None:
    """The nearly best order on some images, and every method on the same ones."""
    if "greedy" not in columns or columns["greedy"].ndim < 2:
        return None
    found = columns["greedy"]
    searched = ~np.isnan(found[:, 0])
    bound = {way: float(found[searched, k].mean()) for k, way in enumerate(operators)}
    same = {name: {way: float(gains[way][searched, i].mean()) for way in operators} for i, name in enumerate(names)}
    return {"images": int(searched.sum()), "score": bound, "methods": same}


def _difference(values: np.ndarray) -> dict[str, float | None]:
    mean, half = seed_interval(values)
    return {"mean": mean, "half_width": half}


def segmentation_table(columns: Mapping[str, np.ndarray], names: Sequence[str]) -> dict[str, Any]:
    """Pixel accuracy, mAP, mIoU and pointing of every method: all images, and those that the model gets right or wrong.

    mIoU is that of all images' pixels together, averaged over object and background.
    """
    correct = columns["correct"]
    groups = {"all": np.ones(len(correct), dtype=bool), "correct": correct == 1, "wrong": correct == 0}
    methods = []
    for i, name in enumerate(names):
        row: dict[str, Any] = {"name": name}
        for group, chosen in groups.items():
            for end in ("", "_filled"):
                row[group + end] = _segmentation(columns, i, len(names), chosen, end) if chosen.any() else None
        methods.append(row)
    methods.sort(key=lambda row: -row["all"]["precision"])
    return {"images": {group: int(chosen.sum()) for group, chosen in groups.items()}, "methods": methods}


def _segmentation(
    columns: Mapping[str, np.ndarray], i: int, count: int, chosen: np.ndarray, end: str
) -> dict[str, float]:
    sums = [columns[name + end][chosen].reshape(-1, count, 2)[:, i].sum(axis=0) for name in ("intersections", "unions")]
    means = {name: float(columns[name + end][chosen, i].mean()) for name in ("accuracy", "precision", "pointing")}
    return {**means, "iou": float((sums[0] / np.maximum(sums[1], 1)).mean())}


# --- words ------------------------------------------------------------------------------------------------------------


def as_markdown(table: MapTable) -> str:
    """The tables ready for a document, with what they were measured on."""
    parts = []
    if (faith := table.get("faithfulness")) is not None:
        parts += [*_faithfulness_lines(table, faith), ""]
    if (segmentation := table.get("segmentation")) is not None:
        parts += _segmentation_lines(table, segmentation)
    return "\n".join(parts).strip()


def signed(value: float) -> str:
    """A number with its sign, as tables show it.

    >>> signed(0.4123), signed(-0.02)
    ('+0.412', '−0.020')
    """
    return f"{value:+.3f}".replace("-", "−")


def _over(difference: Mapping[str, float | None]) -> str:
    mean, half = difference["mean"], difference["half_width"]
    return signed(float(mean or 0.0)) + ("" if half is None else f" ± {half:.3f}")


def passes(row: Mapping[str, Any]) -> str:
    """The cost of a map in passes through the model.

    >>> passes({"forward": 33, "backward": 32}), passes({"forward": 0, "backward": 0})
    ('33 + 32 backward', '0')
    """
    return f"{row['forward']:,}" + (f" + {row['backward']} backward" if row["backward"] else "")


def _faithfulness_lines(table: MapTable, faith: Mapping[str, Any]) -> list[str]:
    operators, base = faith["operators"], faith["reference"]
    words = " | ".join(WORDS[way] for way in operators)
    lines = [
        f"{table['model']} on {faith['images']} images of {table['data']['faithfulness']} ({faith['correct']} of them "
        f"classified correctly), predicted class, {table['steps']} steps, {table['device']}, torch {table['torch']}.",
        "Insertion less deletion area by what removed patches show; \\* marks an operator that the method was fitted "
        f"with, which does not count. “Over {base}” is paired by image, with its 95 % interval, in the mean over the "
        f"operators that count. Fresh weights: mean |rank correlation| on {faith['sanity_images']} images.",
        "",
        f"| map | passes | ms | {words} | over {base} | ROAD | SaCo | fresh weights |",
        "|---" * (7 + len(operators)) + "|",
    ]
    for row in faith["methods"]:
        scores = [signed(row[way]["score"]) + (" \\*" if way in row["fitted"] else "") for way in operators]
        over = "" if row["name"] == base else _over(row["over"])
        sanity = "" if row["sanity"] is None else f"{row['sanity']:.2f}"
        cells = [row["name"], passes(row), f"{1000 * row['seconds']:.1f}", *scores, over]
        cells += [signed(row["road"]["score"]), signed(row["saco"]["score"]), sanity]
        lines.append(f"| {' | '.join(cells)} |")
    if (greedy := faith["greedy"]) is not None:
        best = {way: max(each[way] for each in greedy["methods"].values()) for way in operators}
        lines += [
            "",
            f"A greedy order of patches, found for each operator on {greedy['images']} of the images: "
            + ", ".join(f"{WORDS[way]} {signed(greedy['score'][way])}" for way in operators)
            + "; the best method on the same images: "
            + ", ".join(signed(best[way]) for way in operators)
            + ".",
        ]
    heads = [f"{WORDS[way]}: deletion ↓, insertion ↑, over {base}" for way in operators]
    lines += ["", f"| map | {' | '.join(heads)} |", "|---" * (1 + len(operators)) + "|"]
    for row in faith["methods"]:
        each = [row[way] for way in operators]
        cells = [f"{one['deletion']:.3f}, {one['insertion']:.3f}, {_over(one['over'])}" for one in each]
        lines.append(f"| {row['name']} | {' | '.join(cells)} |")
    return lines


def _segmentation_lines(table: MapTable, found: Mapping[str, Any]) -> list[str]:
    images = found["images"]
    lines = [
        f"{table['model']} on {images['all']} images of {table['data']['segmentation']} with masks; of those whose "
        f"class the model has, {images['correct']} are classified correctly and {images['wrong']} are not. Filled: "
        "patches of outlying tokens have the mean of their neighbours.",
        "",
        "| map | pixel accuracy | mAP | mIoU | pointing | mAP, filled | mIoU, filled | mAP, correct | mAP, wrong |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in found["methods"]:
        every, filled = row["all"], row["all_filled"]
        values = [
            every["accuracy"],
            every["precision"],
            every["iou"],
            every["pointing"],
            filled["precision"],
            filled["iou"],
        ]
        values += [row[group] and row[group]["precision"] for group in ("correct", "wrong")]
        lines.append(f"| {row['name']} | {' | '.join('' if v is None else f'{100 * v:.1f}' for v in values)} |")
    return lines
