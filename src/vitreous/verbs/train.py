"""`vitreous train`, `vitreous finetune` and `vitreous recipes`.

Every field of `TrainConfig` is a flag. Its default is the chosen recipe's value, so the recipe (for `finetune`, the
policy) is found on the command line before the flags are read: `choose` does that.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import tyro

from vitreous.train.config import TrainConfig
from vitreous.train.recipes import FINETUNE, POLICY_RATES, RECIPES

Flags = Annotated[TrainConfig, tyro.conf.arg(name="")]
Folder = Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")]
Name = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RECIPE")]


def choose(words: Sequence[str]) -> dict[str, Callable[..., Any]]:
    """The two verbs with the defaults that the words of this command line ask for."""
    recipe = next(iter(words[1:2]), "digits") if words[:1] == ["train"] else "digits"
    recipe = "digits" if recipe.startswith("-") else recipe
    if recipe not in RECIPES:
        close = difflib.get_close_matches(recipe, RECIPES, n=2)
        hint = f"did you mean {' or '.join(close)}?" if close else f"the recipes are {', '.join(RECIPES)}"
        raise ValueError(f"no recipe is called {recipe!r}: {hint} (a folder of your own goes to --data)")
    policy = next((after for word, after in pairwise(words) if word == "--policy"), FINETUNE.policy)
    rate = POLICY_RATES.get(policy.partition(":")[0], FINETUNE.learning_rate)
    return {"train": _train(recipe), "finetune": _finetune(replace(FINETUNE, policy=policy, learning_rate=rate))}


def _train(chosen: str) -> Callable[..., None]:
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
            resume: Go on with the run in this folder, as it was configured; other flags are ignored.
            data_root: Where named data sets are kept.
            json: Print the result as JSON.
        """
        _go(config, output, resume, data_root, json, name=recipe)

    return train


def _finetune(default: TrainConfig) -> Callable[..., None]:
    def finetune(
        config: Flags = default,
        output: Folder = None,
        resume: Folder = None,
        data_root: Folder = None,
        json: bool = False,
    ) -> None:
        """Fine-tune a checkpoint to your pictures: `vitreous finetune --model NAME --data FOLDER [--policy POLICY]`.

        The same as `train`, beginning with a checkpoint's weights and a fresh head.

        Args:
            config: What is trained, on what, for how long and how.
            output: The run's folder; by default runs/MODEL-POLICY, with a number where that is taken.
            resume: Go on with the run in this folder, as it was configured; other flags are ignored.
            data_root: Where named data sets are kept.
            json: Print the result as JSON.
        """
        if resume is None and not config.data:
            raise ValueError("name your pictures: --data FOLDER (one sub-folder a class), a data set or a Hub id")
        name = f"{Path(config.model).stem}-{config.policy.replace(':', '')}"
        _go(config, output, resume, data_root, json, name=name)

    return finetune


def _go(
    config: TrainConfig, output: Path | None, resume: Path | None, data_root: Path | None, as_json: bool, name: str
) -> None:
    import json

    from vitreous.run_page import write_run_page
    from vitreous.snapshots import Recorder
    from vitreous.train.display import Display
    from vitreous.train.folder import RunFolder
    from vitreous.train.interrupt import Stopped
    from vitreous.train.listen import Listener
    from vitreous.train.loop import train as run
    from vitreous.verbs.options import messages

    console = messages()
    if resume is not None:
        found = RunFolder(resume).read_config()
        if found is None:
            raise FileNotFoundError(f"{resume} holds no run: expected {resume / 'config.json'}")
        config, output = found, resume
    output = output or _free_folder(name, config)
    display = Display(console)
    listeners: list[Listener] = [display]
    if config.snapshots:
        listeners.append(Recorder())
    if config.log == "tensorboard":
        from vitreous.train.tensorboard import TensorBoard

        listeners.append(TensorBoard())
    try:
        with display:
            result = run(config, output, data_root=data_root, listeners=listeners)
    except Stopped as stopped:
        write_run_page(RunFolder(output))
        console.print(f"{stopped}; go on with: vitreous train --resume {output}", markup=False)
        sys.exit(128 + stopped.number)
    page = write_run_page(RunFolder(output))
    if as_json:
        print(json.dumps(result))
        return
    print(f"{result['top1']:.2%} of {result['pictures']:,} held-out pictures after {result['epochs']} epochs")
    console.print(f"wrote {page} (curves, and the inside over training)", markup=False)
    console.print(f"try it: vitreous explain PICTURE --model {output}/model", markup=False)


def _free_folder(name: str, config: TrainConfig) -> Path:
    """`runs/NAME`, or where that is finished or another run, `runs/NAME-2` and so on; an unfinished one goes on."""
    from vitreous.train.folder import RunFolder

    number = 1
    while True:
        folder = RunFolder(Path("runs") / (name if number == 1 else f"{name}-{number}"))
        if not folder.path.exists():
            return folder.path
        before = folder.read_config() if folder.config.is_file() else None
        if before is not None and folder.read_result() is None and not config.differs(before):
            return folder.path
        number += 1


def recipes() -> None:
    """List the recipes, with what each gives and on what hardware."""
    for name, recipe in RECIPES.items():
        print(f"{name:<14} {recipe.about}")
        print(f"{'':<14} {recipe.expect}")
