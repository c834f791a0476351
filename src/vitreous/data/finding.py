"""Find images by path, folder, pattern, archive or URL, in natural order; `open_images` takes what Python calls get.

Nothing is decoded here: `images.py` reads what a name leads to, also inside an archive (`photos.zip/dogs/1.jpg`).
"""

import difflib
import fnmatch
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeAlias, cast

from vitreous.data.archives import ArchiveError, is_archive, list_members, split_member
from vitreous.data.images import STDIN, ImageError, ImageLike, image_name, is_image_like, is_web_address, reason_of

Images: TypeAlias = ImageLike | Iterable[ImageLike]
"""One image, a folder, an archive, a pattern such as `photos/*.jpg`, or a list of these."""

# Suffixes of images inside a folder.
SUFFIXES = (
    ".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".png", ".apng", ".gif", ".bmp", ".ppm", ".pgm", ".pbm", ".pnm",
    ".pfm", ".webp", ".avif", ".heic", ".heif", ".hif", ".tif", ".tiff", ".jp2", ".j2k", ".jpx",
)  # fmt: skip


def open_images(images: Images) -> tuple[list[ImageLike], bool]:
    """List the images that a Python call is given, and say whether it was given one rather than several.

    Folders, archives and patterns are several, whatever they hold; one that leads to no image raises an `ImageError`.

    >>> open_images(b"..."), open_images([b"...", b"..."])
    (([b'...'], True), ([b'...', b'...'], False))
    """
    one = is_image_like(images)
    if not one and (not isinstance(images, Iterable) or hasattr(images, "read")):
        image_name(images)  # raises: it cannot be an image
    given = [cast(ImageLike, images)] if one else list(cast(Iterable[ImageLike], images))
    found: list[ImageLike] = []
    for image in given:
        if isinstance(image, (str, Path)) and _is_several(image):
            names, problems = find_names([image])
            if problems:
                raise problems[0]
            found, one = [*found, *names], False
            continue
        found.append(image)  # whether it can be read is known when it is read
    return found, one


def _is_several(image: str | Path) -> bool:
    """Return whether a name stands for several images: a folder, an archive or a pattern."""
    path = Path(os.path.expanduser(image))
    if is_web_address(str(image)):
        return False
    return path.is_dir() or is_archive(path) or (split_pattern(path) is not None and not path.exists())


def find_images(paths: Iterable[str | Path]) -> tuple[list[Path], list[ImageError]]:
    """List the images that paths, folders, archives and patterns name, each once, and the problems with the others.

    A file is taken as given, whatever its suffix. A folder or an archive is walked in natural order (2.jpg before
    10.jpg) for files with one of `SUFFIXES`, hidden ones left out. A name that does not exist is tried as a pattern
    (`*.jpg`, `photos/**/*.png`), also inside an archive.

    >>> found, problems = find_images(["no such image.jpg"])
    >>> found, str(problems[0])
    ([], 'no such image.jpg: no such file or folder: check the path')
    """
    names, problems = find_names(paths)
    return [Path(name) for name in names], problems


def find_names(paths: Iterable[str | Path]) -> tuple[list[str], list[ImageError]]:
    """Find images as `find_images` does, with strings for paths: millions fit into memory, at some hundred bytes each.

    URLs and `-`, standard input, are names of images too.
    """
    given = [paths] if isinstance(paths, (str, Path)) else list(paths)
    found: list[str] = []
    problems: list[ImageError] = []
    for path in given:
        try:
            found += _expand(path, problems)
        except ImageError as problem:
            problems.append(problem)
        except OSError as error:
            problems.append(ImageError(str(path), reason_of(error)))
    if len(given) == 1 and os.path.isdir(os.path.expanduser(given[0])):  # one folder names nothing twice
        return found, problems
    once: dict[str, str] = {}
    for name in found:
        once.setdefault(name if is_web_address(name) else os.path.abspath(name), name)
    return list(once.values()), problems


def split_pattern(path: Path) -> tuple[Path, Path] | None:
    """Split a path into the folder above its pattern and the pattern; None for a path without *, ? or [.

    >>> split_pattern(Path("photos/2026/*.png"))[1].as_posix(), split_pattern(Path("photos/cat.png"))
    ('*.png', None)
    """
    first = next((i for i, part in enumerate(path.parts) if re.search(r"[*?\[]", part)), None)
    return None if first is None else (Path(*path.parts[:first]), Path(*path.parts[first:]))


def _expand(given: str | Path, problems: list[ImageError]) -> list[str]:
    """List the images that one name stands for: a file, a folder, a pattern, an archive, a web address."""
    if not str(given):
        raise ImageError("''", "empty path: name a file, a folder or a pattern")
    if str(given) == STDIN or is_web_address(str(given)):
        return [str(given)]
    path = Path(os.path.expanduser(given))
    if path.is_dir():
        before = len(problems)
        if (found := _walk([path], (), problems)) or len(problems) > before:  # unreadable folders are problems already
            return found
        raise ImageError(str(given), f"no images in this folder: none of {' '.join(SUFFIXES)}")
    if (inside := split_member(path)) is not None:
        return _members(*inside, str(given))
    if path.exists():  # before patterns: a file may well be called "photo [1].jpg"
        return [str(path)]
    if (parts := split_pattern(path)) is None:
        raise ImageError(str(given), f"no such file or folder: {nearest_path(path) or 'check the path'}")
    folder, pattern = parts
    try:
        matches = [path for path in folder.glob(str(pattern)) if _wanted(path.relative_to(folder), pattern)]
    except ValueError as error:
        raise ImageError(str(given), f"not a pattern ({error})") from None
    matches.sort(key=lambda match: [(_natural(part), part) for part in match.parts])
    # `*` alone asks for what a folder holds; `scan_*` or `*.dat` names the very files
    if found := _walk(matches, () if pattern.name in ("*", "**") else matches, problems):
        return found
    raise ImageError(str(given), "no image matches this pattern: check the path")


def nearest_path(path: Path) -> str:
    """Say what to try in place of an image's path that leads nowhere: a name like it in the same folder, if any."""
    try:
        close = difflib.get_close_matches(path.name, os.listdir(path.parent), n=1, cutoff=0.7)
    except OSError:
        close = []
    return f"did you mean {path.parent / close[0]}?" if close else ""


def _members(archive: Path, asked: str, given: str) -> list[str]:
    """Find images by path, folder or pattern, or else all, in natural order, where the folder is a zip or tar."""
    try:
        members = list_members(archive)
    except ArchiveError as error:
        raise ImageError(str(archive), str(error)) from error
    if asked in members:
        return [f"{archive}/{asked}"]
    chosen = [m for m in members if not asked or m.startswith(f"{asked}/") or fnmatch.fnmatchcase(m, asked)]
    images = [member for member in chosen if os.path.splitext(member)[1].lower() in SUFFIXES]
    if not images:
        what = "no such file, folder or pattern in the archive" if asked else "no images in this archive"
        raise ImageError(given, f"{what}: none of {' '.join(SUFFIXES)}" if not asked else f"{what}: check the path")
    return [f"{archive}/{m}" for m in sorted(images, key=lambda m: [(_natural(part), part) for part in m.split("/")])]


def _wanted(match: Path, pattern: Path) -> bool:
    """Return whether a file that matches a pattern counts: hidden ones only if it spells out a dot, as in a shell."""
    return any(part.startswith(".") for part in pattern.parts) or not any(part.startswith(".") for part in match.parts)


def _walk(starts: Iterable[Path], named: Iterable[Path], problems: list[ImageError]) -> list[str]:
    """List images in and under the starting paths, in natural order; links are followed, each folder once."""
    found: list[str] = []
    visited: set[tuple[int, int]] = set()
    named = set(named)
    pending: list[str] = []  # the next one last; folders end in a slash
    for path in starts:
        if path.is_dir():
            pending.append(os.path.join(path, ""))
        elif path in named or (path.suffix.lower() in SUFFIXES and path.is_file()):
            pending.append(str(path))
    pending.reverse()
    while pending:
        name = pending.pop()
        if not name.endswith(os.sep):
            found.append(name)
            continue
        try:
            status = os.stat(name)
            if (status.st_dev, status.st_ino) not in visited:
                visited.add((status.st_dev, status.st_ino))
                base = "" if name == os.path.join(os.curdir, "") else name
                pending += [base + inner for inner in reversed(_listed(name))]
        except OSError as error:
            problems.append(ImageError(str(Path(name)), reason_of(error)))
    return found


def _listed(folder: str) -> list[str]:
    """List the images and the folders (with a slash at the end) in a folder, in natural order."""
    names = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if _is(entry.is_dir):
                names.append(entry.name + os.sep)
            elif os.path.splitext(entry.name)[1].lower() in SUFFIXES and _is(entry.is_file):
                names.append(entry.name)
    names.sort()  # ties of the natural order, as 1.jpg and 01.jpg
    names.sort(key=lambda name: _natural(name.removesuffix(os.sep)))
    return names


def _is(kind: Callable[[], bool]) -> bool:
    """Ask the system about a path while images are found; False if it raises."""
    try:
        return kind()
    except OSError:  # a link that leads to itself
        return False


def _natural(name: str) -> str:
    """Make the sorting key of natural order, in which runs of digits in a file's name are numbers.

    >>> sorted(["10.jpg", "9.jpg", "A.jpg"], key=_natural)
    ['9.jpg', '10.jpg', 'A.jpg']
    """
    return _DIGITS.sub(_sortable, name.casefold())


_DIGITS = re.compile(r"\d+")


def _sortable(digits: re.Match[str]) -> str:
    """Spell a run of digits in a file's name so that it sorts as a number."""
    number = str(int(digits[0]))
    return f"\0{chr(len(number))}{number}"
