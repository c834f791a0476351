"""The command line: `vitreous COMMAND …`.

`COMMANDS` pairs each command with a function in `commands/`, whose parameters become flags and whose docstring becomes its
`--help`. Nothing heavy is imported before a command runs. A user's mistake is one line and exit code 2; `--debug` anywhere
on the line shows the traceback. Without a command, it shows the way.
"""

import difflib
import inspect
import io
import re
import shutil
import sys
import textwrap
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import tyro

from vitreous.cli.benchmark import benchmark
from vitreous.cli.classify import classify
from vitreous.cli.compare import compare
from vitreous.cli.completion import completion
from vitreous.cli.convert import convert
from vitreous.cli.doctor import doctor
from vitreous.cli.embed import embed
from vitreous.cli.evaluate import evaluate
from vitreous.cli.explain import explain
from vitreous.cli.explore import explore
from vitreous.cli.flags import read_flags
from vitreous.cli.listing import datasets, models, recipes, views
from vitreous.cli.push import push
from vitreous.cli.train import choose
from vitreous.cli.welcome import welcome
from vitreous.runtime.distributed import this_rank
from vitreous.runtime.errors import exit_process, is_peer_loss, report_error
from vitreous.runtime.startup import INTERRUPTED, with_torch

COMMANDS: dict[str, Callable[..., Any]] = {
    "classify": classify,
    "explain": explain,
    "explore": explore,
    **choose(()),
    "evaluate": evaluate,
    "compare": compare,
    "benchmark": benchmark,
    "embed": embed,
    "convert": convert,
    "push": push,
    "doctor": doctor,
    "models": models,
    "datasets": datasets,
    "recipes": recipes,
    "views": views,
    "completion": completion,
}

LIGHT = ("datasets", "recipes", "views", "completion")
"""Commands that do without torch."""

MISTAKES = (ValueError, OSError, ImportError, MemoryError, FloatingPointError)
"""What a user may have caused and can mend; all else is ours, and shows where it came from."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command; what went wrong is one line on standard error."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):  # a terminal that knows no █ shows ? instead of failing
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    warnings.filterwarnings("ignore", module=r"PIL\.")  # a damaged image gets its line from us
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    if words[:1] == ["help"] and len(words) == 2:
        words = [words[1], "--help"]
    if not words or words[0] in ("-h", "--help", "help"):
        print(welcome())
        return
    if words == ["--version"]:
        from vitreous import __version__

        print(f"vitreous {__version__}")
        return
    try:
        run(words)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:  # the reader of our output, such as `head`, has gone
        sys.stderr.close()
        sys.exit(0)
    except Exception as error:
        ours = not isinstance(error, MISTAKES) and not (this_rank().world_size > 1 and is_peer_loss(error))
        traced = debug or ours
        if not traced or this_rank().world_size > 1:
            report_error(error, with_traceback=traced)
        if traced:
            raise
        exit_process(2)


def run(words: Sequence[str]) -> None:
    """Read the words after the command as its flags, and call it."""
    command, *rest = words
    if command not in COMMANDS:
        raise ValueError(f"{_unknown(command)} (vitreous alone lists all commands)")
    function = (COMMANDS | choose(words))[command]
    function.__doc__ = unbroken(function.__doc__ or "")
    read_flags(
        function if command in LIGHT else with_torch(function),
        command,
        rest,
        description=wrapped(function.__doc__, shutil.get_terminal_size().columns),
        config=(tyro.conf.FlagCreatePairsOff,),  # --json, and no --no-json beside it
        console_outputs=this_rank().first,  # of several processes, one explains how a command is written
    )()


def unbroken(text: str) -> str:
    """A docstring whose arguments are a line each, for `--help` breaks lines where the terminal ends.

    >>> unbroken("Say it.\\n\\n    Args:\\n        a: One\\n            two.\\n        b: Three.")
    'Say it.\\n\\nArgs:\\n    a: One two.\\n    b: Three.'
    """
    before, found, arguments = inspect.cleandoc(text).partition("Args:\n")  # from Python 3.13 on it comes clean
    return before + found + re.sub(r"\n {5,}(?=\S)", " ", arguments)


def wrapped(text: str, width: int) -> str:
    """What a docstring says before its arguments, in lines that fit the terminal; tyro breaks those of flags alone.

    >>> print(wrapped("Say it all.\\n\\n    And more\\n    words.\\n\\n    Args:\\n        a: One.", 12))
    Say it all.
    <BLANKLINE>
    And more
      words.
    """
    paragraphs = text.partition("Args:\n")[0].strip().split("\n\n")
    # tyro joins lines but those that begin with no letter: hence the indent
    return "\n\n".join(textwrap.fill(" ".join(p.split()), width, subsequent_indent="  ") for p in paragraphs)


def _unknown(command: str) -> str:
    if command.startswith("-"):
        return f"the command comes before {command}, as in vitreous classify {command}"
    close = difflib.get_close_matches(command, COMMANDS, n=2)
    hint = f"did you mean {' or '.join(close)}?" if close else "try vitreous explain or vitreous classify"
    return f"there is no command {command!r}: {hint}"
