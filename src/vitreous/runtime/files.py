"""Files: written whole or not at all, and the folder for what can be made again."""

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path


def write_atomic(path: Path, write: Callable[[Path], object]) -> Path:
    """Let `write` fill a temporary file beside `path`, then put it in place in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        with temporary.open("r+b") as written:  # Windows syncs no file that is open for reading alone
            os.fsync(written.fileno())
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)  # mkstemp's files are private; ours are as any other
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def write_json(path: Path, value: object) -> Path:
    """A value as JSON that people can read, whole or not at all."""
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    return write_atomic(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def cache_folder(cache_dir: str | Path | None = None) -> Path:
    """Return the folder for our own downloads: the argument, else `VITREOUS_CACHE`, else the platform's.

    >>> cache_folder("somewhere").name
    'somewhere'
    """
    chosen = cache_dir or os.environ.get("VITREOUS_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    if os.name == "nt":
        return Path(os.environ.get("LOCALAPPDATA") or "~/AppData/Local").expanduser() / "vitreous"
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "vitreous"
