"""The command line: `vitreous VERB …`.

`COMMANDS` pairs each verb with a function in `verbs/`, whose parameters become flags and whose docstring becomes its
`--help`. Nothing heavy is imported before a verb runs. A user's mistake is one line and exit code 2; `--debug` anywhere
on the line shows the traceback.
"""

import io
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import tyro

from vitreous.failure import tell
from vitreous.ranks import here
from vitreous.verbs.benchmark import benchmark
from vitreous.verbs.classify import classify
from vitreous.verbs.compare import compare
from vitreous.verbs.convert import convert
from vitreous.verbs.doctor import doctor
from vitreous.verbs.embed import embed
from vitreous.verbs.evaluate import evaluate
from vitreous.verbs.explain import explain, views
from vitreous.verbs.explore import explore
from vitreous.verbs.listing import datasets, models
from vitreous.verbs.train import choose, recipes

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
    "doctor": doctor,
    "models": models,
    "datasets": datasets,
    "recipes": recipes,
    "views": views,
}

MISTAKES = (ValueError, OSError, ImportError, MemoryError, FloatingPointError)
"""What a user may have caused and can mend; all else is ours, and shows where it came from."""

DESCRIPTION = "Vision Transformers you can see through. Start with: vitreous explain (or --version, --debug)"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command; what went wrong is one line on standard error."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):  # a terminal that knows no █ shows ? instead of failing
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    warnings.filterwarnings("ignore", module=r"PIL\.")  # a damaged picture gets its line from us
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"] or ["--help"]
    if words == ["--version"]:
        from vitreous import __version__

        print(f"vitreous {__version__}")
        return
    try:
        tyro.extras.subcommand_cli_from_dict(
            {**COMMANDS, **choose(words)},
            args=words,
            prog="vitreous",
            description=DESCRIPTION,
            config=(tyro.conf.FlagCreatePairsOff,),  # --json, and no --no-json beside it
            console_outputs=here().first,  # of several processes, one explains how a command is written
        )
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output, such as `head`, has gone
        sys.stderr.close()
        sys.exit(0)
    except Exception as error:
        traced = debug or not isinstance(error, MISTAKES)
        if not traced or here().ranks > 1:
            tell(error, traced=traced)
        if traced:
            raise
        sys.exit(2)
