"""Select what a result shows: an index of class, block, head and query, or the mean; a title and a scale to match."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np

from vitreous.figures.checks import Floats

Axis = Literal["class", "block", "head", "query"]
At = Mapping[Axis, int | None]
Names = Mapping[Axis, Sequence[str]]
MatrixScale = Literal["raw", "log", "layer-norm"]


def select(values: Floats, axes: Sequence[Axis], at: At, keep: Sequence[Axis] = (), prefix: int = 0) -> Floats:
    """Select values `[*axes …]` at one index of each axis, or their mean; the axes in `keep` stay.

    The mean over queries is that over patches alone: the first `prefix` tokens are no patches.

    >>> select(np.eye(3), ("query",), {"query": 1}).tolist()
    [0.0, 1.0, 0.0]
    >>> select(np.eye(3), ("query",), {"query": None}, prefix=1).tolist()
    [0.0, 0.5, 0.5]
    """
    position = 0
    for axis in axes:
        if axis in keep:
            position += 1
        elif (index := at.get(axis)) is not None:
            values = np.take(values, [index], axis=position).squeeze(position)
        else:
            chosen = values[(slice(None),) * position + (slice(prefix, None),)] if axis == "query" else values
            values = chosen.mean(axis=position)
    return values


def fill_title(title: str, at: At, names: Names, panels: Sequence[Axis] = ()) -> str:
    """Fill in the `{class}`, `{block}`, `{head}` and `{query}` of a result's title; axes of `panels` are all shown.

    >>> fill_title("Attention of {block}, {head}", {"block": 3, "head": None}, {})
    'Attention of block 3, mean over heads'
    """
    words = {
        axis: names[axis][at.get(axis) or 0] if axis in names and at.get(axis) is not None else f"{axis} {at.get(axis)}"
        for axis in ("class", "block", "head", "query")
    }
    if at.get("head") is None:
        words["head"] = "mean over heads"
    if at.get("query") is None:
        words["query"] = "average patch"
    words |= {axis: f"each {axis}" for axis in panels}
    return title.format(**words)


def log_scaled(matrix: Floats, floor: float = 1e-6) -> Floats:
    """Take the decimal logarithm of the values that are selected to be shown; values below `floor` count as `floor`.

    >>> log_scaled(np.array([1.0, 0.01, 0.0])).tolist()
    [0.0, -2.0, -6.0]
    """
    return np.log10(np.maximum(matrix, floor))


def layer_normed(matrix: Floats, eps: float = 1e-5) -> Floats:
    """Layer-normalise each row of the values that are selected to be shown, so that rows can be compared.

    `eps` is torch's own: a row as flat as uniform attention over 200 tokens stays pale, rather than showing its noise.

    >>> layer_normed(np.array([[0.0, 2.0], [4.0, 0.0]]), eps=0.0).tolist()
    [[-1.0, 1.0], [1.0, -1.0]]
    """
    centred = matrix - matrix.mean(axis=-1, keepdims=True)
    scaled: Floats = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + eps)
    return scaled


SCALES: Mapping[MatrixScale, Callable[[Floats], Floats]] = {
    "raw": lambda matrix: matrix,
    "log": log_scaled,
    "layer-norm": layer_normed,
}
"""How the values of a matrix are transformed before they are shown."""
