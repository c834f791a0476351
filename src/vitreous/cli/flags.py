"""Words after a command, read as its flags; a mistake in them is one line that says what was expected.

tyro reads them and puts a mistake into a box with rules between its sections: first what is wrong, then perhaps what
was meant, or the flag's own help.
"""

import io
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from functools import partial, wraps
from typing import Any

import tyro

HELP = {"-h", "--help"}
WIDE = "100000"
"""Columns of a box in which no line is broken."""


def read_flags(function: Callable[..., Any], command: str, words: Sequence[str], **options: Any) -> Callable[[], Any]:
    """The call that the words ask for; `ValueError` where they ask for none."""

    @wraps(function)
    def bound(*arguments: Any, **flags: Any) -> Callable[[], Any]:
        return partial(function, *arguments, **flags)

    said = io.StringIO()
    asks = not HELP.isdisjoint(words)
    try:
        with redirect_stderr(said), _columns(None if asks else WIDE):
            call: Callable[[], Any] = tyro.cli(bound, args=words, prog=f"vitreous {command}", **options)
            return call
    except SystemExit as stop:
        if stop.code in (None, 0) or not said.getvalue():
            raise
        raise ValueError(one_line(said.getvalue(), command)) from None
    finally:
        if asks:
            sys.stderr.write(said.getvalue())


def one_line(box: str, command: str) -> str:
    """What tyro says in a box, as one line.

    >>> box = "╭─╮\\n│ Unrecognized options: --modle │\\n│ ─── │\\n│ Perhaps you meant: │\\n│     --model NAME │"
    >>> one_line(box, "embed")
    'embed takes no --modle: did you mean --model NAME? (vitreous embed --help lists all flags)'
    >>> one_line(" Required\\n ---\\n  Missing from push:\\n      FOLDER\\n          A run.\\n      OWNER/NAME", "push")
    'push still wants FOLDER and OWNER/NAME (vitreous push --help lists all flags)'
    >>> box = "╭─╮\\n│ Missing from evaluate: │\\n│     --data NAME │\\n│ ─── │\\n│ Unrecognized options: │\\n│     x │"
    >>> one_line(box, "evaluate")
    'evaluate still wants --data NAME, and takes no x by itself (vitreous evaluate --help lists all flags)'
    """
    lines = box.splitlines()
    if lines[0].startswith("╭"):
        rows = [line.strip("│").rstrip() for line in lines if line.startswith("│")]
    else:  # a terminal that knows no such signs: a title, a rule, and no border
        rows = [line.rstrip() for line in lines[2:]]
    rules = [place for place, row in enumerate(rows) if row.strip() and set(row.strip()) <= {"─", "-"}]
    wrong = " ".join(" ".join(rows[: rules[0]] if rules else rows).split())
    names = len(rows[0]) - len(rows[0].lstrip()) + 4  # how far they are indented, and what is said of them further
    beyond = next((place for place, row in enumerate(rows) if place and row.strip() == "Unrecognized options:"), None)
    named, strange = (_named(part, names) for part in (rows[:beyond], rows[beyond:] if beyond else []))
    message = wrong.rstrip(".")
    if found := re.match(r"Unrecognized options: ([^,]+)", wrong):
        message = f"{command} takes no {found[1]}"
        message += f": did you mean {' or '.join(named)}?" if named else ""
    elif wrong.startswith("Missing from"):
        message = f"{command} still wants {', '.join(named[:-1])}{' and ' * (len(named) > 1)}{named[-1]}"
        message += f", and takes no {' '.join(strange)} by itself" if strange else ""
    elif found := re.search(r"Missing value for argument \D*?(--?[\w-]+)", wrong):
        message = f"{found[1]} wants a value behind it"
    elif found := re.match(r"invalid choice (.+) for argument '(.+?)'\. Expected one of \((.*)\)", wrong):
        choices = ", ".join(re.findall(r"'([^']*)'", found[3]))
        message = f"{found[2]} is one of {choices}, got {found[1]}"
    elif (found := re.match(r"Error parsing (\S+): .*?('[^']*'|\[.*?\])", wrong)) and len(named) > 1:
        flag, _, wanted = named[0].partition(" ")
        message = f"{flag} wants {wanted}, got {found[2]}: {named[1].split(' (default')[0].rstrip('.')}"
    return f"{message} (vitreous {command} --help lists all flags)"


def _named(rows: list[str], indent: int) -> list[str]:
    """The names among rows, which stand so far in."""
    return [row.strip() for row in rows if re.match(rf" {{{indent}}}(?!vitreous )\S", row)]


@contextmanager
def _columns(number: str | None) -> Iterator[None]:
    """As if the terminal had so many."""
    before = os.environ.get("COLUMNS")
    if number is not None:
        os.environ["COLUMNS"] = number
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("COLUMNS", None)
        else:
            os.environ["COLUMNS"] = before
