"""`compare` and its result: train several models on the same images with one budget; a table, a page, a folder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from vitreous.comparison.entrants import Budget
from vitreous.comparison.results import gather
from vitreous.comparison.runs import finish_runs
from vitreous.comparison.study import STUDIES, folder_name, locked, open_study, repeat_command
from vitreous.comparison.table import as_text, cells, evidence, verdicts
from vitreous.data.datasets import find_source
from vitreous.data.image_dataset import NOUNS
from vitreous.data.images import read_image
from vitreous.data.splits import open_split
from vitreous.pages.comparison import COMPARISON_PAGE, ComparedDataset, write_comparison_page
from vitreous.pages.render import render
from vitreous.runtime.distributed import this_rank
from vitreous.runtime.files import short_name, spell_path, without_folders, write_json
from vitreous.training.listeners import Listener, Listeners
from vitreous.training.setup import open_data


@dataclass(frozen=True, repr=False)
class Comparison:
    """The result of `compare`: what a study found. In a notebook it shows itself as a table."""

    folder: Path
    title: str
    command: str
    """Repeats the study."""
    tables: tuple[Mapping[str, Any], ...]
    """One for each dataset: the rows, pairs, curves and settings that `comparison.json` holds."""

    @property
    def page(self) -> Path:
        """The path of the page that a Python call of `vitreous.compare` wrote."""
        return self.folder / COMPARISON_PAGE

    @property
    def table(self) -> str:
        """The tables and verdicts of a Python call of `vitreous.compare`, as text."""
        return "\n\n".join(as_text(table) for table in self.tables)

    def to_dict(self) -> dict[str, Any]:
        """Return what the Python API's `compare` gave as a dictionary, which `comparison.json` holds."""
        return {"title": self.title, "command": self.command, "tables": list(self.tables)}

    def __repr__(self) -> str:
        return f"{self.table}\n\n{self.page}"

    def _repr_html_(self) -> str:
        return render("comparison_table.html", datasets=[_in_words(table) for table in self.tables], page=self.page)


def compare(
    models: Sequence[str] = (),
    data: str | Path | None = None,
    output: str | Path | None = None,
    *,
    study: str | None = None,
    epochs: int | None = None,
    minutes: float | None = None,
    seeds: int = 3,
    task: Literal["classify", "multilabel", "regress", "segment"] | None = None,
    recipe: str | None = None,
    image_size: int | None = None,
    batch_size: int | None = None,
    learning_rates: Sequence[float] = (),
    precision: Literal["fp32", "bf16"] | None = None,
    compile: Literal["yes", "no"] | None = None,
    train_split: str | None = None,
    compiled: bool = True,
    device: str = "auto",
    data_root: Path | None = None,
    listeners: Sequence[Listener] = (),
) -> Comparison:
    """Train every model with every seed on the same images, or resume that, and compare what they learned.

    What is compared is accuracy or, of other tasks, mean average precision, R² or mean IoU. A variant's name and
    `resnet14` … `resnet152` (`resnet18_small` … for small images) begin from scratch, a checkpoint is fine-tuned.
    `timm:NAME` is any classifier of timm's from scratch, `timm:NAME@WEIGHTS` one that is fine-tuned. Fields may follow
    a name: `vit_femto_patch4_32:position=sine-1d`. `MODEL@POLICY` says what learns in it. Calling it again resumes an
    unfinished study, and several processes may call it at once.

    Args:
        models: Two or more names.
        data: A dataset's name, a folder or parquet files; a table with several labels or numbers for each image, or a
            folder with `images/` and `masks/`. Of a named study: one of its datasets, or NAME=FOLDER.
        output: The study's folder; by default `studies/MODELS-DATA`.
        study: A name of `STUDIES` instead of models.
        epochs: Passes over the images, the same for every model; by default the recipe's.
        minutes: Time for each run instead of epochs.
        seeds: Runs of each model.
        task: What is learned: classify, multilabel, regress or segment; by default the data decides.
        recipe: What all models share; by default the usual one for data and models.
        image_size: Height and width of images; by default each model's own.
        batch_size: Images per update; by default the recipe's.
        learning_rates: One for each model; by default the usual one for its kind.
        precision: fp32 or bf16; by default the recipe's.
        compile: Whether to compile the training step; by default the recipe's.
        train_split: The split to learn from; by default the recipe's.
        compiled: Also measure the speed of compiled models.
        device: auto, cpu, cuda or cuda:N.
        data_root: Where named datasets are kept.
        listeners: Objects that follow the runs.

    >>> import tempfile
    >>> models = ["vit_pico_patch2_8", "vit_femto_patch4_32"]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found = compare(models, "digits", folder, image_size=8, epochs=1, seeds=1, compiled=False)
    >>> print(found.table.splitlines()[0])
    digits: 360 test images, 1 seed, recipe digits
    >>> [(row["name"], row["parameters"]) for row in found.tables[0]["rows"]]
    [('vit_pico_patch2_8', 202186), ('vit_femto_patch4_32', 51946)]
    """
    if this_rank().world_size > 1:
        raise ValueError("a study takes several processes without torchrun: start the same command several times")
    if (study is None) == (not models):
        raise ValueError(f"name two models or more, or a study: --study {' or --study '.join(STUDIES)}")
    if study is None and data is None:
        raise ValueError("name the images to compare on: --data NAME, a folder or parquet files")
    data, rates = None if data is None else spell_path(data), tuple(learning_rates)
    shared = recipe, image_size, batch_size, precision, compile, train_split, rates
    budget = Budget(data or "", epochs, minutes, *shared, task=task)
    settings = {name: value for name, value in vars(budget).items() if name != "data" and value not in (None, ())}
    folder = Path(output or Path("studies") / (study or folder_name([*models, budget.data])))
    job = _Job(seeds, device, data_root, listeners, compiled)
    if study is None:
        title, datasets = "", [job.compare(folder, models, budget)]
    else:
        title, datasets = _run_named(study, folder, data, settings, job)
        if all("missing" in dataset.table for dataset in datasets):
            reasons = "; ".join(f"{dataset.table['data']}: {dataset.table['missing']}" for dataset in datasets)
            raise FileNotFoundError(f"nothing was run: {reasons}")
    command = repeat_command(["--study", study] if study else models, data, settings, seeds)
    command += " --skip-compiled" * (not compiled)
    comparison = Comparison(folder, title, command, tuple(dataset.table for dataset in datasets))
    with locked(folder / "gathering", job.say):  # a second process writes the same again
        write_comparison_page(folder, datasets, title=title, command=command)
        write_json(folder / "comparison.json", comparison.to_dict())
    return comparison


@dataclass(frozen=True)
class _Job:
    """What `compare` was asked for that is the same for all datasets of a study."""

    seeds: int
    device: str
    data_root: Path | None
    listeners: Sequence[Listener]
    compiled: bool

    def say(self, line: str) -> None:
        """Pass a message on to the listeners that a Python call of `vitreous.compare` was given."""
        Listeners(self.listeners).log(line)

    def compare(
        self, folder: Path, models: Sequence[str], budget: Budget, quoted: Mapping[str, float] | None = None
    ) -> ComparedDataset:
        """Run `compare` on one dataset: open the study, finish its runs, gather the results."""
        listener, root = Listeners(self.listeners), self.data_root
        task = find_source(budget.data, root, budget.task).task
        if quoted is not None and task != "classify":
            raise ValueError(f"a named study compares classes, and {budget.data} has {NOUNS[task]}: name the models")
        place: dict[str, Any] = {"device": self.device, "data_root": root, "listener": listener}
        study = open_study(folder, models, budget, self.seeds, task=task, **place)
        finish_runs(study, data_root=root, listeners=self.listeners, say=self.say)
        with locked(folder / "gathering", self.say):
            table = gather(study, compiled=self.compiled, quoted=quoted, say=self.say)
        _, tested = open_data(study.configs[0], root)
        found = replace(_in_words(table), models=study.first_models, image=lambda i: read_image(tested.image(i)))
        return replace(found, mask=tested.mask)


def _in_words(table: Mapping[str, Any]) -> ComparedDataset:
    """Make what `vitreous.compare` returns of one dataset: its results, and the same in words."""
    if "missing" in table:
        return ComparedDataset(table)
    pairs = [evidence(pair, table.get("task")) for pair in table["pairs"]]
    return ComparedDataset(table, cells(table), verdicts(table), pairs)


def _run_named(
    name: str, folder: Path, data: str | None, settings: Mapping[str, Any], job: _Job
) -> tuple[str, list[ComparedDataset]]:
    """Carry out a call of `vitreous.compare` with a named study: for each of its datasets, or for the one in `data`.

    Each has a folder of its own. One that is neither on this machine nor downloadable is reported; the others go on.
    """
    if name not in STUDIES:
        raise ValueError(f"no study is called {name!r}: the studies are {', '.join(STUDIES)}")
    parts = {part.budget.data: part for part in STUDIES[name].parts}
    chosen, _, source = (data or "").partition("=")
    if chosen and chosen not in parts:
        raise ValueError(f"{name} has no dataset {chosen!r}: it has {', '.join(parts)}")
    if "minutes" in settings:  # in place of the study's own epochs
        settings = {**settings, "epochs": None}
    datasets = []
    for label, part in parts.items():
        if chosen not in ("", label):
            continue
        budget, own = replace(part.budget, data=source or label, **settings), folder / short_name(label)
        try:
            open_split(budget.data, job.data_root, train=budget.train_split or "train")
            found = job.compare(own, part.models, budget, part.quoted)
        except OSError as error:
            missing = f"{without_folders(' '.join(str(error).split()))}. {part.get}"
            datasets.append(ComparedDataset({"data": label, "missing": missing, "quoted": part.quoted}))
            continue
        rows = [{**row, "pages": [f"{own.name}/{page}" for page in row["pages"]]} for row in found.table["rows"]]
        datasets.append(replace(found, table={**found.table, "data": label, "rows": rows}))  # not where its files are
    return STUDIES[name].description, datasets
