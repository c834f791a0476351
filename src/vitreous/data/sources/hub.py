"""Open datasets of the Hugging Face Hub with its `datasets` library (the extra `[hub]`): `hf:org/name` or `org/name`.

A dataset is downloaded once, to that library's cache, and its images are read from there one at a time. `stream.py`
reads those that are too large for that.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitreous.data.dataset_source import DatasetSource
from vitreous.data.image_dataset import ImageDataset, digest, file_state
from vitreous.data.images import ImageError, read_image
from vitreous.data.sources.parquet import choose_columns, number_labels

if TYPE_CHECKING:
    from PIL.Image import Image

PREFIX = "hf:"


def is_hub_name(name: str | Path) -> bool:
    """Return whether a dataset may be one of the Hub's: it begins with `hf:`, or is `org/name` and no local path.

    >>> is_hub_name("hf:mnist"), is_hub_name("uoft-cs/cifar10"), is_hub_name("pics/"), is_hub_name("/data/pics")
    (True, True, False, False)
    """
    if not isinstance(name, str) or name.endswith((".parquet", ".csv", ".tsv", ".jsonl")):
        return False
    looks_like_one = re.fullmatch(r"\w[\w.-]*/\w[\w.-]*(:[\w.-]+)?", name) is not None
    return name.startswith(PREFIX) or (looks_like_one and not Path(name).exists())


def hub_source(name: str, root: Path | None = None) -> DatasetSource:
    """Find the splits of a dataset on the Hub; `name:config` chooses one of its configurations."""
    builder = hub_builder(name, root)
    if builder.info.splits is None:  # known only after the download
        _prepare(builder, name)
    known = builder.info.splits or ()
    return DatasetSource(name, {split: partial(from_builder, builder, split, name) for split in known})


def from_builder(builder: Any, split: str, name: str) -> ImageDataset:
    """Open one split of a Hub dataset, downloaded if needed; images are decoded when they are read."""
    import datasets

    _prepare(builder, name)
    table = builder.as_dataset(split=split)
    title = f"{name.removeprefix(PREFIX)} {split}"
    columns = choose_columns(table.features.to_dict(), title)
    values = table.select_columns([columns.label])[:][columns.label]
    names, labels = number_labels(list(values), columns.class_names, title)
    if not labels:
        raise ValueError(f"{title} holds no images: choose another split or dataset")
    table = table.select_columns([columns.image]).cast_column(columns.image, datasets.Image(decode=False))
    images = _TableImages(table, columns.image, title)
    return ImageDataset(name.removeprefix(PREFIX), names, labels, images, images.name_of, images.version)


def _prepare(builder: Any, name: str) -> None:
    """Download and convert a Hub dataset unless the cache has it."""
    from datasets.exceptions import DatasetsError

    try:
        builder.download_and_prepare()
    except (OSError, ValueError, DatasetsError) as error:
        raise FileNotFoundError(f"{name} could not be downloaded: {one_line(error)}; run again to continue") from error


class _TableImages:
    """Read image `i` of a Hub dataset's table that the library keeps on disk."""

    def __init__(self, table: Any, column: str, title: str) -> None:
        self.table, self.column, self.title = table, column, title

    def __call__(self, i: int) -> Image:
        return decode_cell(self.table[i][self.column], self.name_of(i))

    def name_of(self, i: int) -> str:
        return f"{self.title} #{i}"

    def version(self) -> str:
        files = [Path(file["filename"]) for file in self.table.cache_files]
        return digest([self.title, *(text for file in files for text in (str(file), file_state(file)))])


def decode_cell(value: dict[str, Any] | bytes | None, name: str) -> Image:
    """Decode an image as the Hub's `datasets` library hands it over: bytes, or the path of a file."""
    data, path = (value.get("bytes"), value.get("path")) if isinstance(value, dict) else (value, None)
    if not data and not path:
        raise ImageError(name, "the row holds no image")
    try:
        return read_image(data or Path(str(path)))
    except ImageError as error:
        raise ImageError(name, error.reason) from error


# --- requests to the Hub ----------------------------------------------------------------------------------------------


def hub_builder(name: str, root: Path | None = None) -> Any:
    """Return the builder of a Hub dataset, before anything large is downloaded."""
    datasets = library(name)
    repository, _, config = name.removeprefix(PREFIX).partition(":")
    cache = str(root / "huggingface") if root else None  # None is the library's own
    unreachable = None if Path(repository).is_dir() else _ask(repository)
    if unreachable is None:
        try:
            return datasets.load_dataset_builder(repository, config or None, cache_dir=cache)
        except (OSError, ValueError, RuntimeError) as error:  # no such files, a config to choose, a script to run
            raise FileNotFoundError(f"{repository} cannot be opened as a dataset: {one_line(error)}") from error
    if (cached := _cached(repository, config or None, cache)) is not None:
        return cached
    raise FileNotFoundError(
        f"{_neither(name)}, and the Hub cannot be reached ({one_line(unreachable)}): go online to download it once, or "
        "give a folder of images or parquet files"
    ) from unreachable


def library(name: str) -> Any:
    """Import Hugging Face `datasets`, or say how to install it."""
    try:
        import datasets
    except ImportError as error:
        needs = "needs Hugging Face datasets: pip install 'vitreous[hub]'"
        if name.startswith(PREFIX):
            raise ImportError(f"{name} {needs}") from error
        raise ImportError(f"there is no folder {name} here; as a dataset on the Hub it {needs}") from error
    return datasets


def _ask(repository: str) -> Exception | None:
    """Ask the Hub for a dataset, once: a network error comes at once, where the library would retry for 30 s."""
    from huggingface_hub import HfApi, errors

    try:
        HfApi().dataset_info(repository, timeout=10)
    except errors.GatedRepoError as error:
        raise PermissionError(
            f"{repository} is gated and needs a token: accept its terms on its Hub page, then run `hf auth login`"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise FileNotFoundError(
            f"{_neither(repository)}, and the Hub has no such dataset, or it is private: check the spelling "
            "(org/name), or run `hf auth login`"
        ) from error
    except errors.HFValidationError as error:
        raise ValueError(f"{repository!r} cannot be the name of a dataset on the Hub: expected org/name") from error
    except Exception as error:  # the client lets its HTTP library's errors through, and that library has changed
        return error
    return None


def _cached(repository: str, config: str | None, cache: str | None) -> Any:
    """Return the builder of an earlier download of a Hub dataset, None if there is none."""
    from datasets.packaged_modules.cache.cache import Cache

    name = repository.rpartition("/")[2]
    try:
        return Cache(
            cache_dir=cache,
            dataset_name=name,
            repo_id=repository,
            config_name=config or None,
            version="auto",
            hash="auto",
        )
    except (OSError, ValueError):
        return None


def _neither(name: str) -> str:
    """Write the Hub's error for a dataset's name that is neither a folder nor in its cache."""
    return f"{name.removeprefix(PREFIX)} is neither a folder here nor in the cache"


def one_line(error: Exception) -> str:
    """Format an error of the `datasets` library as the end of a sentence."""
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
