"""A run's snapshots as a `Payload` that its page scrubs through, and the sentences that go with each view.

Arrays are called `positions/0`, `positions/1`, …; the header's `views` says which of them each moment shows, so that
what did not change from one moment to the next is held once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vitreous.pages.payload import Payload
from vitreous.pages.run_curves import Row
from vitreous.training.snapshots import Snapshot

FORMAT = 1


@dataclass(frozen=True)
class View:
    """Something of the inside that was recorded, and the sentences below it."""

    name: str
    title: str
    array: Literal["positions", "filters", "distances", "maps"]
    read: str
    """How to read it."""
    beware: str
    """What it does not show."""


VIEWS = (
    View(
        "positions",
        "Position embeddings",
        "positions",
        "Each tile belongs to one patch and shows how similar its position embedding is to that of every patch. A "
        "fresh model begins with noise; with enough images neighbours grow alike, and whole rows and columns.",
        "Similarity of embeddings says what the model can tell apart, not how it uses it.",
    ),
    View(
        "filters",
        "Embedding filters",
        "filters",
        "The patterns that the first layer responds to, the strongest first: for a ViT the principal components of "
        "its patch filters, for a ResNet the filters of its first convolution. A fresh model begins with noise; with "
        "enough images edges, waves and blobs appear.",
        "Each is stretched to the full range, so faint ones look as strong as others. A component's sign means "
        "nothing, and two of like strength may change places from one moment to the next.",
    ),
    View(
        "distance",
        "How far heads look",
        "distances",
        "A dot for each head: the mean distance between a patch and what it looks at, by block; the line is their "
        "mean. Fresh heads are alike and look everywhere; with training they part, and some learn to look close by.",
        "A mean over a few images and all patches. A head that looks at its neighbours and one that looks at nothing "
        "in particular within reach are the same dot.",
    ),
    View(
        "attention",
        "Where the class token looks",
        "maps",
        "Held-out images, and over each the attention of the class token in the last block, mean over heads (of a "
        "model without class token, the mean over patches). A fresh model looks everywhere alike; what is picked out "
        "later is what the head reads.",
        "The last block alone: its tokens are mixtures already, and looking at a patch is no longer looking at that "
        "patch by itself. Nor does attention say what follows from it.",
    ),
)


def moments_payload(snapshots: Sequence[Snapshot], rows: Sequence[Row]) -> Payload | None:
    """All that was recorded, moment by moment; None where that is nothing."""
    by_epoch = {row["epoch"]: row for row in rows}
    payload = Payload({"format": FORMAT, "moments": [moment(s.epoch, by_epoch.get(s.epoch)) for s in snapshots]})
    found: dict[str, list[int | None]] = {}
    for view in VIEWS:
        places, kept = _distinct([_whole(getattr(s, view.array)) for s in snapshots])
        if view.array == "maps" and not any(s.images is not None for s in snapshots):
            continue
        if not kept:
            continue
        found[view.name] = places
        for number, values in enumerate(kept):
            if view.array == "filters":  # bytes already
                payload.add(f"{view.name}/{number}", values)
            else:
                scaled = None if view.array == "distances" else 2  # a scale a tile, or a map
                payload.add(f"{view.name}/{number}", values.astype(np.float32), scaled=scaled)
        if view.array == "distances":
            payload.header["reach"] = around(np.concatenate([values.ravel() for values in kept]))
        if view.array == "maps":
            _add_images(payload, snapshots, kept)
    payload.header["views"] = found
    return payload if found else None


def moment(epoch: int, row: Row | None) -> dict[str, Any]:
    """A moment's name, and what is known of it.

    >>> moment(0, None)["said"], moment(12, {"test_top1": 0.9125, "test_loss": 0.307})["said"]
    ('before training', 'epoch 12 · 91.2 % held out · loss 0.307')
    """
    name = f"epoch {epoch}" if epoch else "before training"
    said = [name]
    if row and isinstance(row.get("test_top1"), (int, float)):
        top1 = 100 * row["test_top1"]
        said.append(f"{min(top1, 99.9) if top1 < 100 else top1:.1f} % held out")  # 99.97 % is not 100 %
    loss = (row or {}).get("test_loss", (row or {}).get("loss"))
    if isinstance(loss, (int, float)) and np.isfinite(loss):
        said.append(f"loss {loss:.3g}")
    return {"epoch": epoch, "name": name, "said": " · ".join(said)}


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


def _whole(values: NDArray[Any] | None) -> NDArray[Any] | None:
    """What is not all numbers is as good as nothing."""
    return values if values is not None and values.size and np.isfinite(values).all() else None


def _distinct(arrays: Sequence[NDArray[Any] | None]) -> tuple[list[int | None], list[NDArray[Any]]]:
    """Which of the distinct arrays stands in each place, and those arrays in the order of their first appearance.

    >>> one, two = np.zeros(2), np.ones(2)
    >>> _distinct([one, one.copy(), None, two])[0]
    [0, 0, None, 1]
    """
    kept: dict[bytes, NDArray[Any]] = {}
    places: list[int | None] = []
    for array in arrays:
        if array is None:
            places.append(None)
            continue
        key = array.tobytes()
        kept.setdefault(key, array)
        places.append(list(kept).index(key))
    return places, list(kept.values())


def _add_images(payload: Payload, snapshots: Sequence[Snapshot], maps: Sequence[NDArray[Any]]) -> None:
    last = next(s for s in reversed(snapshots) if s.images is not None)  # the same at all moments
    payload.add("images", last.images)  # type: ignore[arg-type]
    payload.header["labels"] = list(last.labels)
    high = float(np.quantile(np.concatenate([values.ravel() for values in maps]).astype(np.float64), 0.97))
    payload.header["peak"] = high or 1.0  # a few glaring patches would leave the rest dark


def said_of(view: View, header: Mapping[str, Any]) -> str:
    """How to read a view of this run."""
    places = header["views"][view.name]
    if len(places) > 1 and len(set(places)) == 1:
        return f"This did not change in this run. {view.read}"
    return view.read
