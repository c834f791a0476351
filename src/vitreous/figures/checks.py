"""Check the arrays that figures take, with errors that state the expected and the received shape."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Bytes = NDArray[np.uint8]


def array_of(name: str, values: ArrayLike, shape: str) -> Floats:
    """Check an array's shape as `shape` spells it, and return floats; a word that occurs twice means the same length.

    Infinities become NaN: a drawing has one way to say "no number here".

    >>> array_of("heat", [[1, 2]], "rows columns").shape
    (1, 2)
    >>> array_of("matrix", [[1, 2]], "tokens tokens")
    Traceback (most recent call last):
    ...
    ValueError: matrix must have shape [tokens tokens], got [1 2]
    """
    array = np.asarray(values)
    if array.dtype.kind not in "buif":
        raise ValueError(f"{name} must hold real numbers, got {array.dtype}")
    _check(name, array.shape, shape)
    array = array.astype(np.float64)
    return np.where(np.isfinite(array), array, np.nan)


def image_of(image: ArrayLike) -> Bytes:
    """Check an image as the figures take it: uint8 `[height width 3]`."""
    array = np.asarray(image)
    if array.dtype != np.uint8:
        raise ValueError(
            f"image must be uint8 of shape [height width 3], got {array.dtype} of shape {_spell(array.shape)}: "
            "undo the normalisation, scale to 0..255 and call .astype('uint8')"
        )
    _check("image", array.shape, "height width 3")
    return array


def colours_of(name: str, values: ArrayLike, shape: str) -> Floats:
    """Check colours, floats in 0..1 or uint8, and return them in 0..1."""
    array = np.asarray(values)
    floats = array_of(name, array, shape)
    if array.dtype == np.uint8:
        return floats / 255
    low, high = np.nanmin(floats, initial=np.inf), np.nanmax(floats, initial=-np.inf)
    if low < -1e-6 or high > 1 + 1e-6:
        raise ValueError(f"{name} must be scaled to 0..1, got {low:.4g} to {high:.4g}")
    return np.clip(floats, 0, 1)


def labels_of(name: str, labels: Sequence[str], count: int) -> list[str]:
    """Check that there is one label for each of `count` things."""
    if isinstance(labels, str) or len(labels) != count:
        got = repr(labels) if isinstance(labels, str) else len(labels)
        raise ValueError(f"{name} must be {count} strings, got {got}")
    return [str(label) for label in labels]


def curve_of(name: str, y: ArrayLike) -> Floats:
    """Check a curve as the figures take it: at least two points."""
    y = array_of(name, y, "n")
    if len(y) < 2:
        raise ValueError(f"{name} must have at least 2 points, before the first step and after the last, got {len(y)}")
    return y


def check_position(name: str, position: tuple[int, int], grid: Sequence[int]) -> None:
    """Raise unless a position (row, column) that a figure marks lies in the grid of patches."""
    if len(position) != 2 or not all(0 <= at < side for at, side in zip(position, grid, strict=True)):
        raise ValueError(f"{name} must be a (row, column) in a grid of {grid[0]}×{grid[1]}, got {position}")


def _check(name: str, got: tuple[int, ...], shape: str) -> None:
    """Raise for a figure's array whose shape is not the expected one."""
    words = shape.split()
    lengths: dict[str, int] = {word: int(word) for word in words if word.isdecimal()}
    fits = len(words) == len(got) and all(got)
    if not fits or any(lengths.setdefault(word, length) != length for word, length in zip(words, got, strict=True)):
        raise ValueError(f"{name} must have shape [{shape}]{'' if all(got) else ', none of them 0'}, got {_spell(got)}")


def _spell(shape: tuple[int, ...]) -> str:
    """Write a shape as errors about a figure's arrays have it."""
    return f"[{' '.join(map(str, shape))}]"
