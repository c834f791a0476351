"""Files and paths: writability checks, atomic writes, the cache folder, and paths shortened for shared files."""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

FILE_SUFFIXES = (
    *(".csv", ".json", ".parquet", ".npy", ".npz", ".html", ".png", ".svg", ".pdf"),
    *(".safetensors", ".pth", ".pt", ".onnx", ".pt2"),
)
"""Suffixes of the files that are written."""


def check_output_name(path: Path) -> None:
    """Raise if a file or a folder to write is called `-`, or by a suffix alone.

    >>> check_output_name(Path(".csv"))
    Traceback (most recent call last):
    ValueError: .csv is a suffix without a name: try out.csv
    """
    if path.name == "-":
        raise ValueError("- would be standard output, which no file is written to: name a file or a folder")
    if path.name in FILE_SUFFIXES and not path.exists():
        raise ValueError(f"{path} is a suffix without a name: try {path.with_name(f'out{path.name}')}")


def check_writable_file(path: Path) -> None:
    """Raise if a file cannot be written, before the work rather than after it."""
    check_output_name(path)
    if path.is_dir():
        raise ValueError(f"{path} is a folder: name a file with -o")
    check_writable_folder(path.expanduser().parent, "-o")


def check_page_file(path: Path, figures: str = "") -> Path:
    """Check the path of an HTML file to write: raise if its suffix is that of another kind of file.

    `figures` names what writes images.

    >>> check_page_file(Path("cat.html"), "--figures FOLDER").name
    'cat.html'
    """
    if path.suffix.lower() not in ("", ".html", ".htm"):
        hint = f" (for figures as images: {figures})" if figures else ""
        raise ValueError(f"the page is an .html file, got {path}: name {path.with_suffix('.html')}{hint}")
    return path


def check_writable_folder(folder: Path, flag: str) -> None:
    """Raise if files cannot be written to a folder, which may not exist yet; the error names the `flag` to change."""
    check_output_name(folder)
    if folder.suffix in FILE_SUFFIXES and not folder.exists():
        raise ValueError(f"{folder} is the name of a file, expected a folder: try {folder.with_suffix('')} with {flag}")
    existing = next((each for each in (folder, *folder.parents) if each.exists()), folder)
    if existing.is_file() or not os.access(existing, os.W_OK):
        reason = "is a file, not a folder" if existing.is_file() else "cannot be written to"
        raise ValueError(f"{existing} {reason}: choose another folder with {flag}")


def write_atomic(path: Path, write: Callable[[Path], object]) -> Path:
    """Write a file atomically: `write` fills a file in a temporary folder next to `path`, which is then moved there.

    A library may write beside its file, as safetensors does: what a killed process leaves lies in that folder too.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent, ignore_cleanup_errors=True) as folder:
        temporary = Path(folder, path.name)
        write(temporary)
        with temporary.open("r+b") as written:  # Windows cannot sync a file that is open for reading only
            os.fsync(written.fileno())
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)  # safetensors creates private files; give ours the usual permissions
        os.replace(temporary, path)
    return path


def remove(path: Path) -> None:
    """Remove a file, or a folder with all that is in it, if it exists."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> Path:
    """Write a text in UTF-8, atomically."""
    return write_atomic(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_json(path: Path, value: object) -> Path:
    """Write a value as indented JSON, atomically."""
    return write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_arrays(path: Path, arrays: Mapping[str, Any], *, compressed: bool = True) -> Path:
    """Write arrays by name as an npz file, atomically."""
    import numpy as np  # not at the top: `vitreous --help` does without it

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:  # given a path, NumPy would add a suffix to it
            (np.savez_compressed if compressed else np.savez)(file, **arrays)

    return write_atomic(path, write)


def cache_folder(cache_dir: str | Path | None = None) -> Path:
    """Return the cache folder of this package: the argument, else `VITREOUS_CACHE`, else the platform's.

    >>> cache_folder("somewhere").name
    'somewhere'
    """
    chosen = cache_dir or os.environ.get("VITREOUS_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    if os.name == "nt":
        return Path(os.environ.get("LOCALAPPDATA") or "~/AppData/Local").expanduser() / "vitreous"
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "vitreous"


def spell_path(name: str | os.PathLike[str]) -> str:
    """Write the path of a file or folder as text, with `./` if it lies in this folder; what is text already stays.

    Such a path cannot be taken for a name.

    >>> spell_path("digits"), spell_path(Path("digits")), spell_path(Path("images/digits"))
    ('digits', './digits', 'images/digits')
    """
    if isinstance(name, str):
        return name
    path = Path(name)
    return str(path) if path.is_absolute() or len(path.parts) > 1 else os.path.join(".", path)


def short_name(name: str) -> str:
    """Return the last part of a file's path, or of a name: local paths are not written to files that may be shared.

    >>> short_name("runs/digits/"), short_name("google/vit-base-patch16-224")
    ('digits', 'vit-base-patch16-224')
    """
    return name.rstrip("/").replace("\\", "/").split("/")[-1] or name


def without_folders(text: str) -> str:
    """Shorten the paths of local files in a text to their last part, for files that may be shared.

    >>> without_folders("CIFAR10 is not in /home/me/data and not at https://a.org/b")
    'CIFAR10 is not in …/data and not at https://a.org/b'
    """
    return re.sub(r"(?<!\S)(~|[A-Z]:)?[/\\](\S+[/\\])?", "…/", text)
