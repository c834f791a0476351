"""Report an error as one line, also to `torchrun`, and exit the process with its code.

`torchrun` ends all processes when one fails, and its summary shows what that one wrote to its error file.
"""

import os
import sys
import time
import traceback
from typing import NoReturn

from vitreous.runtime.distributed import ERROR_FILE, is_peer_loss, this_rank, write_error_file

PEER_WAIT = 10.0
"""Seconds that a process waits after it lost its peers: `torchrun` ends it in that time, and its summary then begins
with the process that failed first."""


def report_error(error: Exception, *, with_traceback: bool = False) -> None:
    """Report an error of this rank as one line on standard error, and in `torchrun`'s error file if there is one."""
    rank = this_rank()
    line = " ".join(_message(error).split()) or type(error).__name__
    if rank.world_size > 1:
        if is_peer_loss(error):
            if ERROR_FILE in os.environ:
                time.sleep(PEER_WAIT)
            line = f"lost the other processes, which ended first: run all of them again as before ({line[:200]})"
        write_error_file("".join(traceback.format_exception(error)) if with_traceback else line)
        line = f"rank {rank.rank}: {line}"
    print(f"vitreous: {line}", file=sys.stderr, flush=True)


def exit_process(code: int) -> NoReturn:
    """End this rank's process after an error, with a `code`, even if its process group is open.

    The interpreter's cleanup is skipped then. The group's threads may be sending to a process that has gone. Cleanup
    would destroy the group under them, and the process would then abort instead of returning the code.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        sys.exit(code)
    import multiprocessing  # imported late: no command that ends well needs it

    for child in multiprocessing.active_children():
        child.terminate()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def _message(error: Exception) -> str:
    """Return an error's message; an error of the system, such as `[Errno 2] …`, is reworded with a hint."""
    if isinstance(error, OSError) and error.errno is not None and error.strerror and error.filename is not None:
        return f"{error.filename}: {error.strerror[:1].lower()}{error.strerror[1:]}: check the path, or choose another"
    return str(error)
