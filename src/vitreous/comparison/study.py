"""A study: models × seeds on one dataset, as a folder that can be gone on with.

study.json                 what was asked for, and the config that each model got
runs/MODEL-seed0/ …        ordinary runs of `train`, each with its predictions.npz and meter.json
speed.json                 images a second
comparison.json, .html     the table and the page, when all runs are done
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from vitreous.comparison.budget import epochs_for
from vitreous.comparison.entrant import Entrant, enter
from vitreous.comparison.settings import Budget, choose_recipe, configure
from vitreous.runtime.files import write_json
from vitreous.training.config import TrainConfig
from vitreous.training.folder import HeldError, RunFolder
from vitreous.training.listeners import Listener
from vitreous.weights.load import Model, load

VERSION = 1


@dataclass(frozen=True)
class Run:
    """One model with one seed."""

    entrant: Entrant
    config: TrainConfig
    folder: Path

    @property
    def done(self) -> bool:
        return (self.folder / "result.json").is_file() and (self.folder / "predictions.npz").is_file()


@dataclass(frozen=True)
class Study:
    """What was asked for, and what it came to."""

    folder: Path
    budget: Budget
    seeds: int
    recipe: str
    entrants: tuple[Entrant, ...]
    configs: tuple[TrainConfig, ...]
    """One a model, of seed 0."""

    def runs(self) -> list[Run]:
        """All of them, seed after seed, so that a study cut short has seen all models alike."""
        return [
            Run(entrant, replace(config, seed=seed), self.folder / "runs" / f"{entrant.slug}-seed{seed}")
            for seed in range(self.seeds)
            for entrant, config in zip(self.entrants, self.configs, strict=True)
        ]

    @property
    def alike(self) -> bool:
        """Whether all models begin from scratch, or all with weights that have seen images before."""
        return len({entrant.pretrained for entrant in self.entrants}) == 1


def open_study(
    folder: Path,
    models: Sequence[str],
    budget: Budget,
    seeds: int,
    *,
    device: str = "auto",
    data_root: Path | None = None,
    tell: Listener | None = None,
) -> Study:
    """The study of this folder: read where it was begun, otherwise made, timed and written down.

    Whoever comes second waits until the first has written it. Another study in the folder is refused.
    """
    tell = tell or Listener()
    if len(models) < 2 or len(set(models)) < len(models):
        raise ValueError(f"name two models or more, each once, got {' '.join(models) or 'none'}")
    if seeds < 1:
        raise ValueError(f"--seeds must be at least 1, got {seeds}")
    asked = {"models": list(models), "budget": asdict(budget), "seeds": seeds}
    path = folder / "study.json"
    with claimed(folder / "settling", tell.say):
        if not path.is_file():
            _refuse_strangers(folder)
            entrants = [enter(model, tell.say) for model in models]
            if len({entrant.slug for entrant in entrants}) < len(entrants):
                raise ValueError(f"two of the models would share a folder: {', '.join(e.slug for e in entrants)}")
            configs = configure(budget, entrants)
            if budget.minutes is not None:
                here = [replace(config, device=device) for config in configs]
                timed = [epochs_for(config, budget.minutes, data_root, tell) for config in here]
                configs = [replace(config, device="auto") for config in timed]
            recipe, _ = choose_recipe(budget, entrants)
            described = {"entrants": [e.to_dict() for e in entrants], "configs": [c.to_dict() for c in configs]}
            write_json(path, {"version": VERSION, "asked": asked, "recipe": recipe, **described})
    found = read_study(folder, asked)
    return replace(found, configs=tuple(replace(config, device=device) for config in found.configs))


def read_study(folder: Path, asked: dict[str, Any] | None = None) -> Study:
    """What `study.json` says; refused in a line where something else is `asked` for."""
    path = folder / "study.json"
    try:
        message = json.loads(path.read_text(encoding="utf-8"))
        before, version = message["asked"], message["version"]
        if version != VERSION:
            raise ValueError(f"{path} was written by another version ({version!r}): choose another --output")
        if asked is not None:
            _refuse_another(folder, before, json.loads(json.dumps(asked)))  # as it would have been written
        values = {**before["budget"], "learning_rates": tuple(before["budget"]["learning_rates"])}
        return Study(
            folder,
            Budget(**values),
            before["seeds"],
            message["recipe"],
            tuple(Entrant.from_dict(each) for each in message["entrants"]),
            tuple(TrainConfig.from_dict(each) for each in message["configs"]),
        )
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} does not describe a study ({error!r}): choose another --output") from error


def first_models(study: Study) -> dict[str, Model]:
    """The trained models by label, each of its first seed; all runs are done."""
    return {run.entrant.label: load(run.folder / "model") for run in study.runs() if run.config.seed == 0}


def _refuse_another(folder: Path, before: dict[str, Any], asked: dict[str, Any]) -> None:
    pairs = [("models", before["models"], asked["models"]), ("seeds", before["seeds"], asked["seeds"])]
    pairs += [(name, old, asked["budget"].get(name)) for name, old in before["budget"].items()]
    if changed := [f"{name} {_spell(old)} → {_spell(new)}" for name, old, new in pairs if old != new]:
        raise ValueError(f"{folder} holds another study ({', '.join(changed)}): choose another --output")


def _spell(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _refuse_strangers(folder: Path) -> None:
    """A new study begins in a folder that is empty but for our own claim."""
    if strangers := [path.name for path in folder.iterdir() if path.name != "settling"]:
        raise ValueError(f"{folder} holds no study, but {strangers[0]}: choose another --output")


@contextmanager
def claimed(place: Path, say: Callable[[str], object], pause: float = 0.5) -> Iterator[None]:
    """Hold a lock by this name, waiting for whoever has it."""
    message = False
    with ExitStack() as held:
        while True:
            try:
                held.enter_context(RunFolder(place).claimed())
                break
            except HeldError:
                if not message:
                    say(f"another process is at {place.parent}: waiting for it")
                message = True
                time.sleep(pause)
        yield
