"""The tables of a comparison of heat maps: means with paired intervals over images, as JSON and as Markdown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from vitreous.comparison.statistics import seed_interval
from vitreous.inside.faithfulness import rank_correlation
from vitreous.inside.methods import Method

MapTable = dict[str, Any]
REFERENCE = "relevance"
"""The method that others are compared with."""
BASELINES = ("centre", "random")
"""Maps that know nothing of the model: a good one is above both."""
WORDS = {"blur": "blur", "mean": "mean colour", "removed": "tokens removed"}


def map_tables(
    read: Mapping[str, Mapping[str, np.ndarray]],
    methods: Mapping[str, Method],
    operators: Sequence[str],
    context: Mapping[str, Any],
) -> MapTable:
    """Gather the tables of a comparison of heat maps: `faithfulness` and `segmentation`, whichever there are."""
    tables: MapTable = dict(context)
    if "faithfulness" in read:
        tables["faithfulness"] = faithfulness_table(read["faithfulness"], methods, operators)
    if "segmentation" in read:
        tables["segmentation"] = segmentation_table(read["segmentation"], list(methods))
    return tables


def faithfulness_table(
    columns: Mapping[str, np.ndarray], methods: Mapping[str, Method], operators: Sequence[str]
) -> dict[str, Any]:
    """Make the table of heat maps' faithfulness: scores of every method, best first; differences paired by image.

    A method is ranked by its mean difference to the reference over the operators that it was not fitted with. Its
    `bar` is the best baseline's difference over the same operators.
    """
    names = list(methods)
    gains = {way: columns[f"insertion_{way}"] - columns[f"deletion_{way}"] for way in operators}  # [images m]
    base = names.index(REFERENCE) if REFERENCE in names else 0
    over = {way: gains[way] - gains[way][:, [base]] for way in operators}
    baselines = [names.index(name) for name in BASELINES if name in names]
    sanity = np.broadcast_to(columns["sanity"].reshape(len(columns["target"]), -1), columns["road"].shape)  # or all NaN
    sane = ~np.isnan(sanity[:, 0])
    floor = _sanity_floor(columns, sane, len(names))
    rows = []
    for i, (name, method) in enumerate(methods.items()):
        free = [way for way in operators if way not in method.fitted]
        differences = np.mean([over[way] for way in free], axis=0)  # [images m]
        bars = [float(differences[:, j].mean()) for j in baselines]
        row: dict[str, Any] = {
            "name": name,
            "paper": method.paper,
            "forward": method.forward,
            "backward": method.backward,
            "seconds": float(np.median(columns["seconds"][:, i])),
            "fitted": [way for way in operators if way in method.fitted],
            "over": _difference(differences[:, i]),
            "bar": max(bars, default=None),
        }
        for way in operators:
            row[way] = {
                "score": float(gains[way][:, i].mean()),
                "deletion": float(columns[f"deletion_{way}"][:, i].mean()),
                "insertion": float(columns[f"insertion_{way}"][:, i].mean()),
                "over": _difference(over[way][:, i]),
            }
        for measure in ("road", "saco"):
            values = columns[measure]
            row[measure] = {"score": float(values[:, i].mean()), "over": _difference(values[:, i] - values[:, base])}
        row["sanity"] = float(np.abs(sanity[sane, i]).mean()) if method.trained and sane.any() else None
        row["sanity_floor"] = float(floor[i]) if method.trained and floor is not None else None
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


def _sanity_floor(columns: Mapping[str, np.ndarray], sane: np.ndarray, methods: int) -> np.ndarray | None:
    """Compute a column of the maps' table: mean |rank correlation| with fresh weights' map of another image, `[m]`."""
    if "fresh_maps" not in columns or columns["fresh_maps"].ndim < 2:
        return None
    known = sane & ~np.isnan(columns["fresh_maps"][:, 0])
    if known.sum() < 2:
        return None
    own, fresh = (torch.from_numpy(columns[n][known]).unflatten(1, (methods, 1, -1)) for n in ("maps", "fresh_maps"))
    found: np.ndarray = rank_correlation(own, fresh.roll(1, dims=0)).abs().mean(dim=0).numpy()
    return found


def _greedy(
    columns: Mapping[str, np.ndarray], gains: Mapping[str, np.ndarray], names: Sequence[str], operators: Sequence[str]
) -> dict[str, Any] | None:
    """Make the part of heat maps' table on the nearly best order: its scores on some images, each method's there."""
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
    """Make the table of heat maps on objects: pixel accuracy, mAP, mIoU, pointing; all images, right and wrong ones.

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


@dataclass(frozen=True)
class PrintedTable:
    """A table in words: what Markdown and the page show."""

    heading: str
    lead: Sequence[str]
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()

    def as_markdown(self) -> str:
        """Write a table of heat maps as Markdown."""
        lines = [*self.lead, "", f"| {' | '.join(self.head)} |", "|---" * len(self.head) + "|"]
        lines += [f"| {' | '.join(row)} |" for row in self.rows]
        return "\n".join([*lines, *(f"\n{note}" for note in self.notes)]).replace("*", "\\*")


def printed_tables(table: MapTable) -> list[PrintedTable]:
    """Write the tables of heat maps in words, with what they were measured on."""
    found = []
    if (faith := table.get("faithfulness")) is not None:
        found += [_faithfulness(table, faith), _areas(faith)]
    if (segmentation := table.get("segmentation")) is not None:
        found.append(_segments(table, segmentation))
    return found


def as_markdown(table: MapTable) -> str:
    """Write all tables of heat maps as Markdown, with what they were measured on."""
    return "\n\n".join(each.as_markdown().strip() for each in printed_tables(table))


def signed(value: float) -> str:
    """Write a number of the tables of heat maps with its sign.

    >>> signed(0.4123), signed(-0.02)
    ('+0.412', '−0.020')
    """
    return f"{value:+.3f}".replace("-", "−")


def _over(difference: Mapping[str, float | None]) -> str:
    mean, half = difference["mean"], difference["half_width"]
    return signed(float(mean or 0.0)) + ("" if half is None else f" ± {half:.3f}")


def passes(row: Mapping[str, Any]) -> str:
    """Write the cost of a heat map for its table: passes through the model.

    >>> passes({"forward": 33, "backward": 32}), passes({"forward": 0, "backward": 0})
    ('33 + 32 backward', '0')
    """
    return f"{row['forward']:,}" + (f" + {row['backward']} backward" if row["backward"] else "")


def map_verdict(rows: Sequence[Mapping[str, Any]]) -> str:
    """Say below heat maps' table which is the most faithful, which at one pass, and which know no more than the centre.

    A method is compared with the baselines over the operators that it was not fitted with.

    >>> row = lambda name, over, forward=1: {"name": name, "forward": forward, "over": {"mean": over}, "bar": -0.3}
    >>> map_verdict([row("centre", -0.3), row("relevance", 0.0), row("removal-64", 0.1, 65)])
    'Most faithful: removal-64; with one forward pass: relevance.'
    >>> map_verdict([row("centre", -0.3), row("relevance", 0.0), row("Grad-CAM++", -0.4)])
    'Most faithful: relevance. No better than a map that knows nothing of the model: Grad-CAM++.'
    """
    ranked = sorted(rows, key=lambda row: -row["over"]["mean"])
    maps = [row for row in ranked if row["name"] not in BASELINES]
    if not maps:
        return ""
    said = f"Most faithful: {maps[0]['name']}"
    if maps[0]["forward"] > 1 and (quick := [row["name"] for row in maps if row["forward"] <= 1]):
        said += f"; with one forward pass: {quick[0]}"
    weak = [row["name"] for row in maps if row["bar"] is not None and row["over"]["mean"] <= row["bar"]]
    return said + (f". No better than a map that knows nothing of the model: {', '.join(weak)}." if weak else ".")


def _faithfulness(table: MapTable, faith: Mapping[str, Any]) -> PrintedTable:
    operators, base = faith["operators"], faith["reference"]
    lead = [
        *filter(None, [map_verdict(faith["methods"])]),
        f"{table['model']} on {faith['images']} images of {table['data']['faithfulness']} ({faith['correct']} of them "
        f"classified correctly), predicted class, {table['steps']} steps, {table['device']}, torch {table['torch']}.",
        "Insertion less deletion area by what removed patches show; * marks an operator that the method was fitted "
        f"with, which does not count. “Over {base}” is paired by image, with its 95 % interval, in the mean over the "
        f"operators that count. Fresh weights: mean |rank correlation| on {faith['sanity_images']} images; in "
        "brackets, with the map of fresh weights for another image, which unrelated smooth maps have too.",
    ]
    rows = []
    for row in faith["methods"]:
        scores = [signed(row[way]["score"]) + (" *" if way in row["fitted"] else "") for way in operators]
        over = "" if row["name"] == base else _over(row["over"])
        sanity = "" if row["sanity"] is None else f"{row['sanity']:.2f}"
        sanity += "" if row["sanity_floor"] is None else f" ({row['sanity_floor']:.2f})"
        cells = [row["name"], passes(row), f"{1000 * row['seconds']:.1f}", *scores, over]
        rows.append([*cells, signed(row["road"]["score"]), signed(row["saco"]["score"]), sanity])
    notes = []
    if (greedy := faith["greedy"]) is not None:
        best = {way: max(each[way] for each in greedy["methods"].values()) for way in operators}
        notes.append(
            f"A greedy order of patches, found for each operator on {greedy['images']} of the images: "
            + ", ".join(f"{WORDS[way]} {signed(greedy['score'][way])}" for way in operators)
            + "; the best method on the same images: "
            + ", ".join(signed(best[way]) for way in operators)
            + "."
        )
    words = [WORDS[way] for way in operators]
    head = ["map", "passes", "ms", *words, f"over {base}", "ROAD", "SaCo", "fresh weights"]
    return PrintedTable("Is it faithful?", lead, head, rows, notes)


def _areas(faith: Mapping[str, Any]) -> PrintedTable:
    operators, base = faith["operators"], faith["reference"]
    rows = []
    for row in faith["methods"]:
        each = [(row[way], "" if row["name"] == base else f", {_over(row[way]['over'])}") for way in operators]
        rows.append([row["name"], *(f"{one['deletion']:.3f}, {one['insertion']:.3f}{over}" for one, over in each)])
    head = ["map", *(f"{WORDS[way]}: deletion ↓, insertion ↑, over {base}" for way in operators)]
    return PrintedTable("Deletion and insertion", (), head, rows)


def _segments(table: MapTable, found: Mapping[str, Any]) -> PrintedTable:
    images = found["images"]
    lead = (
        f"{table['model']} on {images['all']} images of {table['data']['segmentation']} with masks; of those whose "
        f"class the model has, {images['correct']} are classified correctly and {images['wrong']} are not. Filled: "
        "patches of outlying tokens have the mean of their neighbours."
    )
    head = [
        "map",
        "pixel accuracy",
        "mAP",
        "mIoU",
        "pointing",
        "mAP, filled",
        "mIoU, filled",
        "mAP, correct",
        "mAP, wrong",
    ]
    rows = []
    for row in found["methods"]:
        every, filled = row["all"], row["all_filled"]
        values = [every[name] for name in ("accuracy", "precision", "iou", "pointing")]
        values += [filled[name] for name in ("precision", "iou")]
        values += [row[group] and row[group]["precision"] for group in ("correct", "wrong")]
        rows.append([row["name"], *("" if value is None else f"{100 * value:.1f}" for value in values)])
    return PrintedTable("Does it lie on the object?", (lead,), head, rows)
