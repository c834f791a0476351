"""`vitreous completion`: a script that lets the shell's tab key complete commands, flags, choices and known names.

The script is written from the commands themselves, and runs nothing of ours when the key is pressed.
"""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import tyro

Choices = dict[str, tuple[str, ...]]


def completion(
    shell: Annotated[Literal["bash", "zsh"], tyro.conf.Positional],
) -> None:
    """Print a script for the shell's tab key.

    Once, for bash: `vitreous completion bash > ~/.vitreous.bash` and a line `source ~/.vitreous.bash` in ~/.bashrc.

    For zsh: `vitreous completion zsh > ~/.vitreous.zsh` and a line `source ~/.vitreous.zsh` in ~/.zshrc.

    Args:
        shell: The shell to write for.
    """
    from vitreous.cli.main import COMMANDS

    print(script(shell, COMMANDS))


def script(shell: str, commands: Mapping[str, Callable[..., Any]]) -> str:
    """The whole script; zsh runs bash's way of completing."""
    commands = {command: flags(function) for command, function in commands.items()}
    lines = ["autoload -U +X compinit && compinit -i", "autoload -U +X bashcompinit && bashcompinit"]
    lines = ["# vitreous: completion of the command line", *(lines if shell == "zsh" else [])]
    lines += [
        "_vitreous() {",
        '  local current="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD-1]}" words=""',
        "  COMPREPLY=()",
        '  if [ "$COMP_CWORD" -eq 1 ]; then',
        f"    words={_list([*commands, '--help', '--version'])}",
        "  else",
        '    case "${COMP_WORDS[1]} $previous" in',
        *_cases(commands),
        "    esac",
        '    if [ -z "$words" ] && [ "${current#-}" != "$current" ]; then',
        '      case "${COMP_WORDS[1]}" in',
        *(f"        {command}) words={_list(sorted(known))} ;;" for command, known in commands.items()),
        "      esac",
        "    fi",
        "  fi",
        '  COMPREPLY=($(compgen -W "$words" -- "$current"))',
        "}",
        "complete -o bashdefault -o default -F _vitreous vitreous",  # where there is no word of ours, names of files
    ]
    return "\n".join(lines)


def flags(function: Callable[..., Any]) -> Choices:
    """A command's flags, each with the words that may follow it; none where anything may, or nothing.

    >>> from vitreous.cli.push import push
    >>> sorted(flags(push))
    ['--debug', '--help', '--json', '--license', '--private', '--token-from-env']
    """
    hints, known = get_type_hints(function, include_extras=True), _names()
    found: Choices = {"--debug": (), "--help": ()}
    for name, parameter in inspect.signature(function).parameters.items():
        kind, *notes = get_args(hints[name]) if get_origin(hints[name]) is Annotated else (hints[name],)
        if tyro.conf.Positional in notes:
            continue
        if is_dataclass(kind):  # its fields are flags without a prefix
            for field, inner in get_type_hints(kind, include_extras=True).items():
                found |= _flag(field, inner, getattr(parameter.default, field), known)
        else:
            found |= _flag(name, hints[name], parameter.default, known)
    return found


def _flag(name: str, hint: Any, default: object, known: Choices) -> Choices:
    """One flag and its short form; that of a switch which is on is how to switch it off."""
    kind, *notes = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    named = next((note.name for note in notes if getattr(note, "name", None)), name)
    flag = f"--{'no-' if default is True else ''}{named.replace('_', '-')}"
    choices = () if kind is bool else tuple(_literals(kind)) or known.get(flag, ())
    aliases = [alias for note in notes for alias in getattr(note, "aliases", None) or ()]
    return dict.fromkeys((flag, *aliases), choices)


def _literals(kind: Any) -> Iterator[str]:
    """The words that a type allows, among others perhaps.

    >>> list(_literals(Literal["a", "b"] | None))
    ['a', 'b']
    """
    if get_origin(kind) is Literal:
        yield from map(str, get_args(kind))
    else:
        for inner in get_args(kind):
            yield from _literals(inner)


def _names() -> Choices:
    """What may follow flags that take a name among many."""
    from vitreous.data.datasets import DATASETS
    from vitreous.training.recipes import POLICY_RATES, RECIPES
    from vitreous.views.registry import VIEWS

    return {
        "--data": tuple(DATASETS),
        "--policy": tuple(name for name in POLICY_RATES if name != "last"),
        "--recipe": tuple(RECIPES),
        "--views": ("all", *VIEWS),
        "--device": ("auto", "cpu", "cuda", "mps"),
    }


def _cases(commands: Mapping[str, Choices]) -> Iterator[str]:
    from vitreous.training.recipes import RECIPES

    for command, known in commands.items():
        for flag, choices in known.items():
            if choices:
                yield f"      {shlex.quote(f'{command} {flag}')}) words={_list(choices)} ;;"
    yield f'      \'train train\') [ "${{current#-}}" = "$current" ] && words={_list([*RECIPES])} ;;'
    yield "      'completion completion') words='bash zsh' ;;"


def _list(words: Any) -> str:
    return shlex.quote(" ".join(words))
