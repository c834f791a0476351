"""`main` and `COMMANDS`: run `vitreous COMMAND …`, parse its flags, suggest a command, complete words in the shell.

`COMMANDS` pairs each command with a function; tyro turns its parameters into flags and its docstring into `--help`.
Nothing heavy is imported before a command runs. A user's mistake is one line and exit code 2; `--debug` anywhere on
the line shows the traceback. Without a command, the welcome screen lists them all.
"""

import difflib
import io
import shlex
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from vitreous import __version__
from vitreous.cli.benchmark import benchmark
from vitreous.cli.classify import classify
from vitreous.cli.compare import compare
from vitreous.cli.convert import convert
from vitreous.cli.doctor import doctor
from vitreous.cli.embed import embed
from vitreous.cli.evaluate import evaluate
from vitreous.cli.explain import explain
from vitreous.cli.explore import explore
from vitreous.cli.listing import datasets, models, recipes, views
from vitreous.cli.push import push
from vitreous.cli.train import choose
from vitreous.cli.usage import described, drop_default_switches, flags_in_help, one_line_errors, welcome
from vitreous.runtime.distributed import is_peer_loss, this_rank
from vitreous.runtime.errors import exit_process, report_error
from vitreous.runtime.startup import INTERRUPTED, with_torch


def completion(shell: Annotated[Literal["bash", "zsh"], tyro.conf.Positional]) -> None:
    """Print a script that lets the shell's tab key complete commands, flags and their choices.

    Once, for bash: `vitreous completion bash > ~/.vitreous.bash` and a line `source ~/.vitreous.bash` in ~/.bashrc.

    For zsh: `vitreous completion zsh > ~/.vitreous.zsh` and a line `source ~/.vitreous.zsh` in ~/.zshrc.

    Args:
        shell: The shell to write for.
    """
    from tyro.extras import SubcommandApp

    if shell == "zsh":  # which runs bash's scripts
        print("autoload -U +X compinit && compinit -i\nautoload -U +X bashcompinit && bashcompinit")
    app = SubcommandApp()
    for name, function in COMMANDS.items():
        app.command(name=name, help=described(function))(function)
    with suppress(SystemExit):
        app.cli(prog="vitreous", args=["--tyro-print-completion", "bash"], config=CONFIG)
    print('_vitreous() { _tyro_vitreous; [ -n "${COMPREPLY[*]}" ] || COMPREPLY=(); }')
    print("complete -o bashdefault -o default -F _vitreous vitreous")  # file names where tyro knows no word


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

CONFIG = (tyro.conf.FlagCreatePairsOff,)
"""How tyro reads flags: --json, without a --no-json."""

LIGHT = ("datasets", "recipes", "completion")
"""Commands that do without torch."""

LISTS = ("models", "views")
"""Commands that print a list at once, and nothing before it."""

MISTAKES = (ValueError, OSError, ImportError, MemoryError, FloatingPointError)
"""Errors that a user can cause and fix: one line. Every other error is a bug of ours and shows its traceback."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command; print an error as one line on standard error."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):  # a terminal whose encoding lacks █ shows ? instead of failing
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    warnings.filterwarnings("ignore", module=r"PIL\.")  # damaged images are reported by our own errors
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    if words[:1] == ["help"] and len(words) == 2:
        words = [words[1], "--help"]
    if not words or words[0] in ("-h", "--help", "help"):
        print(welcome())
        return
    if words == ["--version"]:
        print(f"vitreous {__version__}")
        return
    try:
        run(words)
    except KeyboardInterrupt:
        print("vitreous: interrupted", file=sys.stderr)
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
    """Read the words after a command as its flags, and call it."""
    command = words[0]
    if command not in COMMANDS:
        raise ValueError(f"{_unknown(command)} (vitreous alone lists all commands)")
    function = (COMMANDS | choose(words))[command]
    with one_line_errors(command, flags=lambda: flags_in_help(lambda: parse(command, ["--help"], function))):
        parse(command, drop_default_switches(words[1:], function), function)


def parse(command: str, words: Sequence[str], function: Callable[..., Any]) -> None:
    """Let tyro read the words after a command and call its function. No other command's flags are looked at."""
    say = command not in LISTS and "--json" not in words
    tyro.cli(
        function if command in LIGHT else with_torch(function, say=say),
        prog=f"vitreous {command}",
        description=described(function),
        args=words,
        config=CONFIG,
        console_outputs=this_rank().first,  # of several processes, one prints the help
    )


def _unknown(command: str) -> str:
    """Write the error for a word that is none of `COMMANDS`: the nearest ones, or that the command comes first."""
    if command.startswith("-"):
        return f"the command comes before {command}, as in vitreous classify {command}"
    if Path(command).exists() or command.startswith(("http://", "https://")):
        return f"the command comes before {command}, as in vitreous classify {shlex.quote(command)}"
    close = difflib.get_close_matches(command.lower(), COMMANDS, n=2)
    hint = f"did you mean {' or '.join(close)}?" if close else "try vitreous explain or vitreous classify"
    return f"there is no command {command!r}: {hint}"
