"""How a process says what went wrong: in one line, and where several run, with its rank and to `torchrun` as well.

`torchrun` ends all processes when one fails, and shows in its summary what that one wrote to its error file.
"""

import json
import multiprocessing
import os
import sys
import time
import traceback
from pathlib import Path
from typing import NoReturn

from vitreous.runtime.distributed import this_rank

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
"""Where `torchrun` says which file it reads; another launcher does not."""
PATIENCE = 10.0
"""Seconds for which a process that only lost the others keeps its peace: `torchrun` ends it before, and the summary
begins with the one that failed first."""


def tell(error: Exception, *, traced: bool = False) -> None:
    """Print the error as one line on standard error and leave it to `torchrun`, with its traceback if `traced`."""
    place = this_rank()
    line = " ".join(_said(error).split()) or type(error).__name__
    if place.world_size > 1:
        if is_echo(error):
            if ERROR_FILE in os.environ:
                time.sleep(PATIENCE)
            line = f"lost the other processes, which ended first: run all of them again as before ({line[:200]})"
        _leave("".join(traceback.format_exception(error)) if traced else line)
        line = f"rank {place.rank}: {line}"
    print(f"vitreous: {line}", file=sys.stderr, flush=True)


def end(code: int) -> NoReturn:
    """End this process with `code`; at once where a process group is still open, as it is after an error.

    Its threads may stand in the middle of a message to a process that has gone, and the interpreter's usual end would
    take the group down under them: then the system reports an abort in place of the code.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        sys.exit(code)
    for child in multiprocessing.active_children():
        child.terminate()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def _said(error: Exception) -> str:
    """The error's words; the system's own, such as `[Errno 2] …`, with what to do about them."""
    if isinstance(error, OSError) and error.errno is not None and error.strerror and error.filename is not None:
        return f"{error.filename}: {error.strerror[:1].lower()}{error.strerror[1:]}: check the path, or choose another"
    return str(error)


def is_echo(error: Exception) -> bool:
    """Whether the error is but another process's end, as seen from here."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    return isinstance(error, RuntimeError) and ("DistError" in kinds or "gloo" in str(error))


def _leave(text: str) -> None:
    """Write the error file that `torchrun` asks for, as torch.distributed.elastic's ErrorHandler lays it out.

    Its own `record_exception` would show a traceback for a mistyped path too.
    """
    if path := os.environ.get(ERROR_FILE):
        message = {"message": text, "extraInfo": {"py_callstack": text, "timestamp": str(int(time.time()))}}
        Path(path).write_text(json.dumps({"message": message}), encoding="utf-8")
