"""`vitreous train` and `vitreous finetune`: flags from a recipe or a policy, resuming a run, and printing its result.

Every field of `TrainConfig` is a flag. Its default is the recipe's value, so that the recipe (for `finetune`, the
policy) must be read from the command line before the flags are parsed: `choose` does that. The public functions get
the flags that were typed, and choose the others themselves.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from vitreous.cli.options import Folder, Switch
from vitreous.runtime.files import check_output_name
from vitreous.training.config import NEUTRAL, TrainConfig
from vitreous.training.recipes import FINETUNE, RECIPES, find_recipe, finetune_config

if TYPE_CHECKING:
    from vitreous.api.train import TrainingRun

SHOWN_CLASSES = 20  # whose accuracy is printed, the worst first
Flags = Annotated[TrainConfig, tyro.conf.arg(name="")]
Name = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RECIPE")]


def choose(words: Sequence[str]) -> dict[str, Callable[..., Any]]:
    """Return the commands train and finetune, with the defaults of the recipe and the policy on this command line."""
    named = words[:1] == ["train"] and len(words) > 1 and not words[1].startswith("-")
    recipe = words[1] if named else "digits"
    find_recipe(recipe)
    spelled = [part for word in words for part in word.split("=", 1)]  # --policy=head is --policy head
    policy = next((after for word, after in pairwise(spelled) if word == "--policy"), FINETUNE.policy)
    typed = typed_fields(words)
    return {"train": _train(recipe, typed, named), "finetune": _finetune(finetune_config(policy), typed)}


def typed_fields(words: Sequence[str]) -> frozenset[str]:
    """List the fields of `TrainConfig` that a command line of `vitreous train` sets.

    >>> sorted(typed_fields(["train", "--resume", "run", "--epochs=60", "--no-compile", "--save-every", "9"]))
    ['compile', 'epochs', 'save_every']
    """
    flags = {word.partition("=")[0].removeprefix("--").replace("-", "_") for word in words if word.startswith("--")}
    names = {field.name for field in fields(TrainConfig)}
    return frozenset(names & (flags | {flag.removeprefix("no_") for flag in flags}))


def _train(chosen: str, typed: frozenset[str], named: bool) -> Callable[..., None]:
    """Make the command train, whose flags have the defaults of the chosen recipe."""

    def train(
        recipe: Name = chosen,
        config: Flags = RECIPES[chosen].config,
        output: Folder = None,
        resume: Folder = None,
        data_root: Folder = None,
        json: Switch = False,
    ) -> None:
        """Train a model from scratch by a recipe, with any field of it as a flag.

        With `--data FOLDER` and no recipe, model and image size follow the images. After an interruption, run the same
        command again to resume.

        Args:
            recipe: The recipe that sets the defaults.
            config: The settings of the run.
            output: The run's folder; by default runs/RECIPE or runs/DATA, with a number if that holds another run.
            resume: Resume the run in this folder, with its own settings.
            data_root: The folder of named datasets.
            json: Print the result as JSON.
        """
        if recipe != chosen:
            raise ValueError(f"name the recipe before any flag: vitreous train {recipe} …")
        if output is not None:
            check_output_name(output)
        if resume is not None and named:
            raise ValueError(f"--resume {resume} keeps the settings of that run: leave out {recipe}")
        from vitreous.api import train as api

        command = partial(api.train, recipe if named else None, output=output, **_typed(config, typed))
        if resume is not None:
            command = partial(api.train, _resumed(resume, output, config, typed), output=resume)
        _call(partial(command, data_root=data_root), data_root, json)

    return train


def _finetune(default: TrainConfig, typed: frozenset[str]) -> Callable[..., None]:
    """Make the command finetune, whose flags have the defaults of the chosen policy."""

    def finetune(
        config: Flags = default,
        output: Folder = None,
        resume: Folder = None,
        data_root: Folder = None,
        json: Switch = False,
    ) -> None:
        """Fine-tune a checkpoint to your images: `vitreous finetune --data FOLDER [--model NAME] [--policy POLICY]`.

        Like `train`, but it starts from a checkpoint's weights and a new head. With few images, batch size, epochs and
        regularisation follow their number, unless they are named.

        Args:
            config: The settings of the run.
            output: The run's folder; by default runs/DATA, with a number if that holds another run.
            resume: Resume the run in this folder, with its own settings.
            data_root: The folder of named datasets.
            json: Print the result as JSON.
        """
        if output is not None:
            check_output_name(output)
        if resume is None and not config.data:
            raise ValueError("name your images: --data FOLDER (one sub-folder a class), a table, a dataset or a Hub id")
        from vitreous.api import train as api

        command = partial(api.finetune, output=output, **_typed(config, typed))
        if resume is not None:
            command = partial(api.train, _resumed(resume, output, config, typed), output=resume)
        _call(partial(command, data_root=data_root), data_root, json)

    return finetune


def _typed(config: TrainConfig, typed: frozenset[str]) -> dict[str, Any]:
    """Return the settings that the command line of `vitreous train` sets, with their values."""
    return {name: getattr(config, name) for name in sorted(typed)}


def _resumed(folder: Path, output: Path | None, config: TrainConfig, typed: frozenset[str]) -> TrainConfig:
    """Return the config of the run that `vitreous train` resumes, with the flags that do not change its weights."""
    from vitreous.training.run_folder import RunFolder

    found = RunFolder(folder).read_config()
    if found is None:
        raise FileNotFoundError(f"{folder} holds no run: expected {folder / 'config.json'}")
    asked = _typed(config, typed)
    other = [name for name, value in asked.items() if name not in NEUTRAL and value != getattr(found, name)]
    if output not in (None, folder):
        other.append("output")
    if other:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in other)
        raise ValueError(f"--resume keeps the settings of the run in {folder}: leave out {flags}")
    return replace(found, **asked)


def _call(command: Callable[[], TrainingRun], data_root: Path | None, as_json: bool) -> None:
    """Run the command train or finetune, and print its result or how to resume it."""
    import shlex

    from vitreous.cli.console import messages, print_json
    from vitreous.runtime.distributed import this_rank
    from vitreous.training.loop import Stopped
    from vitreous.training.run_folder import RunFolder
    from vitreous.training.snapshots import read_snapshots

    console, first = messages(), this_rank().first
    try:
        run = command()
    except Stopped as stopped:
        hint = "start again with the same command"
        if stopped.folder is not None:
            words = ["--resume", str(stopped.folder), *(["--data-root", str(data_root)] if data_root else [])]
            hint = f"resume with: vitreous train {shlex.join(words)}"
        console.print(f"{stopped}; {hint}", markup=False)
        sys.exit(128 + stopped.signal_number)
    if not first:
        return
    if as_json:
        print_json(run.result, indent=None)
        return
    result = run.result
    print(run.describe())
    if "balanced" in result:
        print(f"{result['balanced']:.2%} balanced: the mean over classes, whose held-out images are unequal in number")
        worst = sorted(result["classes"].items(), key=lambda found: found[1][0] / found[1][1])[:SHOWN_CLASSES]
        for name, (correct, images) in worst:
            print(f"  {name}: {correct:,} of {images:,}")
        if len(result["classes"]) > SHOWN_CLASSES:
            print(f"  … and {len(result['classes']) - SHOWN_CLASSES} classes that are as good or better")
    moments = len(read_snapshots(RunFolder(run.folder).snapshots))
    inside = f", mistakes, and the model's internals{' over the epochs' if moments > 1 else ''}"
    console.print(f"page: {run.page} (curves{inside if moments else ' and mistakes'})", markup=False)
    console.print(f"try it: vitreous explain IMAGE --model {shlex.quote(str(run.folder))}", markup=False)
