"""Open a folder of images and masks as a dataset: `images/1.jpg` and `masks/1.png`, matched by their stems.

Splits are folders above or below: `train/images/` and `train/masks/`, or `images/train/` and `masks/train/`. All masks
are read once when the dataset is opened: what is wrong with one is known before training.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np
from PIL.Image import Image

from vitreous.data.dataset_source import SPELLINGS, DatasetSource
from vitreous.data.finding import SUFFIXES, find_images
from vitreous.data.image_dataset import ImageDataset, digest, fingerprint_files
from vitreous.data.images import ImageError, read_size
from vitreous.data.masks import CLASS_FILES, MaskValues, name_values, read_classes, read_values, sizes_differ
from vitreous.data.prefetch import prefetch
from vitreous.data.sources.class_folder import name_path
from vitreous.runtime.files import cache_folder, write_json

LOSSLESS = (".png", ".bmp", ".gif", ".tif", ".tiff")
CACHED = 1000  # from this many masks on, what was read of them is kept in the cache


def find_mask_folders(folder: Path) -> dict[str | None, tuple[Path, Path]]:
    """Find the folders of images and masks in a folder by split, None if it has none; a split without masks is none."""
    images, masks = folder / "images", folder / "masks"
    if images.is_dir() and masks.is_dir():
        pairs = [(part, images / part, masks / part) for part in SPELLINGS]
        return _existing(pairs) or {None: (images, masks)}
    return _existing([(part, folder / part / "images", folder / part / "masks") for part in SPELLINGS])


def _existing(pairs: list[tuple[str, Path, Path]]) -> dict[str | None, tuple[Path, Path]]:
    """Return the splits of which there are folders of images and masks."""
    return {part: (images, masks) for part, images, masks in pairs if images.is_dir() and masks.is_dir()}


def mask_source(folder: Path, parts: Mapping[str | None, tuple[Path, Path]]) -> DatasetSource:
    """Find the splits of a folder of images and masks."""
    found = MaskFolder(folder, dict(parts))
    return DatasetSource(
        name=str(folder),
        splits={part: partial(found.open, part) for part in parts if part is not None},
        whole=partial(found.open, None) if None in parts else None,
        layout=f"{folder}/{{}}/images/ and masks/",
        folder=folder,
        task="segment",
    )


@dataclass(frozen=True)
class MaskFolder:
    """The images and masks of a folder, by split."""

    folder: Path
    parts: dict[str | None, tuple[Path, Path]]

    def open(self, part: str | None) -> ImageDataset:
        """Open a split of a folder of images and masks; its masks are checked."""
        values = self.values
        images, masks = zip(*self.pairs(part), strict=True)
        if self.class_file is not None:  # else all masks have been read for their values
            check_masks(self.folder, list(zip(images, masks, strict=True)), values)
        return ImageDataset(
            name=self.folder.name or str(self.folder),
            class_names=values.class_names,
            labels=(0,) * len(images),
            image=images.__getitem__,
            name_of=partial(name_path, images),
            version=partial(_version, self.folder, (*images, *masks), values),
            task="segment",
            mask=partial(_read_mask, masks, values),
        )

    @cached_property
    def class_file(self) -> Path | None:
        """The file in a folder of images and masks that names the classes; None if there is none."""
        found = [path for name in CLASS_FILES if (path := self.folder / name).is_file()]
        if len(found) > 1:
            raise ValueError(f"{self.folder} has {found[0].name} and {found[1].name}: keep one of them")
        return found[0] if found else None

    @cached_property
    def values(self) -> MaskValues:
        """What the values in a folder of masks mean, by the file of names or by the values that occur in all splits."""
        if self.class_file is not None:
            return read_classes(self.class_file)
        pairs = [pair for part in self.parts for pair in self.pairs(part)]
        return name_values(check_masks(self.folder, pairs, None), str(self.folder))

    def pairs(self, part: str | None) -> list[tuple[Path, Path]]:
        """Match the images and masks of a folder by their paths without suffix; a `ValueError` names what is left."""
        folders = self.parts[part]
        images, masks = (self.by_stem(folder) for folder in folders)
        for path in masks.values():
            if path.suffix.lower() not in LOSSLESS:
                raise ValueError(f"{path} may hold inexact values: save masks as PNG, with a value for each class")
        if missing := [stem for stem in images if stem not in masks]:
            path = images[missing[0]]
            count = f"{len(missing):,} of {len(images):,} images of {self.folder}"
            have = "has no mask" if len(missing) == 1 else "have no mask"
            raise ValueError(f"{count} {have}, such as {path}: expected {folders[1] / missing[0]}.png")
        if lonely := [stem for stem in masks if stem not in images]:
            count = f"{len(lonely):,} of {len(masks):,} masks of {self.folder}"
            have = "has no image" if len(lonely) == 1 else "have no image"
            raise ValueError(f"{count} {have}, such as {masks[lonely[0]]}: add it to {folders[0]}, or remove the mask")
        return [(path, masks[stem]) for stem, path in images.items()]

    def by_stem(self, folder: Path) -> dict[str, Path]:
        """Find the images or masks below a folder: path without suffix → path."""
        if folder.parent in (self.folder / "images", self.folder / "masks"):
            loose = [path for path in folder.parent.iterdir() if path.suffix.lower() in SUFFIXES]
            if loose:
                raise ValueError(f"{loose[0]} belongs to no split, as {folder} is one: move it to a split")
        found, problems = find_images([folder])
        if problems:
            raise problems[0]
        stems: dict[str, Path] = {}
        for path in found:
            stem = path.relative_to(folder).with_suffix("").as_posix()
            if (other := stems.setdefault(stem, path)) is not path:
                raise ValueError(f"{other} and {path} have the same stem: a mask would belong to both; rename one")
        return stems


def check_masks(folder: Path, pairs: Sequence[tuple[Path, Path]], values: MaskValues | None) -> list[int]:
    """Check that a folder's masks have their images' sizes and known values; without `values`, return what occurs."""
    known = "" if values is None else json.dumps([values.class_names, values.index, values.colours])
    name = digest([known, fingerprint_files(folder, [path for pair in pairs for path in pair])])[:24]
    cached = cache_folder() / f"masks-{name}.json"
    if len(pairs) >= CACHED and cached.is_file():
        return [int(value) for value in json.loads(cached.read_text(encoding="utf-8"))]
    seen: set[int] = set()
    for found in prefetch(partial(_check_mask, values), pairs, waiting=256):
        seen |= found
    if len(pairs) >= CACHED:
        write_json(cached, sorted(seen))
    return sorted(seen)


def _check_mask(values: MaskValues | None, pair: tuple[Path, Path]) -> set[int]:
    """Check a mask of a folder; without known values return the values that occur in it."""
    image, mask = pair
    size: tuple[int, int]
    found: set[int] = set()
    if values is None:
        pixels = read_values(mask)
        size, found = (pixels.shape[1], pixels.shape[0]), set(np.unique(pixels).tolist())
    else:
        size = values.read(mask).size
    try:
        expected = read_size(image)
    except ImageError:
        return found  # decoding names the images that cannot be read, and leaves them out
    if size != expected:
        raise ImageError(str(image), sizes_differ(size, expected))
    return found


# --- functions for `partial`, which can be pickled --------------------------------------------------------------------


def _read_mask(masks: tuple[Path, ...], values: MaskValues, i: int) -> Image:
    """Read the mask of an image in a folder of images and masks."""
    return values.read(masks[i])


def _version(folder: Path, paths: Sequence[Path], values: MaskValues) -> str:
    """Hash the files of images and masks and what the values mean, for the dataset's fingerprint."""
    known = json.dumps([list(values.index.items()), values.colours])
    return digest([fingerprint_files(folder, paths), known])
