"""`DATASETS`, `open_dataset`, `find_source`: find and open a dataset by its name, folder, table or Hub name."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vitreous.data.dataset_source import DatasetSource, split_parts
from vitreous.data.finding import nearest_path
from vitreous.data.image_dataset import NOUNS, TASKS, ImageDataset
from vitreous.data.sources.class_folder import folder_source, has_classes
from vitreous.data.sources.hub import PREFIX, hub_source, is_hub_name
from vitreous.data.sources.labels_csv import SUFFIXES as TABLE_SUFFIXES
from vitreous.data.sources.labels_csv import find_tables, open_table, table_source
from vitreous.data.sources.mask_folder import find_mask_folders, mask_source
from vitreous.data.sources.parquet import find_parquet, parquet_source
from vitreous.data.sources.table_targets import guess_task
from vitreous.data.sources.torchvision_datasets import TORCHVISION_DATASETS

if TYPE_CHECKING:
    from PIL.Image import Image

EXPECTED = {
    "classify": "a class for each image: a folder for each, or a table with a column label",
    "multilabel": "a table with a column labels (cat;outdoor), or with a column of 0 and 1 for each label",
    "regress": "a table with columns of numbers",
    "segment": "a folder with images/ and masks/",
}
"""Task → what its data look like, for messages."""


def open_dataset(
    name: str | Path, split: str = "test", root: Path | None = None, task: str | None = None
) -> ImageDataset:
    """Open a dataset: a name of `DATASETS`, a folder with a sub-folder for each class, a table, or a Hub name.

    A table is a .csv file with columns image and label (and perhaps split), or parquet files with the images inside. A
    folder with the Hub's metadata.csv or metadata.jsonl, or with a labels.csv, is read by that.

    `task` is one of `TASKS`, or None to guess it: a table may have several labels for each image, or numbers, and a
    folder may have `images/` and `masks/`.

    A folder may hold `train/` and `val/` or `test/` folders of such; `split` chooses, and `train+validation` joins two.
    A dataset without splits is a test split (`open_split` divides it). Named datasets are downloaded to `root` on first
    use.

    >>> len(open_dataset("digits")), open_dataset("digits").class_names[:3]
    (360, ('0', '1', '2'))
    """
    split_parts(split)  # a misspelled split is found before a download
    return find_source(name, root, task).open(split)


def find_source(name: str | Path, root: Path | None = None, task: str | None = None) -> DatasetSource:
    """Resolve a name among all datasets: one of `DATASETS`, a local folder or file, or one on the Hub.

    A name of `DATASETS` that is a folder here too raises: `./NAME` is the folder.

    `task` is one of `TASKS`, or None to guess it; a `ValueError` says what a dataset of that task looks like.
    """
    if task is not None and task not in TASKS:
        raise ValueError(f"unknown task {task!r}: choose from {', '.join(TASKS)}")
    source = _find_source(name, root, task)
    if task is not None and source.task != task:
        raise ValueError(f"{name} has {NOUNS[source.task]}, and --task {task} needs {EXPECTED[task]}")
    return source


def _may_hold_images(folder: Path) -> bool:
    """Return whether a folder named like one of the datasets may be meant: not an empty one, nor a run or study."""
    signs = ("run.lock", "study.json", "*/study.json")  # of a run, a study, and one of several datasets
    return any(folder.iterdir()) and not any(any(folder.glob(sign)) for sign in signs)


def _find_source(name: str | Path, root: Path | None, task: str | None) -> DatasetSource:
    """Look a name up among all datasets: known ones, folders, tables, the Hub's; the task may be another."""
    path = Path(name).expanduser()
    if isinstance(name, str) and name in DATASETS:
        if path.is_dir() and _may_hold_images(path):
            raise ValueError(f"{name} is a dataset, and a folder here: write ./{name} for the folder, or rename it")
        build = DATASETS[str(name)]
        known = getattr(build, "splits", ("train", "test"))
        return DatasetSource(str(name), {split: partial(_build, build, root or data_root(), split) for split in known})
    if not str(name).startswith(PREFIX):
        masks = {} if task == "classify" else find_mask_folders(path)
        if task == "segment" and masks:
            return mask_source(path, masks)
        if tables := find_tables(path, labels=task not in ("multilabel", "regress")):
            return table_source(name, tables, task)
        if files := find_parquet(name):
            return parquet_source(name, files)
        if masks:
            return mask_source(path, masks)
        if path.is_dir():
            tables = {} if task or has_classes(path) else find_tables(path, labels=False)
            guess = guess_task([open_table(table) for table in tables.values()]) if tables else "classify"
            return folder_source(path) if guess == "classify" else table_source(name, tables, guess)
    if is_hub_name(name):
        return hub_source(str(name), root)
    if path.is_file():
        raise ValueError(
            f"{name} is a single file: expected a folder with a sub-folder for each class, or .csv, .jsonl or .parquet"
        )
    if path.suffix in (*TABLE_SUFFIXES, ".parquet"):
        raise FileNotFoundError(f"there is no {path.suffix.removeprefix('.')} file {name}: check the path")
    close = difflib.get_close_matches(str(name), DATASETS, n=1)
    known = f"did you mean {close[0]}?" if close else "give a folder with a sub-folder for each class, or one of those"
    hint = nearest_path(path) or known
    raise FileNotFoundError(f"{name} is neither a folder nor a known dataset ({', '.join(DATASETS)}): {hint}")


def _build(build: Callable[[Path, str], ImageDataset], root: Path, split: str) -> ImageDataset:
    """Open a split of a dataset of `DATASETS`, and mark it as one."""
    return replace(build(root, split), built_in=True)


def data_root() -> Path:
    """Return the folder that holds all datasets by default: `VITREOUS_DATA`, else one in the user's cache."""
    return Path(os.environ.get("VITREOUS_DATA") or Path.home() / ".cache/vitreous/data")


# --- named datasets -------------------------------------------------------------------------------------------------


def digits(root: Path, split: str) -> ImageDataset:
    """scikit-learn's 1,797 handwritten digits of 8×8 px, inside its wheel; every fifth is held out for testing."""
    import sklearn
    from sklearn.datasets import load_digits

    found = load_digits()
    pixels = np.round(found.images * (255 / 16)).astype(np.uint8)  # 17 levels of grey
    keep = [i for i in range(len(pixels)) if (i % 5 == 0) == (split == "test")]
    whole = ImageDataset(
        "digits",
        tuple(str(i) for i in range(10)),
        tuple(int(label) for label in found.target),
        partial(_from_pixels, pixels),
        version=partial(str, f"scikit-learn {sklearn.__version__} digits"),
    )
    return whole.take(keep)


def _from_pixels(pixels: Any, i: int) -> Image:
    """Make an image of the dataset of digits."""
    from PIL.Image import fromarray

    return fromarray(pixels[i])


DATASETS: dict[str, Callable[[Path, str], ImageDataset]] = {"digits": digits, **TORCHVISION_DATASETS}
"""Name → a function that opens a split of it, given the folder of downloads."""
