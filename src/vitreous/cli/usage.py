"""Turn a rejected command line into one line that says what was expected.

tyro hands what it rejects to a hook as an object (`tyro._errors`, from 1.0.14 on). The module is private: where another
tyro has no such hook, or an event that is not listed here, tyro prints its own box and exits with the same code, 2.
"""

import difflib
import io
import re
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, redirect_stdout, suppress
from typing import Any

import tyro

from vitreous.runtime.distributed import this_rank

Flags = Callable[[], dict[str, str]]
"""Every flag of the command, as `--help` spells it with its value."""


def one_line_errors(command: str, flags: Flags) -> AbstractContextManager[None]:
    """Raise a `ValueError` of one line for whatever tyro rejects inside this block."""

    def reject(event: Any) -> None:
        if not this_rank().first:  # of several processes, one explains
            sys.exit(2)
        if (message := describe(event, command, flags)) is not None:
            raise ValueError(f"{message} (vitreous {command} --help lists all flags)")

    hooks: Any = getattr(tyro, "_errors", None)
    block: AbstractContextManager[None] = nullcontext() if hooks is None else hooks.on_parse_error(reject)
    return block


def describe(event: Any, command: str, flags: Flags) -> str | None:
    """Describe a `tyro._errors.ParseErrorEvent`; None for one that is not known here."""
    argument = getattr(event, "argument", None)
    name = "" if argument is None else argument.display_name()
    match type(event).__name__:
        case "UnrecognizedArgs":
            token = event.tokens[0]
            known = flags() if token.startswith("-") else {}
            close = difflib.get_close_matches(token, known, n=2, cutoff=0.75)
            hint = f": did you mean {' or '.join(known[flag] for flag in close)}?" if close else ""
            return f"{command} takes no {token}{hint}"
        case "MissingArgs":
            *others, last = (str(missing.arg.get_invocation_text()[1]) for missing in event.missing_arguments)
            extra = f", and takes no {' '.join(event.unrecognized_tokens)}" * bool(event.unrecognized_tokens)
            return f"{command} needs {', '.join(others)}{' and ' * bool(others)}{last}{extra}"
        case "BadValue":
            return f"{name} expects a value"
        case "InvalidChoice" if argument is not None:
            listed = re.search(r"{(.*?)}", argument.lowered.metavar)  # in the order of the help, and without None
            choices = listed[1].split(",") if listed else event.choices
            return f"{name} is one of {', '.join(choices)}, got {event.value!r}"
        case "InstantiationFailure" if argument is not None:
            given = re.search(r"'[^']*'|\[.*?\]", event.message)
            help_text = argument.field.helptext
            about = " ".join((help_text() if callable(help_text) else help_text or "").split()).rstrip(".")
            return f"{name} expects {argument.lowered.metavar}, got {given[0] if given else event.message}: {about}"
    return None


def flags_in_help(show_help: Callable[[], object]) -> dict[str, str]:
    """Read the flags, with their values, off a command's `--help`.

    >>> flags_in_help(lambda: print("│ -o PATH, --output PATH   A file. │"))
    {'--output': '--output PATH'}
    """
    shown = io.StringIO()
    with redirect_stdout(shown), suppress(SystemExit):
        show_help()
    return {flag[1]: flag[0] for flag in re.finditer(r"(--[a-z][\w-]*)(?: (?!│)\S+)*", shown.getvalue())}
