"""Find a model's files by name or path, or download them: weights, shards, config files. Nothing is read here.

`names.parse` decides what a name means. Files of the Hub and of torchvision go to those libraries' own caches, shared
with other programs; other downloads go to `VITREOUS_CACHE`, by default `~/.cache/vitreous`. The argument `cache_dir`
replaces all three.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from vitreous.runtime.files import cache_folder
from vitreous.weights import runs
from vitreous.weights.download import cached_hub_snapshot, download, download_from_hub, list_hub_files
from vitreous.weights.names import GOOGLE_BUCKET, SAFE_FILE_NAME, SUFFIXES, TORCHVISION_MODELS, parse

# The weights of a folder or a Hub repository, preferred ones first; else the only file with one of LOOSE_SUFFIXES.
FOLDER_FILES = (
    *("model.safetensors", "model.safetensors.index.json", "open_clip_model.safetensors"),
    *("pytorch_model.bin", "pytorch_model.bin.index.json", "open_clip_pytorch_model.bin"),
)
LOOSE_SUFFIXES = (".safetensors", ".pth", ".pt", ".npz", ".safetensors.index.json", ".bin.index.json")
RUN_SUFFIXES = (".ckpt", ".tar")  # of training scripts: chosen if there is no other
OTHER_FILES = {  # how a file's name ends, and what it holds instead of tensors that are read
    ".pt2": "a program of torch.export: torch.export.load it and save its state_dict()",
    ".distcp": "a distributed checkpoint of torch: convert it with torch.distributed.checkpoint.format_utils",
    ".onnx": "an ONNX graph: export the weights from the library that made it, as safetensors",
    ".msgpack": "Flax weights: load them in transformers and save them with save_pretrained()",
    ".h5": "Keras weights: load them there and save the arrays with numpy.savez",
    ".gguf": "GGUF weights: get the original ones, as safetensors",
    "modules.json": "a list of parts of sentence-transformers: load the folder of its image model, such as 0_CLIPModel",
}
SHARD = re.compile(r"-\d{5}-of-\d{5}\.")


@dataclass(frozen=True)
class CheckpointFiles:
    """The files of a checkpoint on this disk, and their origin."""

    name: str  # as the user wrote it
    origin: str  # `file`, `folder`, `hub`, `torchvision`, `google`, `url` or `packaged`
    weights: tuple[Path, ...]  # the weights file, or the shards of a sharded checkpoint (then `index` is set)
    index: Path | None = None  # the `*.index.json` of a sharded checkpoint
    config: Path | None = None  # the config file next to the weights
    preprocessor: Path | None = None  # the `preprocessor_config.json` next to the weights
    revision: str | None = None  # the commit of a Hub repository
    unfinished: str = ""  # of a run without its final model: which epoch the weights are from
    weights_enum: Any = None  # torchvision's member of a `WeightsEnum`, for the origin `torchvision`
    beside: Callable[[str], Path | None] = field(default=lambda file_name: None, compare=False, repr=False)
    """Finds another file of the folder or repository by name, and downloads it there; None if there is none."""


def fetch(
    name: str | Path,
    *,
    revision: str | None = None,
    cache_dir: Path | None = None,
    progress: bool = True,
    bucket: str = GOOGLE_BUCKET,
) -> CheckpointFiles:
    """Find the files of the model `name`, or download them, and return their paths.

    `revision` is a branch, tag or commit of a Hub repository. `bucket` is the address of Google's files.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "model.safetensors").write_bytes(b"")
    ...     source = fetch(folder)
    >>> source.origin, [path.name for path in source.weights]
    ('folder', ['model.safetensors'])
    """
    parsed = parse(name)
    if revision is not None and parsed.kind != "hub":
        raise ValueError(f"{name} is not a Hub name: a revision ({revision!r}) is for Hub names only")
    if revision is not None and parsed.version not in (None, revision):
        raise ValueError(f"{name} names revision {parsed.version!r}, the argument {revision!r}: give one of them")
    written = str(name)
    cache_dir = Path(cache_dir).expanduser() if cache_dir else None
    if parsed.kind == "file":
        return _from_file(written, Path(parsed.target))
    if parsed.kind == "folder":
        return _from_folder(written, Path(parsed.target), "folder")
    if parsed.kind == "packaged":
        return _from_packaged(written, parsed.target)
    if parsed.kind == "hub":
        return _from_hub(written, parsed.target, revision or parsed.version, cache_dir, progress)
    if parsed.kind == "torchvision":
        return _from_torchvision(written, parsed.target, parsed.version, cache_dir, progress)
    if parsed.kind == "google":
        url, target = f"{bucket}/{quote(parsed.target)}", cache_folder(cache_dir) / "google" / parsed.target
    else:
        url, target = parsed.target, cache_folder(cache_dir) / "url" / _file_name(parsed.target)
    return CheckpointFiles(written, parsed.kind, (download(url, target, progress=progress),))


def choose_weights(names: Collection[str], owner: str) -> str:
    """Choose the weights among the file `names` of the folder or repository `owner`.

    >>> choose_weights(["config.json", "pytorch_model.bin", "model.safetensors"], "google/vit")
    'model.safetensors'
    """
    usual = next((preferred for preferred in FOLDER_FILES if preferred in names), None)
    if any(name == "adapter_config.json" or name.startswith("adapter_model.") for name in names):
        also = f"; for the base without it, give the path of {usual}" if usual else ""
        raise ValueError(
            f"{owner} holds a PEFT adapter that is not merged into a model: merge it into its base with peft's "
            f"merge_and_unload(), save that with save_pretrained() and load it{also}"
        )
    if usual is not None:
        return usual
    loose = sorted(name for name in names if name.endswith(LOOSE_SUFFIXES) and not SHARD.search(name))
    loose = loose or sorted(name for name in names if name.endswith(RUN_SUFFIXES))
    if len(loose) == 1:
        return loose[0]
    if loose:
        raise ValueError(f"{owner} holds several weights files ({_list(loose)}): give the path of one of them")
    if other := _other_file(sorted(names)):
        raise FileNotFoundError(f"{owner} holds {other}")
    raise FileNotFoundError(
        f"{owner} holds no weights: expected {FOLDER_FILES[0]} or one file ending in "
        f"{', '.join((*LOOSE_SUFFIXES[:4], *RUN_SUFFIXES))}, found {_list(sorted(names)) or 'nothing'}: check the path"
    )


def list_shards(index: Path) -> list[str]:
    """List the files to fetch of a sharded model: those that its `index` names, each once.

    An index comes with the checkpoint, so it is not trusted: a name that could lead out of the folder (a separator,
    `..`, a drive), or to another kind of file, is an error before the file is opened or requested.
    """
    try:
        table = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        names = sorted(set(table.values()))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f'{index} is not the index of a checkpoint: expected {{"weight_map": …}}') from error
    suffix = Path(index.name.removesuffix(".index.json")).suffix
    for name in names:
        if not isinstance(name, str) or not SAFE_FILE_NAME.fullmatch(name) or not name.endswith(suffix):
            raise ValueError(
                f"{index} names the shard {name!r}: expected a plain file name ending in {suffix!r}; get the "
                "checkpoint from a source you trust"
            )
    if not names:
        raise ValueError(f"{index} names no shards: expected at least one")
    return names


def _from_file(written: str, path: Path) -> CheckpointFiles:
    """Fetch a model by the path of its weights file: find the config files next to it."""
    if other := _other_file([path.name]):
        raise ValueError(f"{path.parent} holds {other}")
    if not path.name.endswith(SUFFIXES):
        raise ValueError(f"{path} is not a weights file: expected one ending in {', '.join(SUFFIXES)}")
    if SHARD.search(path.name):
        raise ValueError(f"{path} is one shard of several: give its folder, or the .index.json next to it")
    if (description := runs.model_file_of(path)) is not None:
        return CheckpointFiles(written, "file", (path,), config=_find(description.parent, description.name))

    def find(file_name: str) -> Path:  # the user named this one file, so it may be a link to another folder
        return path if file_name == path.name else _find(path.parent, file_name)

    return _gather(written, "file", path.name, _file_names(path.parent), find)


def _from_folder(written: str, folder: Path, origin: str) -> CheckpointFiles:
    """Find the weights and config files in a folder or a run."""
    if runs.is_run(folder):
        found = runs.newest_weights(folder)
        if not found.resolve().is_relative_to(folder.resolve()):
            raise ValueError(f"{found} is a link out of its run: copy it, or give its path")
        if found.is_dir():
            return _from_folder(written, found, origin)
        return replace(_from_file(written, found), unfinished=runs.how_far(folder, found))
    names = _file_names(folder)
    chosen = choose_weights(names, str(folder))
    return _gather(written, origin, chosen, names, lambda file_name: _find(folder, file_name))


def _from_packaged(written: str, model: str) -> CheckpointFiles:
    """Find the files of a model inside the package."""
    folder = Path(str(resources.files("vitreous"))) / "weights" / "packaged" / model
    if not folder.is_dir():
        raise FileNotFoundError(
            f"this installation lacks the model {model!r} (expected {folder}): install vitreous again"
        )
    return _from_folder(written, folder, "packaged")


def _from_hub(
    written: str, repository: str, revision: str | None, cache_dir: Path | None, progress: bool
) -> CheckpointFiles:
    """Find a model's files on the Hugging Face Hub, or in its cache."""

    def download_file(file_name: str, commit: str | None) -> Path:
        return download_from_hub(repository, file_name, revision=commit, cache_dir=cache_dir, progress=progress)

    try:
        names = list_hub_files(repository, revision)
    except ConnectionError as unreachable:
        snapshot = cached_hub_snapshot(repository, revision, cache_dir)
        if snapshot is None:
            raise
        try:
            names = _file_names(snapshot)
            chosen = choose_weights(names, repository)
            return _gather(written, "hub", chosen, names, lambda name: _find(snapshot, name), snapshot.name)
        except FileNotFoundError as missing:  # only a part of the repository was ever downloaded
            raise unreachable from missing
    chosen = choose_weights(names, repository)
    # The first file is requested by branch, so that the cache records its commit (and works offline); the others by
    # that commit, so that all files belong together even if the branch moves meanwhile.
    commit = download_file(chosen, revision).parent.name
    return _gather(written, "hub", chosen, names, lambda name: download_file(name, commit), commit)


def _from_torchvision(
    written: str, model: str, member: str | None, cache_dir: Path | None, progress: bool
) -> CheckpointFiles:
    """Fetch a model of torchvision's: choose its weights by name, and download them if they are not in the cache."""
    import torch.hub
    from torchvision.models import get_model_weights

    try:
        members = get_model_weights(model)
    except ValueError as error:
        raise ValueError(f"torchvision has no model {model!r}: try one of {', '.join(TORCHVISION_MODELS)}") from error
    if (member or "DEFAULT") not in members.__members__:
        raise ValueError(f"torchvision's {model} has no weights {member!r}: it has {', '.join(members.__members__)}")
    chosen = members[member or "DEFAULT"]
    file_name = urlsplit(chosen.url).path.rsplit("/", 1)[-1]
    folder = cache_dir / "torchvision" if cache_dir else Path(torch.hub.get_dir()) / "checkpoints"
    digest = re.search(r"-([0-9a-f]{8,})\.", file_name)  # torch.hub's convention: name-<start of the sha256>.pth
    path = download(chosen.url, folder / file_name, sha256=digest[1] if digest else "", progress=progress)
    return CheckpointFiles(written, "torchvision", (path,), weights_enum=chosen)


def _gather(
    written: str,
    origin: str,
    chosen: str,
    names: Collection[str],
    find: Callable[[str], Path],
    revision: str | None = None,
) -> CheckpointFiles:
    """Fetch the files of a model whose weights are `chosen`: with them, the shards, index and config among `names`.

    `find` turns a name into a path.
    """
    same_stem = chosen.rpartition(".")[0] + ".json"
    weights = [name for name in names if name.endswith(SUFFIXES)]
    only_model = chosen in FOLDER_FILES or chosen.endswith(".index.json") or weights == [chosen]
    usual = "open_clip_config.json" if chosen.startswith("open_clip_") else "config.json"
    config = usual if only_model and usual in names else None
    if chosen not in FOLDER_FILES and same_stem in names and same_stem != chosen:
        config = same_stem
    preprocessor = "preprocessor_config.json" if only_model and "preprocessor_config.json" in names else None
    index = find(chosen) if chosen.endswith(".index.json") else None
    return CheckpointFiles(
        name=written,
        origin=origin,
        weights=tuple(find(name) for name in (list_shards(index) if index else [chosen])),
        index=index,
        config=find(config) if config else None,
        preprocessor=find(preprocessor) if preprocessor else None,
        revision=revision,
        beside=lambda file_name: find(file_name) if file_name in names else None,
    )


def _find(folder: Path, file_name: str) -> Path:
    """Return the path of a model's file in a folder, unless it is missing or a link that leads out of the folder.

    A folder may come from anybody, so its links must not decide what is read. One kind of link is allowed: the Hub
    client keeps contents in `blobs`, of the repository or of the whole cache, and fills
    `models--org--name/snapshots/<commit>` with links to them.
    """
    path = folder / file_name
    if not path.is_file():
        raise FileNotFoundError(f"{folder} lacks {file_name}, which the checkpoint needs: copy or download it again")
    home = folder.resolve()
    allowed = [home]
    if home.parent.name == "snapshots":
        allowed += [(parent / "blobs").resolve() for parent in home.parents[1:3]]
    if not any(path.resolve().is_relative_to(parent) for parent in allowed):
        raise ValueError(f"{path} is a link to {path.resolve()}, outside its folder: copy the file, or give its path")
    return path


def _file_names(folder: Path) -> list[str]:
    """List the names of the files in a model's folder."""
    return sorted(entry.name for entry in os.scandir(folder) if os.path.isfile(entry))  # False for a link to itself


def _file_name(url: str) -> str:
    """Name the file in which `fetch` keeps and finds again what a `url` holds: two addresses never share one."""
    name = re.sub(r"[^A-Za-z0-9_.+-]", "_", unquote(urlsplit(url).path).rsplit("/", 1)[-1]).lstrip(".")
    return f"{hashlib.sha256(url.encode()).hexdigest()[:16]}/{name}"


def _other_file(names: list[str]) -> str:
    """Explain why `fetch` finds no weights: name the first file of another known kind and what it holds, if any."""
    found = (f"{name}, {what}" for name in names for end, what in OTHER_FILES.items() if name.endswith(end))
    return next(found, "")


def _list(names: list[str]) -> str:
    """Write a list of a model's files for a message."""
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
