"""Sets on the Hugging Face Hub, through its `datasets` library (the extra `[hub]`): `hf:org/name` or `org/name`.

A set is downloaded once, to that library's cache, and its images are read from there one at a time. What is too large
for that is read as it comes: `streaming.py`.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from vitreous.data.image_dataset import ImageDataset, digest, file_state
from vitreous.data.images import ImageError, read_image
from vitreous.data.sources.columns import choose_columns, number_labels
from vitreous.data.sources.source import Source

if TYPE_CHECKING:
    from PIL.Image import Image

PREFIX = "hf:"


def is_hub_name(name: str | Path) -> bool:
    """Whether a name may be one of the Hub's: it says so, or looks like `org/name` and is no path here.

    >>> is_hub_name("hf:mnist"), is_hub_name("uoft-cs/cifar10"), is_hub_name("pics/"), is_hub_name("/data/pics")
    (True, True, False, False)
    """
    if not isinstance(name, str) or name.endswith(".parquet"):
        return False
    looks_so = re.fullmatch(r"\w[\w.-]*/\w[\w.-]*(:[\w.-]+)?", name) is not None
    return name.startswith(PREFIX) or (looks_so and not Path(name).exists())


def hub_source(name: str, root: Path | None = None) -> Source:
    """The splits of a set on the Hub; `name:config` chooses one of its configurations."""
    builder = hub_builder(name, root)
    if builder.info.splits is None:  # known only once the files are here
        _prepare(builder, name)
    return Source(name, {split: partial(from_builder, builder, split, name) for split in builder.info.splits or ()})


def from_builder(builder: Any, split: str, name: str) -> ImageDataset:
    """One split, downloaded where it is not yet; images are decoded when asked for."""
    import datasets

    _prepare(builder, name)
    table = builder.as_dataset(split=split)
    title = f"{name.removeprefix(PREFIX)} {split}"
    columns = choose_columns(table.features.to_dict(), title)
    values = table.select_columns([columns.label])[:][columns.label]
    names, labels = number_labels(list(values), columns.class_names, title)
    if not labels:
        raise ValueError(f"{title} holds no images: choose another split or set")
    table = table.select_columns([columns.image]).cast_column(columns.image, datasets.Image(decode=False))
    images = _Images(table, columns.image, title)
    return ImageDataset(name.removeprefix(PREFIX), names, labels, images, images.where, images.source)


def _prepare(builder: Any, name: str) -> None:
    """Download and convert what is not in the cache yet."""
    from datasets.exceptions import DatasetsError

    try:
        builder.download_and_prepare()
    except (OSError, ValueError, DatasetsError) as error:
        raise FileNotFoundError(f"{name} could not be downloaded: {one_line(error)}; run again to go on") from error


class _Images:
    """Image `i` of a table that the library keeps on disk."""

    def __init__(self, table: Any, column: str, title: str) -> None:
        self.table, self.column, self.title = table, column, title

    def __call__(self, i: int) -> Image:
        return decoded(self.table[i][self.column], self.where(i))

    def where(self, i: int) -> str:
        return f"{self.title} #{i}"

    def source(self) -> str:
        files = [Path(file["filename"]) for file in self.table.cache_files]
        return digest([self.title, *(text for file in files for text in (str(file), file_state(file)))])


def decoded(value: dict[str, Any] | bytes | None, where: str) -> Image:
    """The image in a cell that the library has not decoded: bytes, or the path of a file."""
    data, path = (value.get("bytes"), value.get("path")) if isinstance(value, dict) else (value, None)
    if not data and not path:
        raise ImageError(where, "the row holds no image")
    try:
        return read_image(data or Path(str(path)))
    except ImageError as error:
        raise ImageError(where, error.reason) from error


# --- asking the Hub ---------------------------------------------------------------------------------------------------


def hub_builder(name: str, root: Path | None = None) -> Any:
    """What the library knows about a set, before anything large is downloaded."""
    datasets = library(name)
    repository, _, config = name.removeprefix(PREFIX).partition(":")
    cache = str(root / "huggingface") if root else None  # None is the library's own
    if Path(repository).is_dir():
        return _built(datasets, repository, config, cache)
    if (unreachable := _ask(repository)) is None:
        return _built(datasets, repository, config, cache)
    if (kept := _kept(repository, config, cache)) is not None:
        return kept
    raise FileNotFoundError(
        f"{_neither(name)}, and the Hub cannot be reached ({one_line(unreachable)}): go online to download it once, or "
        "give a folder of images or parquet files"
    ) from unreachable


def library(name: str) -> ModuleType:
    """Hugging Face `datasets`, wherever it is installed."""
    try:
        import datasets
    except ImportError as error:
        needs = "needs Hugging Face datasets: pip install 'vitreous[hub]'"
        if name.startswith(PREFIX):
            raise ImportError(f"{name} {needs}") from error
        raise ImportError(f"there is no folder {name} here; as a set on the Hub it {needs}") from error
    return datasets


def _ask(repository: str) -> Exception | None:
    """One request, no retries: with no network the answer is "no" now, not after the half minute the library takes."""
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


def _built(datasets: ModuleType, repository: str, config: str, cache: str | None) -> Any:
    try:
        return datasets.load_dataset_builder(repository, config or None, cache_dir=cache)
    except (OSError, ValueError, RuntimeError) as error:  # no such files, a config to choose, a script to run
        raise FileNotFoundError(f"{repository} cannot be opened as a dataset: {one_line(error)}") from error


def _kept(repository: str, config: str, cache: str | None) -> Any:
    """The set as it was downloaded earlier; None where it was not."""
    from datasets.packaged_modules.cache.cache import Cache

    try:
        return Cache(
            cache_dir=cache,
            dataset_name=repository.split("/")[-1],
            repo_id=repository,
            config_name=config or None,
            version="auto",
            hash="auto",
        )
    except (OSError, ValueError):
        return None


def _neither(name: str) -> str:
    return f"{name.removeprefix(PREFIX)} is neither a folder here nor in the cache"


def one_line(error: Exception) -> str:
    """An error of another library as the end of a sentence."""
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
