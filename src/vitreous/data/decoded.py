"""Small sets, decoded once: all images of a set as one array of pixels, cached on disk and memory-mapped.

In goes a `ImageDataset` and a `Preprocess`; out come the pixels as the model sees them before normalisation, uint8
`[n c h w]`. The second run on the same images opens the cached file at once. Batches are then a gather, on the CPU
from the mapped file or on a GPU that holds it all.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vitreous.data.datasets import data_root
from vitreous.data.image_dataset import ImageDataset
from vitreous.data.images import ImageError, read_image
from vitreous.data.prefetch import ahead
from vitreous.data.preprocess import Preprocess

MOST_NAMED = 5  # unreadable images that an error names


def array_bytes(images: int, preprocess: Preprocess) -> int:
    """How many bytes a set takes once decoded."""
    return images * len(preprocess.mean) * preprocess.size[0] * preprocess.size[1]


def decode(
    data: ImageDataset,
    preprocess: Preprocess,
    *,
    cache: Path | None = None,
    progress: Callable[[int], object] = lambda done: None,
) -> Tensor:
    """The pixels of a whole set, uint8 `[n c h w]`, from the cache or decoded now.

    An image that cannot be read is an error that names it: a set with holes would train on something else.
    """
    folder = cache or Path(os.environ.get("VITREOUS_CACHE") or data_root().parent / "decoded")
    shape = (len(data), len(preprocess.mean), *preprocess.size)
    path = folder / f"{_key(data, preprocess)}.npy"
    if (found := _open(path, shape)) is not None:
        progress(len(data))
        return found
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"decoded images cannot be kept in {folder} ({error.strerror})"
        raise OSError(f"{message}: set VITREOUS_CACHE to another folder, or pass --resident no") from error
    _sweep(folder)
    temporary = path.with_suffix(f".{os.getpid()}.partial")
    try:
        _need_space(folder, int(np.prod(shape)))
        pixels = np.lib.format.open_memmap(temporary, mode="w+", dtype=np.uint8, shape=shape)
        _take_space(temporary)
        _fill(pixels, data, preprocess, progress)
        pixels.flush()
        del pixels
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    decoded = _open(path, shape)
    assert decoded is not None
    return decoded


def _fill(pixels: np.ndarray, data: ImageDataset, preprocess: Preprocess, progress: Callable[[int], object]) -> None:
    def read(i: int) -> np.ndarray | ImageError:
        try:
            view = np.asarray(preprocess.view(read_image(data.image(i))))
            return view.reshape(*preprocess.size, -1).transpose(2, 0, 1)  # [c h w]
        except ImageError as error:
            return ImageError(data.describe(i), error.reason)

    problems: list[ImageError] = []
    for i, view in enumerate(ahead(read, range(len(data)), waiting=256)):
        if isinstance(view, ImageError):
            problems.append(view)
        else:
            pixels[i] = view
        if i % 64 == 63 or i + 1 == len(data):
            progress(i + 1)
    if problems:
        raise unreadable(problems, data)


def unreadable(problems: list[ImageError], data: ImageDataset) -> ValueError:
    """One line that names the first few bad images of a set."""
    named = "; ".join(str(problem) for problem in problems[:MOST_NAMED])
    more = f"; and {len(problems) - MOST_NAMED} more" if len(problems) > MOST_NAMED else ""
    count = f"{len(problems)} of {len(data):,} images cannot be read"
    return ValueError(f"{count}: {named}{more}. Repair them or take them out of {data.name}, then run again")


def _key(data: ImageDataset, preprocess: Preprocess) -> str:
    seen = {k: v for k, v in preprocess.to_dict().items() if k not in ("mean", "std")}
    text = json.dumps([data.fingerprint, len(preprocess.mean), seen], sort_keys=True)
    return f"{Path(data.name).name[:64]}-{hashlib.sha256(text.encode()).hexdigest()[:24]}"


def _open(path: Path, shape: tuple[int, ...]) -> Tensor | None:
    """The cached array, or None where there is none of this shape (a file cut short is decoded anew)."""
    try:
        pixels = np.load(path, mmap_mode="c")  # copy on write: torch wants an array that it could write to
    except (OSError, ValueError, EOFError):
        return None
    return torch.from_numpy(pixels) if pixels.shape == shape and pixels.dtype == np.uint8 else None


def _sweep(folder: Path) -> None:
    """Remove what killed processes left half written: nobody has touched it for a day."""
    for path in folder.glob("*.partial"):
        with suppress(FileNotFoundError):  # another process sweeps too
            if time.time() - path.stat().st_mtime > 24 * 3600:
                path.unlink()


def _take_space(file: Path) -> None:
    """Have the file's blocks handed out now, where the system can: another program may fill the disk meanwhile."""
    if hasattr(os, "posix_fallocate"):
        with file.open("r+b") as opened:
            os.posix_fallocate(opened.fileno(), 0, file.stat().st_size)


def _need_space(folder: Path, wanted: int) -> None:
    """A memory-mapped file on a full disk ends the process without a word, so ask first."""
    import shutil

    free = shutil.disk_usage(folder).free
    if free < wanted + (64 << 20):
        raise OSError(
            f"decoded images take {wanted / 2**20:,.0f} MiB and {folder} has {free / 2**20:,.0f} MiB left: "
            "free some space, or set VITREOUS_CACHE to another folder"
        )
