"""Pack a run's snapshots of the model's inside for its page, epoch by epoch, with the texts of each view.

Arrays are called `positions/0`, `positions/1`, …; the header's `views` lists which of them each moment shows, so that
an array that did not change from one moment to the next is stored once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vitreous.pages.payload import Payload
from vitreous.runtime.wording import accuracy
from vitreous.training.snapshots import Snapshot

FORMAT = 1


@dataclass(frozen=True)
class SnapshotView:
    """A part of the model's inside that snapshots record, and the sentences below it."""

    name: str
    title: str
    array: Literal["positions", "filters", "distances", "maps"]
    read: str
    """How to read it."""
    beware: str
    """What it does not show."""


SNAPSHOT_VIEWS = (
    SnapshotView(
        "positions",
        "Position embeddings",
        "positions",
        "Each tile belongs to one patch and shows how similar its position embedding is to that of every patch. A "
        "fresh model begins with noise; with enough images, neighbours become similar, then whole rows and columns.",
        "Similar embeddings show which positions the model can tell apart, not how it uses them.",
    ),
    SnapshotView(
        "filters",
        "Embedding filters",
        "filters",
        "The patterns that the first layer responds to, the strongest first: for a ViT the principal components of "
        "its patch filters, for a ResNet the filters of its first convolution. A fresh model begins with noise; with "
        "enough images, edges, waves and blobs appear.",
        "Each is stretched to the full range, so faint ones look as strong as others. A component's sign means "
        "nothing, and two of similar strength may change places from one moment to the next.",
    ),
    SnapshotView(
        "distance",
        "Attention distance of heads",
        "distances",
        "A dot for each head: the mean distance between a patch and the patches that it attends to, by block; the line "
        "is their mean. Fresh heads attend everywhere alike; with training they spread, and some stay close by.",
        "A mean over a few images and all patches. A head that attends to its neighbours and one that attends evenly "
        "within the same reach give the same dot.",
    ),
    SnapshotView(
        "attention",
        "Attention of the class token",
        "maps",
        "Held-out images, and over each the attention of the class token in the last block, mean over heads (for a "
        "model without class token, the mean over patches). A fresh model attends everywhere alike; later the head "
        "reads the patches that stand out.",
        "The last block alone: its tokens are mixtures already, so attention to a patch is no longer attention to that "
        "patch by itself. Attention does not show what effect it has on the answer.",
    ),
)


def snapshots_payload(snapshots: Sequence[Snapshot], rows: Sequence[Mapping[str, Any]]) -> Payload | None:
    """Pack all snapshots of a run, moment by moment; None if nothing was recorded. `rows` are the run's metrics."""
    by_epoch = {row["epoch"]: row for row in rows}
    payload = Payload({"format": FORMAT, "moments": [moment(s.epoch, by_epoch.get(s.epoch)) for s in snapshots]})
    found: dict[str, list[int | None]] = {}
    for view in SNAPSHOT_VIEWS:
        indices, distinct = _distinct([_finite(getattr(s, view.array)) for s in snapshots])
        if view.array == "maps" and not any(s.images is not None for s in snapshots):
            continue
        if not distinct:
            continue
        found[view.name] = indices
        for number, values in enumerate(distinct):
            if view.array == "filters":  # bytes already
                payload.add(f"{view.name}/{number}", values)
            else:
                scaled = None if view.array == "distances" else 2  # a scale for each tile or map
                payload.add(f"{view.name}/{number}", values.astype(np.float32), scaled=scaled)
        if view.array == "distances":
            payload.header["reach"] = limits(np.concatenate([values.ravel() for values in distinct]))
        if view.array == "maps":
            _add_images(payload, snapshots, distinct)
    payload.header["views"] = found
    return payload if found else None


def views_of(payload: Payload) -> list[SnapshotView]:
    """List the views that a run's snapshots recorded; their texts say so if a view did not change."""
    recorded = payload.header["views"]
    return [
        replace(view, read=f"This did not change in this run. {view.read}")
        if len(recorded[view.name]) > 1 and len(set(recorded[view.name])) == 1
        else view
        for view in SNAPSHOT_VIEWS
        if view.name in recorded
    ]


def moment(epoch: int, row: Mapping[str, Any] | None) -> dict[str, Any]:
    """Describe a snapshot's moment: epoch, name and caption; `row` is its line of metrics.

    >>> moment(0, None)["caption"], moment(12, {"test_top1": 0.9125, "test_loss": 0.307})["caption"]
    ('before training', 'epoch 12 · 91.25 % held out · loss 0.307')
    """
    name = f"epoch {epoch}" if epoch else "before training"
    parts = [name]
    if row and isinstance(row.get("test_top1"), (int, float)):
        parts.append(f"{accuracy(row['test_top1'])} held out")
    loss = (row or {}).get("test_loss", (row or {}).get("loss"))
    if isinstance(loss, (int, float)) and np.isfinite(loss):
        parts.append(f"loss {loss:.3g}")
    return {"epoch": epoch, "name": name, "caption": " · ".join(parts)}


def limits(values: NDArray[Any]) -> tuple[float, float]:
    """Choose the axis limits of snapshots on the run's page: from 0, unless all values lie close together.

    >>> limits(np.array([1.0, 10.0])), limits(np.array([3.0, 4.0]))
    ((0.0, 10.8), (2.9, 4.1))
    """
    low, high = float(values.min()), float(values.max())
    if low < high / 2:
        return 0.0, 1.08 * high
    margin = 0.1 * (high - low) or 0.1 * high or 0.5
    return low - margin, high + margin


def _finite(values: NDArray[Any] | None) -> NDArray[Any] | None:
    """Return a snapshot's array, or None if it is empty or holds an infinite or undefined value."""
    return values if values is not None and values.size and np.isfinite(values).all() else None


def _distinct(arrays: Sequence[NDArray[Any] | None]) -> tuple[list[int | None], list[NDArray[Any]]]:
    """Find equal snapshots: each array's index among the distinct ones, and these in order of first appearance.

    >>> one, two = np.zeros(2), np.ones(2)
    >>> _distinct([one, one.copy(), None, two])[0]
    [0, 0, None, 1]
    """
    distinct: dict[bytes, NDArray[Any]] = {}
    indices: list[int | None] = []
    for array in arrays:
        if array is None:
            indices.append(None)
            continue
        key = array.tobytes()
        distinct.setdefault(key, array)
        indices.append(list(distinct).index(key))
    return indices, list(distinct.values())


def _add_images(payload: Payload, snapshots: Sequence[Snapshot], maps: Sequence[NDArray[Any]]) -> None:
    """Pack the images and attention maps of snapshots for the run's page."""
    last = next(s for s in reversed(snapshots) if s.images is not None)  # the same at all moments
    assert last.images is not None
    payload.add("images", last.images)
    payload.header["labels"] = list(last.labels)
    high = float(np.quantile(np.concatenate([values.ravel() for values in maps]).astype(np.float64), 0.97))
    payload.header["peak"] = high or 1.0  # a few extreme patches would leave the rest dark
