"""Open a folder with a sub-folder of images for each class as a dataset; `train/` and `test/` above make splits."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from vitreous.data.dataset_source import SPELLINGS, DatasetSource
from vitreous.data.finding import find_images
from vitreous.data.image_dataset import ImageDataset, fingerprint_files
from vitreous.data.sources.labels_csv import SUFFIXES as TABLE_SUFFIXES


def has_classes(folder: Path) -> bool:
    """Return whether a dataset's folder, or one of a split in it, has two sub-folders or more: classes."""
    parts = [path for part in SPELLINGS if (path := folder / part).is_dir()] or [folder]
    return any(sum(path.is_dir() and path.name[0] != "." for path in part.iterdir()) > 1 for part in parts)


def from_folder(folder: Path) -> ImageDataset:
    """Open `<folder>/<class>/<image>` as a dataset."""
    classes = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not classes:
        expected = f"expected one for each class, {folder}/<class>/<image>"
        raise ValueError(f"{folder} has no sub-folders: {expected}{table_hint(folder)}")
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
        name_of=partial(name_path, paths),
        version=partial(fingerprint_files, folder, paths),
    )


def table_hint(folder: Path) -> str:
    """Name a table in a folder that has no classes: the labels may stand there."""
    found = sorted(path for path in folder.iterdir() if path.suffix in TABLE_SUFFIXES)
    return f", or name the table of labels: --data {found[0]}" if found else ""


def folder_source(folder: Path) -> DatasetSource:
    """Make a source of a folder with a sub-folder for each class; `train/` and `test/` above these are its splits.

    Without sub-folders of such names it is one dataset.
    """
    parts = {part: folder / part for part in SPELLINGS if (folder / part).is_dir()}
    return DatasetSource(
        name=str(folder),
        splits={part: partial(from_folder, path) for part, path in parts.items()},
        whole=None if parts else partial(from_folder, folder),
        part="{}/ folder",
        layout=f"{folder}/{{}}/<class>/<image>",
        folder=folder,
    )


def name_path(paths: Sequence[Path], i: int) -> str:
    """Name an image of a dataset by its path: one in a class's folder, or one that has a mask."""
    return str(paths[i])
