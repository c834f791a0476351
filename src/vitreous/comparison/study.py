"""`Study`: models × seeds on one dataset, in a locked folder that can be resumed; its command; `STUDIES`, by name.

study.json                 the request, and the config that each model got
runs/MODEL-seed0/ …        ordinary runs of `train`, each with its predictions.npz and meter.json
speed.json                 images per second
comparison.json, .html     the table and the page, when all runs are done
"""

import json
import re
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from vitreous.comparison.cost import epochs_for
from vitreous.comparison.entrants import Budget, Entrant, choose_recipe, configure, display_names, find_entrant, slug
from vitreous.data.splits import open_split
from vitreous.pages.run import spell
from vitreous.runtime.files import short_name, write_json
from vitreous.training.config import TrainConfig
from vitreous.training.listeners import Listener
from vitreous.training.run_folder import LockedError, RunFolder
from vitreous.weights.load import Model, load

VERSION = 1


@dataclass(frozen=True)
class Run:
    """A run of a study: one model with one seed."""

    entrant: Entrant
    config: TrainConfig
    folder: Path

    @property
    def done(self) -> bool:
        return (self.folder / "result.json").is_file() and (self.folder / "predictions.npz").is_file()


@dataclass(frozen=True)
class Study:
    """A study: the request, and the models and configs that it resolves to."""

    folder: Path
    budget: Budget
    seeds: int
    recipe: str
    entrants: tuple[Entrant, ...]
    configs: tuple[TrainConfig, ...]
    """One for each model, with seed 0."""

    @property
    def names(self) -> dict[str, str]:
        """What a study calls its models in tables, pages and folders, by label."""
        return display_names([entrant.label for entrant in self.entrants])

    def runs(self, name: str | None = None) -> list[Run]:
        """List models × seeds of a study, or one model's; seed by seed, so that a study cut short treats all alike."""
        names = self.names
        return [
            Run(entrant, replace(config, seed=seed), self.folder / "runs" / f"{slug(names[entrant.label])}-seed{seed}")
            for seed in range(self.seeds)
            for entrant, config in zip(self.entrants, self.configs, strict=True)
            if name in (None, names[entrant.label])
        ]

    @property
    def task(self) -> str:
        """What the models of a study learn: classify, multilabel, regress or segment."""
        found = self.configs[0].task
        return "classify" if found == "auto" else found

    @property
    def alike(self) -> bool:
        """Whether the study compares like with like: all models from scratch, or all of them pre-trained."""
        return len({entrant.pretrained for entrant in self.entrants}) == 1

    def first_models(self) -> dict[str, Model]:
        """Load a study's models from its folder by name, each as trained with the first seed."""
        names = self.names
        return {names[run.entrant.label]: load(run.folder / "model") for run in self.runs() if run.config.seed == 0}


def open_study(
    folder: Path,
    models: Sequence[str],
    budget: Budget,
    seeds: int,
    *,
    task: str = "classify",
    device: str = "auto",
    data_root: Path | None = None,
    listener: Listener | None = None,
) -> Study:
    """Open the study of a folder, or make it: resolve the models, time them if the budget is in minutes, write it down.

    `task` is what the data is learned for. A second process waits until the first has written it. A folder that holds
    another study is an error.
    """
    listener = listener or Listener()
    if len(models) < 2 or len(set(models)) < len(models):
        raise ValueError(f"name two models or more, each once, got {' '.join(models) or 'none'}")
    if seeds < 1:
        raise ValueError(f"--seeds must be at least 1, got {seeds}")
    asked = {"models": list(models), "budget": asdict(budget), "seeds": seeds}
    path = folder / "study.json"
    with locked(folder / "settling", listener.log):
        if not path.is_file():
            if others := [other.name for other in folder.iterdir() if other.name != "settling"]:  # our own lock
                raise ValueError(f"{folder} holds no study, but {others[0]}: choose another --output")
            entrants = [find_entrant(model, listener.log) for model in models]
            folders = [slug(name) for name in display_names(models).values()]
            if len(set(folders)) < len(folders):
                raise ValueError(f"two of the models would share a folder: {', '.join(folders)}")
            learned = None
            if task != "classify" or (budget.recipe is None and any(entrant.pretrained for entrant in entrants)):
                learned, _ = open_split(budget.data, data_root, train=budget.train_split or "train", task=task)
            configs = configure(budget, entrants, learned)
            if budget.minutes is not None:
                on_device = [replace(config, device=device) for config in configs]
                timed = [epochs_for(config, budget.minutes, data_root, listener) for config in on_device]
                configs = [replace(config, device="auto") for config in timed]
            recipe, _ = choose_recipe(budget, entrants, learned)
            resolved = {"entrants": [asdict(e) for e in entrants], "configs": [c.to_dict() for c in configs]}
            write_json(path, {"version": VERSION, "asked": asked, "recipe": recipe, **resolved})
    study = read_study(folder, asked)
    return replace(study, configs=tuple(replace(config, device=device) for config in study.configs))


def read_study(folder: Path, asked: dict[str, Any] | None = None) -> Study:
    """Read `study.json`; if it does not match the request `asked`, that is an error that lists the differences."""
    path = folder / "study.json"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        before, version = values["asked"], values["version"]
        if version != VERSION:
            raise ValueError(f"{path} was written by another version ({version!r}): choose another --output")
        if asked is not None:
            _check_same(folder, before, json.loads(json.dumps(asked)))  # tuples become lists, as in the file
        budget = {**before["budget"], "learning_rates": tuple(before["budget"]["learning_rates"])}
        return Study(
            folder,
            Budget(**budget),
            before["seeds"],
            values["recipe"],
            tuple(Entrant.from_dict(each) for each in values["entrants"]),
            tuple(TrainConfig.from_dict(each) for each in values["configs"]),
        )
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} does not describe a study ({error!r}): choose another --output") from error


def _check_same(folder: Path, before: dict[str, Any], asked: dict[str, Any]) -> None:
    """Raise if a study's folder holds another request, with the differences."""

    def spell(value: Any) -> str:
        return " ".join(map(str, value)) if isinstance(value, list) else str(value)

    pairs = [("models", before["models"], asked["models"]), ("seeds", before["seeds"], asked["seeds"])]
    pairs += [(name, old, asked["budget"].get(name)) for name, old in before["budget"].items()]
    if changed := [f"{name} {spell(old)} → {spell(new)}" for name, old, new in pairs if old != new]:
        raise ValueError(f"{folder} holds another study ({', '.join(changed)}): choose another --output")


@contextmanager
def locked(path: Path, say: Callable[[str], object]) -> Iterator[None]:
    """Hold a lock in a study's folder by this name, waiting while another process has it."""
    waiting = False
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(RunFolder(path).lock())
                break
            except LockedError:
                if not waiting:
                    say(f"another process works in {path.parent}: waiting for it")
                waiting = True
                time.sleep(0.5)
        yield


def folder_name(names: Sequence[str]) -> str:
    """Name a study's folder after its models and its images, in letters that every system takes.

    >>> folder_name(["torchvision:vit_b_16@attention", "resnet18", "some/images"])
    'torchvision-vit_b_16-attention-resnet18-images'
    """
    return re.sub(r"[^\w.-]", "-", "-".join(short_name(name) for name in names))


def repeat_command(first: Sequence[str], data: str | None, settings: Mapping[str, Any], seeds: int) -> str:
    """Write the command that repeats a study; local paths are cut to their last part.

    >>> repeat_command(["resnet18", "B/16"], "/home/me/pets", {"epochs": 3, "learning_rates": (0.1, 0.2)}, 2)
    "vitreous compare resnet18 B/16 --data '…/pets' --epochs 3 --learning-rates 0.1 0.2 --seeds 2"
    """
    words = ["vitreous", "compare", *(spell(word) for word in first)]
    words += ["--data", "=".join(spell(part) for part in data.split("="))] if data is not None else []
    for name, value in settings.items():
        values = value if isinstance(value, tuple) else (value,)
        words += [f"--{name.replace('_', '-')}", *map(str, values)]
    return shlex.join([*words, "--seeds", str(seeds)])


# --- studies known by name --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StudyPart:
    """One dataset of a named study."""

    models: tuple[str, ...]
    budget: Budget
    quoted: dict[str, float]
    """Model → accuracy in percent, as the report states it: not measured by us."""
    get: str
    """How to get what may be missing."""


@dataclass(frozen=True)
class NamedStudy:
    """A study known by name: several datasets, one after the other."""

    description: str
    parts: tuple[StudyPart, ...]


VIT, RESNET = "torchvision:vit_b_16@attention", "torchvision:resnet152@full"
WEIGHTS = "torchvision downloads weights and datasets on first use, into ~/.cache: run this once with a network"


FEMTO = ("vit_femto_patch4_32", "resnet18_small")
POSITIONS = (
    "vit_femto_patch4_32",
    "vit_femto_patch4_32:position_std=1",  # the report draws its positions from N(0, 1)
    "vit_femto_patch4_32:position=sine-1d",
    "resnet14_small:width=9",
)


def _fine_tuned(data: str, quoted: tuple[float, float], epochs: int) -> StudyPart:
    """Make one dataset's part of the named study of fine-tuned models."""
    # as report 004 states: attention layers and head learn, batch 64, warm-up and cosine; the epochs are ours
    budget = Budget(data=data, recipe="pets", epochs=epochs, batch_size=64)
    return StudyPart((VIT, RESNET), budget, dict(zip((VIT, RESNET), quoted, strict=True)), WEIGHTS)


def _from_scratch(
    data: str, recipe: str, quoted: float, models: tuple[str, ...] = FEMTO, report: str = FEMTO[0]
) -> StudyPart:
    """Define one dataset's part of a study in `STUDIES`, of models from scratch.

    `report` is the model of the report, or the nearest.
    """
    # as report 001 states: its small ViT, 32 px, 20 epochs, batch 64, cosine from 1e-3, shifts up to 5 %
    budget = Budget(data=data, recipe=recipe, epochs=20, batch_size=64)
    get = "torchvision downloads it on first use: run this with a network"
    return StudyPart(models, budget, {report: quoted}, get)


STUDIES: dict[str, NamedStudy] = {
    "scratch-vit-vs-resnet": NamedStudy(
        "A small ViT from scratch on MNIST and CIFAR-10 (report 001, but with positions drawn from N(0, 0.02²), not "
        "N(0, 1)), beside a ResNet-18 for small images",
        (_from_scratch("mnist", "mnist-20-epochs", 98.10), _from_scratch("cifar10", "cifar10-20-epochs", 56.41)),
    ),
    "scratch-vit-vs-cnn": NamedStudy(
        "The same ViT with learned positions, drawn from N(0, 0.02²) and N(0, 1) (as in report 001), and with fixed "
        "sines, beside a CNN with as many parameters",
        (
            _from_scratch("mnist", "mnist-20-epochs", 98.10, POSITIONS, report=POSITIONS[1]),
            _from_scratch("cifar10", "cifar10-20-epochs", 56.41, POSITIONS, report=POSITIONS[1]),
        ),
    ),
    "finetuned-vit-vs-resnet": NamedStudy(
        "ViT-B/16 (attention layers and head) beside ResNet-152, fine-tuned on four datasets (report 004)",
        (
            _fine_tuned("cifar10", (97.97, 96.67), 10),
            _fine_tuned("cifar100", (87.41, 82.67), 10),
            _fine_tuned("flowers102", (89.12, 89.02), 20),
            _fine_tuned("pets", (93.65, 93.24), 20),
        ),
    ),
}
