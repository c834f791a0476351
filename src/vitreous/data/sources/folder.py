"""Open a folder of images: a sub-folder for each class, with or without train/ and test/ (or val/) above them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from vitreous.data.finding import find_images
from vitreous.data.image_dataset import ImageDataset, digest, file_state
from vitreous.data.sources.source import SPELLINGS, DatasetSource


def from_folder(folder: Path) -> ImageDataset:
    """Open `<folder>/<class>/<image>` as a dataset."""
    classes = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not classes:
        raise ValueError(f"{folder} has no sub-folders: expected one for each class, {folder}/<class>/<image>")
    paths: list[Path] = []
    labels: list[int] = []
    for label, path in enumerate(classes):
        found, _ = find_images([path])
        paths += found
        labels += [label] * len(found)
    if not paths:
        raise ValueError(
            f"{folder} has {len(classes)} sub-folders but no images in them: expected {folder}/<class>/<image>"
        )
    return ImageDataset(
        name=folder.name or str(folder),
        class_names=tuple(path.name for path in classes),
        labels=tuple(labels),
        image=paths.__getitem__,
        name_of=partial(_name_of, paths),
        version=partial(fingerprint_files, folder, paths),
    )


def folder_source(folder: Path) -> DatasetSource:
    """Find the splits of a folder by the names of its sub-folders; without such names it is one dataset."""
    parts = {part: folder / part for part in SPELLINGS if (folder / part).is_dir()}
    return DatasetSource(
        name=str(folder),
        splits={part: partial(from_folder, path) for part, path in parts.items()},
        whole=None if parts else partial(from_folder, folder),
        part="{}/ folder",
        layout=f"{folder}/{{}}/<class>/<image>",
        folder=folder,
    )


def fingerprint_files(folder: Path, paths: Sequence[Path]) -> str:
    """Return a text that changes whenever a file is added, removed, renamed or written; no file is opened.

    The folder's path counts too: two folders unpacked from archives may agree in all names, sizes and times.
    """
    root = os.path.abspath(folder)
    return digest([root, *(text for path in paths for text in (os.path.relpath(path, folder), file_state(path)))])


def _name_of(paths: Sequence[Path], i: int) -> str:
    return str(paths[i])
