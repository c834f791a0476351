"""`vitreous compare`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from vitreous.cli.console import messages, print_json
from vitreous.cli.options import Number, Text

Models = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="MODEL …", help_behavior_hint="")]
Folder = Annotated[Path | None, tyro.conf.arg(aliases=["-o"], metavar="FOLDER")]


def compare(
    models: Models = (),
    data: Annotated[str | None, tyro.conf.arg(metavar="NAME|FOLDER")] = None,
    epochs: Number = None,
    minutes: Annotated[float | None, tyro.conf.arg(metavar="M")] = None,
    seeds: int = 3,
    output: Folder = None,
    json: bool = False,
    study: Text = None,
    recipe: Text = None,
    image_size: Number = None,
    batch_size: Number = None,
    learning_rates: tuple[float, ...] = (),
    precision: Literal["fp32", "bf16"] | None = None,
    compile: Literal["yes", "no"] | None = None,
    skip_compiled: bool = False,
    device: str = "auto",
    data_root: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None,
) -> None:
    """Put models side by side: the same images, augmentation, budget and seeds; one table and one page.

    As in `vitreous compare vit_micro_patch4_32 resnet18_small --data cifar10 --epochs 30`. A variant's name and
    resnet18 … resnet152 (resnet18_small … for small images) begin from scratch, a checkpoint is fine-tuned;
    MODEL@POLICY says what learns in it (full, head, attention, last:N, lora). Run the same command again, and it goes
    on; run it twice at once, and both work on it.

    Args:
        models: Two or more: variants, ResNets, checkpoints.
        data: What to learn from and to test on: a dataset's name, a folder or parquet files.
        epochs: Passes over the images, the same for every model; by default the recipe's.
        minutes: Time for each run instead: how many epochs that makes is measured for each model and kept.
        seeds: Runs of each model.
        output: The study's folder; by default studies/MODELS-DATA.
        json: Print what comparison.json holds.
        study: A study known by name instead of models: seed-001 or seed-004; --data then takes one of its datasets,
            or NAME=FOLDER to say where that one lies.
        recipe: What all have in common (`vitreous recipes`); by default what suits data and models.
        image_size: Height and width of images for all models; by default each one's own.
        batch_size: Images for each update; by default the recipe's.
        learning_rates: The largest step size of each model, in their order; by default what suits the kind.
        precision: Number format of training: fp32 or bf16; by default the recipe's.
        compile: Compile the training step, or not; by default the recipe's.
        skip_compiled: Leave out the column of compiled speed, which takes a minute or so to measure on a CPU.
        device: auto, cpu, cuda or cuda:N.
        data_root: Where named datasets are kept.
    """
    import sys

    from vitreous.comparison.progress import StudyDisplay
    from vitreous.training.interrupt import Stopped

    _refuse(models, data, study)
    asked: dict[str, Any] = {
        "epochs": epochs,
        "minutes": minutes,
        "recipe": recipe,
        "image_size": image_size,
        "batch_size": batch_size,
        "precision": precision,
        "compile": compile,
        "learning_rates": learning_rates,
    }
    folder = output or Path("studies") / (study or _folder_name(models, data))
    console = messages()
    try:
        with StudyDisplay(console) as display:
            how = {"device": device, "data_root": data_root, "listeners": [display], "compiled": not skip_compiled}
            message = _run(folder, models, study, data, asked, seeds, how)
    except Stopped as stopped:
        console.print(f"{stopped}; go on with the same command", markup=False)
        sys.exit(128 + stopped.number)
    _show(message, json)
    console.print(f"wrote {folder / 'comparison.html'} and {folder / 'comparison.json'}", markup=False)


def _refuse(models: tuple[str, ...], data: str | None, study: str | None) -> None:
    """Say what is missing or too much before anything is loaded."""
    from vitreous.runtime.distributed import this_rank

    if this_rank().world_size > 1:
        raise ValueError("a study takes several processes without torchrun: start the same command several times")
    if (study is None) == (not models):
        raise ValueError("name two models or more, or a study: --study seed-001 or --study seed-004")
    if study is None and data is None:
        raise ValueError("name the images to compare on: --data NAME, a folder or parquet files")


def _folder_name(models: tuple[str, ...], data: str | None) -> str:
    """What to call a study's folder: its models and its images, in letters that every system takes."""
    from vitreous.pages.page import short

    name = "-".join(short(part) for part in (*models, data or ""))
    return "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in name)


def _run(
    folder: Path,
    models: tuple[str, ...],
    study: str | None,
    data: str | None,
    asked: dict[str, Any],
    seeds: int,
    how: dict[str, Any],
) -> dict[str, Any]:
    """The study that was asked for, named or of one's own: `asked` are the fields of its budget that flags gave."""
    from vitreous.comparison.compare import run_named, run_study
    from vitreous.comparison.settings import Budget

    if study is None:
        assert data is not None
        command = _command(models, data, asked, seeds)
        return run_study(folder, models, Budget(data, **asked), seeds, command=command, **how)
    changes = {name: value for name, value in asked.items() if value not in (None, ())}
    if asked["minutes"] is not None:  # in place of the study's own epochs
        changes["epochs"] = None
    only = (data,) if data is not None else ()
    command = _command(["--study", study], data, asked, seeds)
    return run_named(study, folder, seeds, changes=changes, only=only, command=command, **how)


def _show(message: dict[str, Any], as_json: bool) -> None:
    from vitreous.comparison.compare import public
    from vitreous.comparison.table import as_text, missing_as_text

    if as_json:
        print_json(public(message), indent=None)
    else:
        print("\n\n".join(missing_as_text(t) if "missing" in t else as_text(t) for t in message["tables"]))


def _command(first: Sequence[str], data: str | None, asked: dict[str, Any], seeds: int) -> str:
    """The command that repeats a study anywhere: without the folders of this machine."""
    import shlex

    from vitreous.pages.run import spell

    words = ["vitreous", "compare", *(spell(word) for word in first)]
    words += ["--data", "=".join(spell(part) for part in data.split("="))] if data is not None else []
    for name, value in asked.items():
        if value not in (None, ()):
            values = value if isinstance(value, tuple) else (value,)
            words += [f"--{name.replace('_', '-')}", *map(str, values)]
    return shlex.join([*words, "--seeds", str(seeds)])
