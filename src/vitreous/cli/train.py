"""`vitreous train` and `vitreous finetune`.

Every field of `TrainConfig` is a flag. Its default is the chosen recipe's value, so the recipe (for `finetune`, the
policy) is found on the command line before the flags are read: `choose` does that.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import tyro

from vitreous.training.config import NEUTRAL, TrainConfig
from vitreous.training.recipes import FINETUNE, POLICY_RATES, RECIPES

Flags = Annotated[TrainConfig, tyro.conf.arg(name="")]
Folder = Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")]
Name = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RECIPE")]


def choose(words: Sequence[str]) -> dict[str, Callable[..., Any]]:
    """The two commands with the defaults that the words of this command line ask for."""
    named = words[:1] == ["train"] and len(words) > 1 and not words[1].startswith("-")
    recipe = words[1] if named else "digits"
    if recipe not in RECIPES:
        close = difflib.get_close_matches(recipe, RECIPES, n=2)
        hint = f"did you mean {' or '.join(close)}?" if close else f"the recipes are {', '.join(RECIPES)}"
        raise ValueError(f"no recipe is called {recipe!r}: {hint} (a folder of your own goes to --data)")
    spelled = [part for word in words for part in word.split("=", 1)]  # --policy=head is --policy head
    policy = next((after for word, after in pairwise(spelled) if word == "--policy"), FINETUNE.policy)
    rate = POLICY_RATES.get(policy.partition(":")[0], FINETUNE.learning_rate)
    typed = typed_fields(words)
    default = replace(FINETUNE, policy=policy, learning_rate=rate)
    return {"train": _train(recipe, typed, named), "finetune": _finetune(default, typed)}


def typed_fields(words: Sequence[str]) -> frozenset[str]:
    """The fields of `TrainConfig` that a command line names, whatever it says of them.

    >>> sorted(typed_fields(["train", "--resume", "run", "--epochs=60", "--no-compile", "--save-every", "9"]))
    ['compile', 'epochs', 'save_every']
    """
    flags = {word.partition("=")[0].removeprefix("--").replace("-", "_") for word in words if word.startswith("--")}
    names = {field.name for field in fields(TrainConfig)}
    return frozenset(names & (flags | {flag.removeprefix("no_") for flag in flags}))


def _train(chosen: str, typed: frozenset[str], named: bool) -> Callable[..., None]:
    def train(
        recipe: Name = chosen,
        config: Flags = RECIPES[chosen].config,
        output: Folder = None,
        resume: Folder = None,
        data_root: Folder = None,
        json: bool = False,
    ) -> None:
        """Train a model from scratch: `vitreous train [RECIPE] [--any-field VALUE]`; `vitreous recipes` lists recipes.

        Run the same command again after an interruption, and it goes on where it was.

        Args:
            recipe: Where the defaults come from.
            config: What is trained, on what, for how long and how.
            output: The run's folder; by default runs/RECIPE, with a number where that is taken.
            resume: Go on with the run in this folder, as it was configured.
            data_root: Where named datasets are kept.
            json: Print the result as JSON.
        """
        if recipe != chosen:
            raise ValueError(f"name the recipe before any flag: vitreous train {recipe} …")
        if resume is not None:
            if named:
                raise ValueError(f"--resume {resume} goes on with the run as it was configured: leave out {recipe}")
            config, output = _resumed(resume, output, config, typed), resume
        _go(config, output or _free_folder(recipe, config), data_root, json)

    return train


def _finetune(default: TrainConfig, typed: frozenset[str]) -> Callable[..., None]:
    def finetune(
        config: Flags = default,
        output: Folder = None,
        resume: Folder = None,
        data_root: Folder = None,
        json: bool = False,
    ) -> None:
        """Fine-tune a checkpoint to your images: `vitreous finetune --model NAME --data FOLDER [--policy POLICY]`.

        The same as `train`, beginning with a checkpoint's weights and a fresh head.

        Args:
            config: What is trained, on what, for how long and how.
            output: The run's folder; by default runs/MODEL-POLICY, with a number where that is taken.
            resume: Go on with the run in this folder, as it was configured.
            data_root: Where named datasets are kept.
            json: Print the result as JSON.
        """
        if resume is not None:
            config, output = _resumed(resume, output, config, typed), resume
        if not config.model:
            raise ValueError("name the checkpoint to begin with: --model NAME, a file or a folder")
        if not config.data:
            raise ValueError("name your images: --data FOLDER (one sub-folder a class), a dataset or a Hub id")
        name = f"{Path(config.model).stem}-{config.policy.replace(':', '')}"
        _go(config, output or _free_folder(name, config), data_root, json)

    return finetune


def _resumed(folder: Path, output: Path | None, config: TrainConfig, typed: frozenset[str]) -> TrainConfig:
    """The config of the run in `folder`. Typed flags that leave its weights alone are heeded, others refused."""
    from vitreous.training.run_folder import RunFolder

    found = RunFolder(folder).read_config()
    if found is None:
        raise FileNotFoundError(f"{folder} holds no run: expected {folder / 'config.json'}")
    asked = {field.name: getattr(config, field.name) for field in fields(config) if field.name in typed}
    other = [name for name, value in asked.items() if name not in NEUTRAL and value != getattr(found, name)]
    if output not in (None, folder):
        other.append("output")
    if other:
        message = ", ".join(f"--{name.replace('_', '-')}" for name in other)
        raise ValueError(f"--resume goes on with the run in {folder} as it is: leave out {message}")
    return replace(found, **asked)


def _go(config: TrainConfig, output: Path, data_root: Path | None, as_json: bool) -> None:
    import shlex
    from contextlib import nullcontext

    from vitreous.cli.console import messages, print_json
    from vitreous.pages.run import write_run_page
    from vitreous.runtime.distributed import this_rank
    from vitreous.training.listeners import Listener, ProgressDisplay
    from vitreous.training.loop import Stopped
    from vitreous.training.loop import train as run
    from vitreous.training.run_folder import RunFolder
    from vitreous.training.snapshots import SnapshotRecorder

    console, first = messages(), this_rank().first
    display = ProgressDisplay(console)
    listeners: list[Listener] = [display] if first else []
    if config.snapshots:
        listeners.append(SnapshotRecorder())  # on every rank: all have to lend their part of the weights
    if config.log == "tensorboard" and first:
        from vitreous.training.listeners import TensorBoard

        listeners.append(TensorBoard())
    try:
        with display if first else nullcontext():
            result = run(config, output, data_root=data_root, listeners=listeners)
    except Stopped as stopped:
        again = "begin again with the same command"
        if not first:
            sys.exit(128 + stopped.signal_number)
        if RunFolder(output).config.is_file():
            with RunFolder(output).explain_errors():
                write_run_page(RunFolder(output))
            where = ["--resume", str(output), *(["--data-root", str(data_root)] if data_root else [])]
            again = f"go on with: vitreous train {shlex.join(where)}"
        console.print(f"{stopped}; {again}", markup=False)
        sys.exit(128 + stopped.signal_number)
    if not first:
        return
    with RunFolder(output).explain_errors():
        page = write_run_page(RunFolder(output))
    if as_json:
        print_json(result, indent=None)
        return
    print(f"{result['top1']:.2%} of {result['images']:,} held-out images after {result['epochs']} epochs")
    console.print(f"wrote {page} (curves, and the inside over training)", markup=False)
    console.print(f"try it: vitreous explain IMAGE --model {output}/model", markup=False)


def _free_folder(name: str, config: TrainConfig) -> Path:
    """`runs/NAME`, or where that is finished or another run, `runs/NAME-2` and so on; an unfinished one goes on."""
    from vitreous.training.run_folder import RunFolder

    number = 1
    while True:
        folder = RunFolder(Path("runs") / (name if number == 1 else f"{name}-{number}"))
        if folder.is_free():
            return folder.path
        try:
            before = folder.read_config()
        except ValueError:  # of another version
            before = None
        if before is not None and folder.read_result() is None and not config.differences(before):
            return folder.path
        number += 1
