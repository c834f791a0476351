"""Decode a small dataset once: all its images as one array of pixels, cached on disk and memory-mapped.

`decode(data, preprocess)` returns the pixels before normalisation, uint8 `[n c h w]`; a dataset with masks has one more
channel, its last: the mask. The next run on the same images opens the cached file. Batches are then a gather, on the
CPU from the mapped file or on a GPU that holds it all.
"""

import hashlib
import json
import math
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vitreous.data.datasets import data_root
from vitreous.data.image_dataset import ImageDataset
from vitreous.data.images import ImageError
from vitreous.data.masks import read_with_mask, view_mask
from vitreous.data.prefetch import prefetch
from vitreous.data.preprocess import Preprocess
from vitreous.runtime.files import write_json

LIMIT_NAMED = 5  # unreadable images that an error names


def array_bytes(data: ImageDataset, preprocess: Preprocess) -> int:
    """Return the bytes that a dataset takes once decoded."""
    return math.prod(_shape(data, preprocess))


def _shape(data: ImageDataset, preprocess: Preprocess) -> tuple[int, int, int, int]:
    """Return the shape of a dataset's decoded pixels: images, colours (and the mask), height, width."""
    return len(data), len(preprocess.mean) + (data.mask is not None), *preprocess.size


def decode(
    data: ImageDataset,
    preprocess: Preprocess,
    *,
    cache: Path | None = None,
    progress: Callable[[int], object] = lambda done: None,
    problems: dict[int, str] | None = None,
) -> Tensor:
    """Return the pixels (and masks) of a whole dataset, uint8 `[n c h w]`, from the cache or decoded now.

    Images that cannot be read raise an error that names them or, with `problems`, are black, and that dictionary gets
    their indices and the reasons.
    """
    folder = cache or Path(os.environ.get("VITREOUS_CACHE") or data_root().parent / "decoded")
    shape = _shape(data, preprocess)
    path = folder / f"{_key(data, preprocess)}.npy"
    if problems is not None and (found := _open(path, shape)) is not None:
        holes = _read_holes(path)
        unread = {i: view.reason for i in holes if isinstance(view := _view(data, preprocess, i), ImageError)}
        if len(unread) == len(holes):  # else one may be read by now, such as one that was forbidden before
            problems |= unread
            progress(len(data))
            return found
    elif not _read_holes(path) and (found := _open(path, shape)) is not None:
        progress(len(data))
        return found
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        advice = "set VITREOUS_CACHE to another folder, or pass --resident no"
        raise OSError(f"decoded images cannot be kept in {folder} ({error.strerror}): {advice}") from error
    _sweep(folder)
    temporary = path.with_suffix(f".{os.getpid()}.partial")
    try:
        _check_space(folder, math.prod(shape))
        pixels = np.lib.format.open_memmap(temporary, mode="w+", dtype=np.uint8, shape=shape)
        if hasattr(os, "posix_fallocate"):  # take the blocks now: another program may fill the disk meanwhile
            with temporary.open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, temporary.stat().st_size)
        unread = _fill(pixels, data, preprocess, progress)
        pixels.flush()
        del pixels
        if unread and problems is None:
            raise unreadable([ImageError(data.describe(i), reason) for i, reason in unread.items()], data)
        if problems is not None and unread:
            problems |= unread
            write_json(path.with_suffix(".json"), list(unread))  # before the pixels: black images must not count
        os.replace(temporary, path)
        if not unread:
            path.with_suffix(".json").unlink(missing_ok=True)
    finally:
        temporary.unlink(missing_ok=True)
    decoded = _open(path, shape)
    assert decoded is not None
    return decoded


def _fill(
    pixels: np.ndarray, data: ImageDataset, preprocess: Preprocess, progress: Callable[[int], object]
) -> dict[int, str]:
    """Fill the array of decoded images with a whole dataset; return which cannot be read, with the reasons."""
    problems: dict[int, str] = {}
    for i, view in enumerate(prefetch(partial(_view, data, preprocess), range(len(data)), waiting=256)):
        if isinstance(view, ImageError):
            problems[i] = view.reason
        else:
            pixels[i] = view
        if i % 64 == 63 or i + 1 == len(data):
            progress(i + 1)
    return problems


def _view(data: ImageDataset, preprocess: Preprocess, i: int) -> np.ndarray | ImageError:
    """Decode one image of a dataset, and its mask, to `[c h w]`; the error if it cannot be read."""
    try:
        image, mask = read_with_mask(data, i)
        view = np.asarray(preprocess.view(image)).reshape(*preprocess.size, -1)  # [h w c]
        if mask is not None:
            view = np.dstack([view, np.asarray(view_mask(mask, preprocess))])
    except ImageError as error:
        return error
    return view.transpose(2, 0, 1)


def _read_holes(path: Path) -> list[int]:
    """Return the indices of the images that are black in a cached array because they could not be read."""
    holes = path.with_suffix(".json")
    return list(json.loads(holes.read_text(encoding="utf-8"))) if holes.is_file() else []


def unreadable(problems: list[ImageError], data: ImageDataset) -> ValueError:
    """Make an error that names the first few images that could not be read while a dataset was decoded."""
    named = "; ".join(str(problem) for problem in problems[:LIMIT_NAMED])
    more = f"; and {len(problems) - LIMIT_NAMED} more" if len(problems) > LIMIT_NAMED else ""
    count = f"{len(problems)} of {len(data):,} images cannot be read"
    return ValueError(f"{count}: {named}{more}. Repair them or take them out of {data.name}, then run again")


def _key(data: ImageDataset, preprocess: Preprocess) -> str:
    """Hash a dataset and its preprocessing to the name of the cached array of pixels."""
    seen = {k: v for k, v in preprocess.to_dict().items() if k not in ("mean", "std")}
    text = json.dumps([data.fingerprint, len(preprocess.mean), seen], sort_keys=True)
    return f"{Path(data.name).name[:64]}-{hashlib.sha256(text.encode()).hexdigest()[:24]}"


def _open(path: Path, shape: tuple[int, ...]) -> Tensor | None:
    """Open a dataset's cached array of pixels; None if there is none of this shape (a truncated one is made again)."""
    try:
        pixels = np.load(path, mmap_mode="c")  # copy on write: torch wants an array that it could write to
    except (OSError, ValueError, EOFError):
        return None
    return torch.from_numpy(pixels) if pixels.shape == shape and pixels.dtype == np.uint8 else None


def _sweep(folder: Path) -> None:
    """Remove partial caches of killed processes: those not written to for a day."""
    for path in folder.glob("*.partial"):
        with suppress(FileNotFoundError):  # another process sweeps too
            if time.time() - path.stat().st_mtime > 24 * 3600:
                path.unlink()


def _check_space(folder: Path, size: int) -> None:
    """Check the free space for decoded pixels: writing to a memory-mapped file on a full disk kills the process."""
    free = shutil.disk_usage(folder).free
    if free < size + (64 << 20):
        raise OSError(
            f"decoded images take {size / 2**20:,.0f} MiB and {folder} has {free / 2**20:,.0f} MiB left: "
            "free some space, or set VITREOUS_CACHE to another folder"
        )
