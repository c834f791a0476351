"""`compare`: models, images and a budget in; a table, a page and a folder out. The whole of it, top to bottom."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitreous.comparison.results import gather
from vitreous.comparison.settings import Budget
from vitreous.comparison.studies import STUDIES
from vitreous.comparison.study import claimed, open_study
from vitreous.comparison.work import work
from vitreous.data.split import open_split
from vitreous.pages.comparison import write_page
from vitreous.pages.page import short
from vitreous.runtime.files import write_json
from vitreous.training.listeners import Everyone, Listener


def compare(
    models: Sequence[str],
    data: str,
    folder: str | Path,
    *,
    epochs: int | None = None,
    minutes: float | None = None,
    seeds: int = 3,
    **options: Any,
) -> dict[str, Any]:
    """Train every model with every seed on `data`, or go on doing so, and return what `comparison.json` holds.

    `options` are those of `run_study` and the other fields of `Budget`.
    """
    ours = {name: options.pop(name) for name in list(options) if name in Budget.__dataclass_fields__}
    return run_study(Path(folder), models, Budget(data, epochs, minutes, **ours), seeds, **options)


def run_study(
    folder: Path,
    models: Sequence[str],
    budget: Budget,
    seeds: int,
    *,
    device: str = "auto",
    data_root: Path | None = None,
    listeners: Sequence[Listener] = (),
    compiled: bool = True,
    command: str = "",
) -> dict[str, Any]:
    """One dataset: open the study, work through its runs, then write the table and the page."""
    table = _run(folder, models, budget, seeds, device, data_root, listeners, compiled, {})
    message = {"title": "", "command": command, "tables": [table]}
    return _write(folder, message, data_root, Everyone(listeners).say)


def run_named(
    name: str,
    folder: Path,
    seeds: int,
    *,
    device: str = "auto",
    data_root: Path | None = None,
    listeners: Sequence[Listener] = (),
    compiled: bool = True,
    changes: dict[str, Any] | None = None,
    only: Sequence[str] = (),
    command: str = "",
) -> dict[str, Any]:
    """A study of `STUDIES`: each dataset in a folder of its own, one table for all.

    What is not at hand is told, and the rest goes on; run it again when it is there. `only` names some of its data
    sets, each perhaps with the place where it lies: `cifar10=folder/of/parquet`.
    """
    if name not in STUDIES:
        raise ValueError(f"no study is called {name!r}: the studies are {', '.join(STUDIES)}")
    say = Everyone(listeners).say
    known = [part.budget.data for part in STUDIES[name].parts]
    places = {data: place or data for data, _, place in (word.partition("=") for word in only)}
    if strange := [data for data in places if data not in known]:
        raise ValueError(f"{name} has no dataset {strange[0]!r}: it has {', '.join(known)}")
    tables = []
    for part in STUDIES[name].parts:
        data, place = part.budget.data, folder / short(part.budget.data)
        if only and data not in places:
            continue
        try:
            budget = replace(part.budget, data=places.get(data, data), **(changes or {}))
            open_split(budget.data, data_root, train=budget.train_split or "train")
            found = _run(place, part.models, budget, seeds, device, data_root, listeners, compiled, part.quoted)
            table = {**found, "data": data}  # by its name, wherever it lies
        except OSError as error:  # neither here nor to be downloaded
            missing = f"{without_folders(' '.join(str(error).split()))}. {part.get}"
            say(f"{data}: {missing}")
            table = {"data": data, "missing": missing, "quoted": part.quoted}
        tables.append(table)
    return _write(folder, {"title": STUDIES[name].about, "command": command, "tables": tables}, data_root, say)


def without_folders(text: str) -> str:
    """A message without the folders of this machine, which are nobody's business.

    >>> without_folders("CIFAR10 is not in /home/me/data and not at https://a.org/b")
    'CIFAR10 is not in …/data and not at https://a.org/b'
    """
    return re.sub(r"(?<!\S)(~|[A-Z]:)?[/\\](\S+[/\\])?", "…/", text)


def _run(
    folder: Path,
    models: Sequence[str],
    budget: Budget,
    seeds: int,
    device: str,
    data_root: Path | None,
    listeners: Sequence[Listener],
    compiled: bool,
    quoted: dict[str, float],
) -> dict[str, Any]:
    tell = Everyone(listeners)
    study = open_study(folder, models, budget, seeds, device=device, data_root=data_root, tell=tell)
    work(study, data_root=data_root, listeners=listeners, say=tell.say)
    with claimed(folder / "gathering", tell.say):
        table = gather(study, compiled=compiled, quoted=quoted, say=tell.say)
    return {**table, "folder": str(folder)}


def _write(
    folder: Path, message: dict[str, Any], data_root: Path | None, say: Callable[[str], object]
) -> dict[str, Any]:
    """The page and the JSON, whole or not at all; a second process writes the same once more."""
    with claimed(folder / "gathering", say):
        write_page(folder, message, data_root)
        write_json(folder / "comparison.json", public(message))
    return message


def public(message: dict[str, Any]) -> dict[str, Any]:
    """What is told of a study, without the folders of this machine.

    >>> public({"tables": [{"data": "/home/me/images", "folder": "/home/me/x", "common": {"model": "/m/vit"}}]})
    {'tables': [{'data': '…/images', 'common': {'model': '…/vit'}}]}
    """

    def shown(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: shown(each) for name, each in value.items()}
        return without_folders(value) if isinstance(value, str) else value

    hide = ("data", "common")
    tables = [
        {name: shown(each) if name in hide else each for name, each in table.items() if name != "folder"}
        for table in message["tables"]
    ]
    return {**message, "tables": tables}
