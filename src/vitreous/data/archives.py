"""Read images out of zip and tar archives, in memory: nothing is ever unpacked to disk.

A member is named like a file in a folder: `photos.zip/dogs/1.jpg`. Archives may come from anywhere, so the number of
their entries and the bytes of a member are limited, and those of a compressed tar altogether: it can be read in one go
only, so its images are kept.
"""

import bz2
import gzip
import io
import lzma
import os
import posixpath
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, cast

LIMIT_ENTRIES = 100_000
LIMIT_DIRECTORY = 16 << 20  # bytes of a zip's list of entries: 100,000 of them take about 13 MB
LIMIT_BYTES = 256 << 20  # of one image, once unpacked
LIMIT_UNPACKED = 1 << 30  # of a compressed tar

DECOMPRESSORS: dict[str, Callable[..., Any]] = {
    ".gz": gzip.open, ".tgz": gzip.open, ".bz2": bz2.open, ".tbz2": bz2.open, ".xz": lzma.open, ".txz": lzma.open
}  # fmt: skip
DAMAGED = (zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, NotImplementedError, OSError)


class ArchiveError(ValueError):
    """An archive or a member of it that cannot be read: the reason, in one line."""


def is_archive(name: str | Path) -> bool:
    """Return whether a file's name is that of a zip or tar archive.

    >>> is_archive("photos.tar.gz"), is_archive("photos.ZIP"), is_archive("notes.gz")
    (True, True, False)
    """
    suffixes = [suffix.lower() for suffix in Path(name).suffixes[-2:]]
    last = suffixes[-1] if suffixes else ""
    return last in (".zip", ".tar", ".tgz", ".tbz2", ".txz") or (last in DECOMPRESSORS and ".tar" in suffixes)


def split_member(name: str | Path) -> tuple[Path, str] | None:
    """Split a path into an archive on disk and what it names inside; None if no part of it is one.

    >>> split_member("no such folder/cat.jpg") is None
    True
    """
    path = Path(os.path.expanduser(name))
    for archive in (path, *path.parents):
        if is_archive(archive) and archive.is_file():
            inside = path.relative_to(archive).as_posix()
            return archive, "" if inside == "." else inside
    return None


def list_members(archive: Path) -> list[str]:
    """List the files in an archive, in its order; hidden ones and links are left out."""
    return list(_open(archive).sizes)


def read_member(archive: Path, member: str) -> bytes:
    """Return the bytes of a file in an archive."""
    return _open(archive).read(member)


def _open(archive: Path) -> "_Archive":
    """Open an archive, or return the one that is open; a forked process opens its own."""
    status = archive.stat()
    return _opened(archive, status.st_size, status.st_mtime_ns, os.getpid())


@lru_cache(maxsize=2)
def _opened(archive: Path, size: int, changed: int, process: int) -> "_Archive":
    """Open an archive by its kind; cached until the file changes."""
    try:
        if archive.suffix.lower() == ".zip":
            return _Zip(archive)
        return _Tar(archive) if archive.suffix.lower() == ".tar" else _CompressedTar(archive)
    except DAMAGED as error:
        if isinstance(error, OSError) and error.strerror and not isinstance(error, gzip.BadGzipFile):
            raise
        raise ArchiveError(f"cannot be read as an archive, probably damaged ({error}): download it again") from error


class _Archive:
    """The members of an archive: name → bytes."""

    sizes: dict[str, int]

    def read(self, member: str) -> bytes:
        if member not in self.sizes:
            raise ArchiveError("no such file in the archive: check the path")
        _check_bytes(self.sizes[member])
        try:
            return self.unpack(member)
        except DAMAGED as error:
            raise ArchiveError(f"damaged in the archive ({error}): download it again") from error

    def unpack(self, member: str) -> bytes:
        """Unpack one member of an archive to bytes."""
        raise NotImplementedError


class _Zip(_Archive):
    """A zip archive: its list of entries is read with limits."""

    def __init__(self, archive: Path) -> None:
        self.file = zipfile.ZipFile(cast(Any, _LimitedReads(archive.open("rb"))))
        entries = self.file.infolist()
        _check_entries(len(entries))
        self.entries = {_clean(e.filename): e for e in entries if not e.is_dir() and not _is_hidden(e.filename)}
        self.sizes = {name: entry.file_size for name, entry in self.entries.items()}

    def unpack(self, member: str) -> bytes:
        if self.entries[member].flag_bits & 1:
            raise ArchiveError("encrypted: unpack the archive first")
        with self.file.open(self.entries[member]) as stream:
            data = stream.read(LIMIT_BYTES + 1)
        _check_bytes(len(data))  # an entry may state fewer than it has
        return data


class _Tar(_Archive):
    """An uncompressed tar: members are read where they lie."""

    def __init__(self, archive: Path) -> None:
        self.archive = archive
        with tarfile.open(archive, "r:") as file:
            found = {_clean(entry.name): (entry.offset_data, entry.size) for entry in _files(file)}
        self.offsets = {name: offset for name, (offset, _) in found.items()}
        self.sizes = {name: size for name, (_, size) in found.items()}

    def unpack(self, member: str) -> bytes:
        with self.archive.open("rb") as file:
            file.seek(self.offsets[member])
            data = file.read(self.sizes[member])
        if len(data) < self.sizes[member]:
            raise EOFError("it ends too early")
        return data


class _CompressedTar(_Archive):
    """A compressed tar: all its members, unpacked in memory."""

    def __init__(self, archive: Path) -> None:
        self.contents: dict[str, bytes] = {}
        with closing(DECOMPRESSORS[archive.suffix.lower()](archive, "rb")) as stream:
            limited = _LimitedStream(cast(BinaryIO, stream))
            with tarfile.open(fileobj=cast(Any, limited), mode="r|") as file:
                for entry in _files(file):
                    _check_bytes(entry.size)
                    member = file.extractfile(entry)
                    assert member is not None
                    self.contents[_clean(entry.name)] = member.read()
        self.sizes = {name: len(data) for name, data in self.contents.items()}

    def unpack(self, member: str) -> bytes:
        return self.contents[member]


def _files(file: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield the plain files of a tar; links, devices and sparse files are left out."""
    for count, entry in enumerate(file, start=1):
        _check_entries(count)
        if entry.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not entry.issparse() and not _is_hidden(entry.name):
            yield entry


def _clean(name: str) -> str:
    """Spell a member's name as a path below the archive: `./a//b.jpg` is `a/b.jpg`."""
    return posixpath.normpath(name).lstrip("/")


def _is_hidden(name: str) -> bool:
    """Return whether an archive's member is hidden or macOS's own, as `__MACOSX/._cat.jpg` is."""
    parts = [part for part in name.split("/") if part not in (".", "..")]
    return any(part.startswith(".") or part == "__MACOSX" for part in parts)


class _LimitedReads:
    """An archive's file whose single reads are limited: a zip's whole list of entries is one of them."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def read(self, size: int = -1) -> bytes:
        if size > LIMIT_DIRECTORY:
            _check_entries(LIMIT_ENTRIES + 1)
        return self._file.read(size)


class _LimitedStream(io.RawIOBase):
    """The unpacked bytes of an archive's stream, up to a limit."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._left = stream, LIMIT_UNPACKED

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(min(size, self._left + 1) if size >= 0 else self._left + 1)
        self._left -= len(data)
        if self._left < 0:
            limit = f"{LIMIT_UNPACKED / 2**30:g} GiB"
            raise ArchiveError(f"unpacks to more than {limit}: unpack it to a folder, or save it as .zip or .tar")
        return data


def _check_bytes(size: int) -> None:
    """Raise for an archive's member that unpacks to too many bytes."""
    if size > LIMIT_BYTES:
        raise ArchiveError(f"unpacks to more than {LIMIT_BYTES / 2**20:,.0f} MiB: make it smaller first")


def _check_entries(count: int) -> None:
    """Raise for an archive with too many entries."""
    if count > LIMIT_ENTRIES:
        raise ArchiveError(f"has more than {LIMIT_ENTRIES:,} entries: unpack it to a folder first")
