"""Download files from a URL or from the Hugging Face Hub, with a progress bar, and check their hashes.

`download` turns a URL into a complete, checked file; `list_hub_files` lists the files of a repository and
`download_from_hub` downloads one. Every error is one plain line: `FileNotFoundError` (no such file),
`PermissionError` (no access), `ConnectionError` (no answer, or a broken transfer), `ValueError` (wrong bytes, or an
address that is not allowed).

The Hub is accessed through its own client, with that client's settings (`HF_HOME`, `HF_ENDPOINT`, `HF_HUB_OFFLINE`,
`HF_TOKEN`).
"""

import hashlib
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from vitreous.runtime.http import TIMEOUT, check_address, stream_address
from vitreous.runtime.progress import LogPace, time_left


def download(url: str, target: Path, *, sha256: str = "", progress: bool = True, timeout: float = TIMEOUT) -> Path:
    """Download a model's file from `url` to `target` unless it exists: afterwards `target` is complete or absent.

    `sha256` is the beginning of the expected digest, in hexadecimal. An existing file is checked as well: other
    programs write into torchvision's cache without checking, and hashing takes under a second a GB.
    """
    if target.exists():
        _check_digest(target, sha256, advice="delete that file, and it will be downloaded again")
        return target
    check_address(url)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.{uuid.uuid4().hex[:8]}.partial")
    try:
        with partial.open("xb") as file, ExitStack() as bars:

            def begin(total: int | None) -> Callable[[int], object]:
                return bars.enter_context(_bar(Path(urlsplit(url).path).name, total, show=progress))

            stream_address(url, file, expected="the weights file", timeout=timeout, begin=begin)
        _check_digest(partial, sha256, source=url, advice="try again, or check the address")
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
    return target


def list_hub_files(repository: str, revision: str | None) -> list[str]:
    """List the files of a Hub `repository` for download; `ConnectionError` if the Hub cannot be reached."""
    from huggingface_hub import HfApi

    try:
        # One request, no retries: without a network this fails at once, not after a minute.
        information = HfApi().model_info(repository, revision=revision, timeout=10)
    except Exception as error:  # the client lets its HTTP library's errors through, and that library has changed
        raise _explain(error, repository, revision) from error
    return [file.rfilename for file in information.siblings or [] if "/" not in file.rfilename]


def download_from_hub(
    repository: str, file_name: str, *, revision: str | None, cache_dir: Path | None, progress: bool
) -> Path:
    """Return the path of a downloaded file of a Hub `repository`, in the Hub client's cache; downloaded if missing."""
    from huggingface_hub import hf_hub_download

    try:
        bar = _hub_lines() if progress and not sys.stderr.isatty() else None  # the client's own needs a terminal
        with nullcontext() if progress else quiet_hub():
            path = hf_hub_download(
                repository, file_name, revision=revision, cache_dir=_hub_cache(cache_dir), tqdm_class=bar
            )
    except Exception as error:  # as above
        raise _explain(error, repository, revision, file_name) from error
    return Path(path)


def cached_hub_snapshot(repository: str, revision: str | None, cache_dir: Path | None) -> Path | None:
    """Return the folder of earlier downloads from the Hub with `revision` of `repository`, complete or not."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    folder: str | None
    try:
        folder = snapshot_download(
            repository, revision=revision, cache_dir=_hub_cache(cache_dir), local_files_only=True
        )
    except LocalEntryNotFoundError as error:
        folder = getattr(error, "snapshot_path", None)  # newer clients raise for an incomplete one, and name its path
    return Path(folder) if folder else None


def _hub_cache(cache_dir: Path | None) -> Path | None:
    """Return the folder that the Hub client downloads to, if the user named one."""
    return cache_dir / "huggingface" if cache_dir else None  # None is the client's own


@contextmanager
def quiet_hub() -> Iterator[None]:
    """Switch the Hub client's progress bars off inside the block."""
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    were_disabled = are_progress_bars_disabled()
    disable_progress_bars()
    try:
        yield
    finally:
        if not were_disabled:
            enable_progress_bars()


def _explain(error: Exception, repository: str, revision: str | None, file_name: str = "") -> Exception:
    """Turn the Hub client's `error` of a download into one line that says what to try."""
    from huggingface_hub import errors

    what = f"{repository}/{file_name}" if file_name else repository
    reason = f"{type(error).__name__}: {error}".strip().splitlines()[0].rstrip(".: ")
    if isinstance(error, errors.GatedRepoError):
        return PermissionError(
            f"{repository} is gated and needs a token: accept its terms on its Hub page, then run "
            "`hf auth login` or set HF_TOKEN"
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return FileNotFoundError(
            f"the Hub has no repository {repository!r}, or it is private{_missing_folder(repository)}: check the "
            "spelling (org/name), or run `hf auth login`"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return FileNotFoundError(
            f"{repository} has no revision {revision!r}: expected a branch, a tag or a complete commit hash"
        )
    if isinstance(error, errors.RemoteEntryNotFoundError):
        return FileNotFoundError(f"{repository} has no file {file_name!r} at revision {revision or 'main'!r}")
    if isinstance(error, errors.HFValidationError):
        return ValueError(f"{repository!r} cannot be the name of a Hub repository: expected org/name ({reason})")
    network = (errors.HfHubHTTPError, errors.LocalEntryNotFoundError, ConnectionError, TimeoutError)
    if isinstance(error, OSError) and not isinstance(error, network):  # a full disk, or the wrong length
        return OSError(f"{what} could not be downloaded: {reason}; try again")
    return ConnectionError(
        f"{what} is not in the cache and the hub cannot be reached{_missing_folder(repository)}: check the name, the "
        "network, or HF_HUB_OFFLINE; a file or folder on this disk, or the packaged model, needs none of them "
        f"({reason})"
    )


def _missing_folder(repository: str) -> str:
    """Extend the error of a failed download from the Hub if its repository may be a mistyped folder.

    For `runs/digts` it may be if a folder `runs` exists here and has no `digts`.
    """
    folder, name = os.path.split(repository)
    return f", and the folder {folder} here holds no {name}" if folder and os.path.isdir(folder) else ""


def _check_digest(path: Path, sha256: str, *, advice: str, source: str = "") -> None:
    """Raise if a downloaded file's SHA-256 is not the expected one."""
    if not sha256:
        return
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if not digest.startswith(sha256.lower()):
        got = digest[: max(len(sha256), 8)]
        raise ValueError(f"{source or path} has the wrong bytes: expected sha256 {sha256}…, got {got}…: {advice}")


def _line(label: str, done: int, total: int | None, seconds: float) -> str:
    """Write how far a download of weights has come.

    >>> _line("vit.pth", 30_000_000, 90_000_000, 10.0)
    'downloading vit.pth: 30 of 90 MB, about 20 s left'
    """
    of_all = f" of {total / 1e6:,.0f} MB, {time_left(seconds, done, total)}" if total and done else " MB"
    return f"downloading {label}: {done / 1e6:,.0f}{of_all}"


def _hub_lines() -> Any:
    """Return the `tqdm` class with which a download from the Hugging Face Hub is reported in lines.

    A line is printed now and then, in place of a bar.
    """
    from tqdm import tqdm  # type: ignore[import-untyped]  # of the Hub client

    pace = LogPace()

    class Lines(tqdm):  # type: ignore[misc]  # it comes without types
        def __init__(self, *words: Any, **options: Any) -> None:
            super().__init__(*words, **options | {"leave": False})  # nothing is printed at the end

        def display(self, msg: str | None = None, pos: int | None = None) -> None:
            if msg is None and pace.is_due():
                print(_line(self.desc, self.n, self.total, time.monotonic() - pace.since), file=sys.stderr, flush=True)

    return Lines


@contextmanager
def _bar(label: str, total: int | None, *, show: bool) -> Iterator[Callable[[int], None]]:
    """Yield what a download from a URL calls with the bytes of each piece, to show how much has been downloaded.

    It draws a bar on a terminal, else it prints a line now and then.
    """
    if not show:
        yield lambda count: None
        return
    if not sys.stderr.isatty():
        pace, done = LogPace(), 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            if pace.is_due():
                print(_line(label, done, total, time.monotonic() - pace.since), file=sys.stderr, flush=True)

        yield advance
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda count: bar.advance(task, count)
