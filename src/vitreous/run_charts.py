"""A run's numbers to figures: the curves of its metrics, and its snapshots side by side over training.

In go the rows of metrics.jsonl and the snapshots; out come `Chart`s, each with how to read it and what it does not
show. The page (`run_page.py`) lays them out.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from vitreous.figures.curves import draw_distance_panel, draw_lines
from vitreous.figures.maps import draw_overlays
from vitreous.figures.panels import draw_filters_panel, draw_positions_panel
from vitreous.figures.position import COSINE
from vitreous.figures.scale import Scale
from vitreous.snapshots import Snapshot
from vitreous.train.config import TrainConfig

Row = Mapping[str, Any]
HALF = 3.9  # inches of a curve's figure: two stand side by side on a wide page, and on a phone its words can be read
MOST = 12  # moments that are shown: two rows of six, three of four


@dataclass(frozen=True)
class Chart:
    """Figures that belong together, and the sentences below them."""

    name: str
    title: str
    panels: dict[str, Figure]
    """By their captions; one alone may have none."""
    read: str
    """How to read it."""
    beware: str
    """What it does not show."""
    layout: Literal["one", "six", "four", "strips"] = "one"
    """One figure; or a panel a moment: at most so many side by side on a wide page, fewer on a narrow one."""
    scale: Scale | None = None
    """What the colours mean, where they mean numbers."""


# --- curves of metrics.jsonl ------------------------------------------------------------------------------------------


def curves(rows: Sequence[Row], config: TrainConfig) -> list[Chart]:
    """Loss, accuracy and step size by epoch."""
    if not rows:
        return []
    rate = {"": column(rows, "learning_rate")}
    loss = {"training": column(rows, "loss"), "held out": column(rows, "test_loss")}
    right = {"training": column(rows, "top1", 100), "held out": column(rows, "test_top1", 100)}
    return [
        Chart(
            "loss",
            "Loss",
            {"": _lines(loss, "loss")},
            "How far the model's answers are from the right ones: lower is better. Where the held-out line turns up "
            "while the other goes on down, the model begins to learn by heart.",
            _training_is_harder(config) + "Small steps in the loss may be large ones in accuracy, and the other way.",
        ),
        Chart(
            "accuracy",
            "Accuracy",
            {"": _lines(right, "right first guesses (%)")},
            "How many pictures get their own class as first guess. The gap between the lines is what the model knows "
            "of its training pictures alone.",
            _training_accuracy(config) + "One number for all classes: a rare class may be much worse.",
        ),
        Chart(
            "learning-rate",
            "Step size",
            {"": _lines(rate, "learning rate")},
            "How far an update may move the weights, at the end of each epoch"
            + (f": it grows for {config.warmup:g} epochs, then follows half a cosine." if config.warmup else "."),
            "The plan, not the movement: how far weights really move depends on the optimiser and the gradients."
            + (" Earlier blocks move less than this." if config.layer_decay < 1 else ""),
        ),
    ]


def column(rows: Sequence[Row], name: str, factor: float = 1.0) -> tuple[list[float], list[float]]:
    """Epochs that have a number of this name, and the numbers.

    >>> column([{"epoch": 1, "loss": 2.0}, {"epoch": 2, "loss": 1.0, "top1": 0.5}], "top1", 100)
    ([2], [50.0])
    """
    known = [row for row in rows if isinstance(row.get(name), (int, float))]
    return [row["epoch"] for row in known], [factor * row[name] for row in known]


def _lines(series: Mapping[str, tuple[list[float], list[float]]], ylabel: str) -> Figure:
    held = {name: points for name, points in series.items() if points[0]}
    return draw_lines(held or {"": ([0.0], [np.nan])}, xlabel="epoch", ylabel=ylabel, width=HALF)


def _training_is_harder(config: TrainConfig) -> str:
    mixed = config.mixup or config.cutmix
    if mixed or config.label_smoothing or config.augment != "none" or config.dropout or config.stochastic_depth:
        why = "mixed" if mixed else "changed"
        return f"Training pictures are {why}, and so harder than held-out ones: their line may well lie above. "
    return "The training line is a mean over the epoch, while the weights still moved. "


def _training_accuracy(config: TrainConfig) -> str:
    if config.mixup or config.cutmix:
        return "Of mixed training pictures, the larger share counts as right: the line may stay below the other. "
    return "The training line is a mean over the epoch, while the weights still moved. "


# --- snapshots --------------------------------------------------------------------------------------------------------


def over_training(snapshots: Sequence[Snapshot], rows: Sequence[Row]) -> list[Chart]:
    """Every view that the snapshots hold, a panel a moment."""
    shown, accuracy = thin(snapshots, MOST), dict(zip(*column(rows, "test_top1"), strict=True))
    made = [draw(shown, accuracy) for draw in (_positions, _filters, _distances, _maps)]
    return [chart for chart in made if chart is not None]


def thin(snapshots: Sequence[Snapshot], most: int) -> list[Snapshot]:
    """At most so many, with the first and the last."""
    if len(snapshots) <= most:
        return list(snapshots)
    return [snapshots[round(i * (len(snapshots) - 1) / (most - 1))] for i in range(most)]


def caption(epoch: int, accuracy: Mapping[float, float] | None = None) -> str:
    """What a panel is called.

    >>> caption(0), caption(3), caption(3, {3: 0.912})
    ('before', 'epoch 3', 'epoch 3 · 91 %')
    """
    name = f"epoch {epoch}" if epoch else "before"
    # 99.7 % is not 100 %, so a share is cut rather than rounded
    return f"{name} · {int(100 * accuracy[epoch])} %" if accuracy and epoch in accuracy else name


def _positions(snapshots: Sequence[Snapshot], accuracy: Mapping[float, float]) -> Chart | None:
    panels, fixed = _moments(snapshots, "positions", draw_positions_panel, accuracy)
    if not panels:
        return None
    return Chart(
        "positions",
        "Position embeddings",
        panels,
        ("The positions did not change in this run. " if fixed else "")
        + "Each tile belongs to one patch and shows how similar its position embedding is to that of every patch. A "
        "fresh model begins with noise; with enough pictures neighbours grow alike, and whole rows and columns.",
        "Similarity of embeddings says what the model can tell apart, not how it uses it.",
        "six",
        COSINE,
    )


def _filters(snapshots: Sequence[Snapshot], accuracy: Mapping[float, float]) -> Chart | None:
    panels, fixed = _moments(snapshots, "filters", draw_filters_panel, accuracy)
    if not panels:
        return None
    return Chart(
        "filters",
        "Embedding filters",
        panels,
        ("The filters did not change in this run. " if fixed else "")
        + "The patterns that the first layer responds to, the strongest first: for a ViT the principal components of "
        "its patch filters, for a ResNet the filters of its first convolution. A fresh model begins with noise; with "
        "enough pictures edges, waves and blobs appear.",
        "Each is stretched to the full range, so faint ones look as strong as others. A component's sign means "
        "nothing, and two of like strength may change places from one moment to the next.",
        "four" if any(len(s.filters) > 9 for s in snapshots if s.filters is not None) else "six",
    )


def _distances(snapshots: Sequence[Snapshot], accuracy: Mapping[float, float]) -> Chart | None:
    known = [snapshot.distances for snapshot in snapshots if snapshot.distances is not None]
    finite = np.concatenate([values[np.isfinite(values)] for values in known]) if known else np.array([])
    if not finite.size:
        return None
    limits = around(finite)
    panels, _ = _moments(snapshots, "distances", lambda values: draw_distance_panel(values, limits=limits), accuracy)
    return Chart(
        "distance",
        "How far heads look",
        panels,
        "A dot for each head: the mean distance between a patch and what it looks at, by block; the line is their "
        "mean. Fresh heads are alike and look everywhere; with training they part, and some learn to look close by.",
        "A mean over a few pictures and all patches. A head that looks at its neighbours and one that looks at nothing "
        "in particular within reach are the same dot.",
        "four",
    )


def around(values: NDArray[Any]) -> tuple[float, float]:
    """Limits with a little room: from 0, unless all values lie so close together that they would seem to be one.

    >>> around(np.array([1.0, 10.0])), around(np.array([3.0, 4.0]))
    ((0.0, 10.8), (2.9, 4.1))
    """
    low, high = float(values.min()), float(values.max())
    if low < high / 2:
        return 0.0, 1.08 * high
    room = 0.1 * (high - low) or 0.1 * high or 0.5
    return low - room, high + room


def _maps(snapshots: Sequence[Snapshot], accuracy: Mapping[float, float]) -> Chart | None:
    known = [snapshot for snapshot in snapshots if snapshot.maps is not None and snapshot.pictures is not None]
    if not known:
        return None
    pictures = _colour(known[-1].pictures)  # type: ignore[arg-type]  # the same at all moments
    heats = np.stack([snapshot.maps for snapshot in known]).astype(np.float64)  # type: ignore[misc]
    finite = heats[np.isfinite(heats)]
    high = float(np.quantile(finite, 0.97)) if finite.size else 1.0  # a few glaring patches would leave the rest dark
    scale = Scale(0.0, high or 1.0, "attention", ends=("0", f"{high or 1.0:.2g} or more"))
    panels = {"picture": draw_overlays(pictures, None)}
    for snapshot, heat in zip(known, heats, strict=True):
        panels[caption(snapshot.epoch)] = draw_overlays(pictures, heat, limits=(scale.low, scale.high))
    labels = ", ".join(known[-1].labels)
    return Chart(
        "attention",
        "Where the class token looks",
        panels,
        "Held-out pictures, and over each the attention of the class token in the last block, mean over heads (of a "
        "model without class token, the mean over patches). A fresh model looks everywhere alike; what is picked out "
        "later is what the head reads." + (f" From top to bottom: {labels}." if labels else ""),
        "The last block alone: its tokens are mixtures already, and looking at a patch is no longer looking at that "
        "patch by itself. Nor does attention say what follows from it.",
        "strips",
        scale,
    )


def _moments(
    snapshots: Sequence[Snapshot], name: str, draw: Callable[[Any], Figure], accuracy: Mapping[float, float]
) -> tuple[dict[str, Figure], bool]:
    """A panel for each moment that has this view; one panel alone, and True, where it is the same at all moments."""
    known = [(s.epoch, getattr(s, name)) for s in snapshots if getattr(s, name) is not None]
    if len(known) > 1 and all(np.array_equal(values, known[0][1]) for _, values in known):
        return {"at all times": draw(known[0][1])}, True
    return {caption(epoch, accuracy): draw(values) for epoch, values in known}, False


def _colour(pictures: NDArray[Any]) -> NDArray[Any]:
    """Grey or colour `[i h w c]` → `[i h w 3]`."""
    return pictures if pictures.shape[-1] == 3 else pictures.repeat(3, axis=-1)
