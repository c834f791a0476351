"""The welcome screen, a command's help (docstring wrapped, flags without `None`), and what tyro rejects, in one line.

tyro hands what it rejects to a hook as an object (`tyro._errors`, from 1.0.14 on). The module is private: where another
tyro has no such hook, or an event that is not listed here, tyro prints its own box and exits with the same code, 2.
"""

import dataclasses
import difflib
import inspect
import io
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, redirect_stdout, suppress
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import tyro

from vitreous.runtime.distributed import this_rank

Flags = Callable[[], dict[str, str]]
"""Every flag of the command, as `--help` spells it with its value."""

BEGIN = {
    "vitreous explain": "write a page of what the packaged model sees in a cup of coffee",
    "vitreous classify photo.jpg": "classify an image of yours",
    "vitreous train": "train a ViT on handwritten digits in half a minute",
}

PURPOSES = {
    "an image": {
        "classify": "name what is in images",
        "explain": "write a page that shows what the model attends to, and why",
        "explore": "the same in a browser, live, for any image",
        "embed": "turn images into vectors",
    },
    "training": {
        "train": "train from scratch, by a recipe",
        "finetune": "train a checkpoint further, on your images",
        "evaluate": "measure accuracy on labelled images",
        "compare": "compare models: same data, budget, seeds",
    },
    "checkpoints": {
        "doctor": "show what was loaded, and check the preprocessing",
        "convert": "write a checkpoint for another library, or as a graph",
        "push": "upload to the Hugging Face Hub, with a model card",
        "benchmark": "measure speed beside other libraries",
    },
    "lists": {
        "models": "variants by name",
        "datasets": "datasets by name",
        "recipes": "training recipes, with their results",
        "views": "views of explain",
        "completion": "completion by the tab key for bash and zsh",
    },
}

STRAY = {
    "evaluate": "did you mean --data {}?",
    "finetune": "did you mean --data {}?",
    "doctor": "did you mean --model {}?",
    "benchmark": "did you mean --models {}?",
    "models": "did you mean --search {}?",
    "explore": "drop images into the page that it opens; a model is named by --model",
}
"""Where a word without a flag was probably meant to go, by command."""


def welcome() -> str:
    """Return the welcome screen, the usage of `vitreous` as a whole: first steps, and what each command does.

    >>> print(welcome().splitlines()[3])
      vitreous explain              write a page of what the packaged model sees in a cup of coffee
    """
    lines = ["Vision Transformers you can see through.", "", "Begin with"]
    lines += [f"  {command:<30}{about}" for command, about in BEGIN.items()]
    for purpose, commands in PURPOSES.items():
        lines += [
            "",
            f"{purpose[:1].upper()}{purpose[1:]}",
            *(f"  {command:<12}{about}" for command, about in commands.items()),
        ]
    lines += ["", "vitreous COMMAND --help shows a command's flags; --json is for programs, --debug for a traceback."]
    return "\n".join(lines)


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
    """Describe tyro's error about a command line (`ParseErrorEvent`) in a line; None for one that is not known here."""
    argument = getattr(event, "argument", None)
    name = "" if argument is None else argument.display_name()
    match type(event).__name__:
        case "UnrecognizedArgs":
            token = event.tokens[0]
            known = flags() if token.startswith("-") else {}
            close = difflib.get_close_matches(token, known, n=2, cutoff=0.75)
            hint = f": did you mean {' or '.join(known[flag] for flag in close)}?" if close else ""
            if not token.startswith("-") and command in STRAY:
                hint = f": {STRAY[command].format(token)}"
            return f"{command} takes no {token}{hint}"
        case "MissingArgs":
            *others, last = (str(missing.arg.get_invocation_text()[1]) for missing in event.missing_arguments)
            extra = f", and takes no {' '.join(event.unrecognized_tokens)}" * bool(event.unrecognized_tokens)
            if event.unrecognized_tokens and command in STRAY:
                return f"{command} takes no {(word := event.unrecognized_tokens[0])}: {STRAY[command].format(word)}"
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
    """Read the flags, with their values, off the help of a command.

    >>> flags_in_help(lambda: print("│ -o PATH, --output PATH   A file. │"))
    {'--output': '--output PATH'}
    """
    shown = io.StringIO()
    with redirect_stdout(shown), suppress(SystemExit):
        show_help()
    return {flag[1]: flag[0] for flag in re.finditer(r"(--[a-z][\w-]*)(?: (?!│)\S+)*", shown.getvalue())}


def drop_default_switches(words: Sequence[str], command: Callable[..., Any]) -> list[str]:
    """Leave out switches that ask for a default, which tyro would reject as wrong usage: it knows their opposite alone.

    >>> from types import SimpleNamespace
    >>> def train(config=SimpleNamespace(compile=False, flip=True, mixup=0.0)): ...
    >>> drop_default_switches(["--no-compile", "--flip", "--no-flip", "--no-mixup"], train)
    ['--no-flip', '--no-mixup']
    """
    parameter = inspect.signature(command).parameters.get("config")
    if parameter is None:
        return list(words)
    switches = {name: on for name, on in vars(parameter.default).items() if isinstance(on, bool)}
    default = {f"--{'' if on else 'no-'}{name.replace('_', '-')}" for name, on in switches.items()}
    return [word for word in words if word not in default]


def described(function: Callable[..., Any]) -> str:
    """Prepare a command's docstring and flags for tyro; return what its help says above the flags."""
    function.__doc__ = joined_lines(function.__doc__ or "")
    hide_none(function)
    return wrapped(function.__doc__, shutil.get_terminal_size().columns)


def joined_lines(text: str) -> str:
    """Put each argument of a command's docstring on one line: tyro keeps a line break before anything but a letter.

    >>> joined_lines("Say it.\\n\\n    Args:\\n        a: One\\n            two.\\n        b: Three.")
    'Say it.\\n\\nArgs:\\n    a: One two.\\n    b: Three.'
    """
    before, found, arguments = inspect.cleandoc(text).partition("Args:\n")
    return before + found + re.sub(r"\n {5,}(?=\S)", " ", arguments)


def wrapped(text: str, width: int) -> str:
    """Wrap what a command's docstring says before its arguments to the terminal's width; tyro wraps the flags' alone.

    >>> print(wrapped("Say it all.\\n\\n    And more\\n    words.\\n\\n    Args:\\n        a: One.", 12))
    Say it all.
    <BLANKLINE>
    And more
      words.
    """
    paragraphs = text.partition("Args:\n")[0].strip().split("\n\n")
    # the indent keeps tyro from joining the lines again
    return "\n\n".join(textwrap.fill(" ".join(p.split()), width, subsequent_indent="  ") for p in paragraphs)


# --- flags that may be left out ---------------------------------------------------------------------------------------

VALUES = {int: "N", float: "NUMBER", str: "NAME"}
"""How the help writes a value of a type."""


def hide_none(command: Callable[..., Any]) -> None:
    """Let a command's help say nothing of None: neither as a value of a flag nor as its default.

    The flags are those of its parameters that are dataclasses, such as the settings of a training run.
    """
    signature, hints = inspect.signature(command), get_type_hints(command, include_extras=True)
    parameters = dict(signature.parameters)
    for name, parameter in signature.parameters.items():
        kind, *extra = get_args(hints[name]) if get_origin(hints[name]) is Annotated else (hints[name],)
        if dataclasses.is_dataclass(kind) and isinstance(kind, type) and isinstance(parameter.default, kind):
            default = _shown_settings(kind, parameter.default)
            parameters[name] = parameter.replace(annotation=Annotated[(type(default), *extra)], default=default)
    shown: Any = command
    shown.__signature__ = signature.replace(parameters=list(parameters.values()))
    shown.__annotations__ = hints | {name: each.annotation for name, each in parameters.items() if name in hints}


def _shown_settings(kind: type, default: Any) -> Any:
    """Return settings for `--help`: a copy whose class says how a field that may be None is written."""
    values = {field.name: getattr(default, field.name) for field in dataclasses.fields(default)}
    hints = get_type_hints(kind, include_extras=True)
    plain = {name: hint for name, hint in hints.items() if name in values and NoneType in get_args(hint)}
    if not plain:
        return default
    space: Mapping[str, Any] = {
        "__annotations__": {name: Annotated[hint, _described(hint, values[name])] for name, hint in plain.items()},
        "__doc__": kind.__doc__,
        **{name: values[name] for name in plain},
    }
    made: Any = dataclasses.dataclass(frozen=True)(type(kind.__name__, (kind,), dict(space)))
    return made(**values)


def _described(hint: Any, default: Any) -> Any:
    """Write the usage that `--help` shows for a setting that may be None: how its value is written, and its default."""
    (inner,) = (part for part in get_args(hint) if part is not NoneType)
    if get_origin(inner) is Literal:
        metavar = f"{{{','.join(map(str, get_args(inner)))}}}"
    else:
        metavar = " ".join(VALUES.get(part, "VALUE") for part in (get_args(inner) or (inner,)))
    return tyro.conf.arg(metavar=metavar, help_behavior_hint="" if default is None else None)
