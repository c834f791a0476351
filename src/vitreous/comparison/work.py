"""Working through a study: train what nobody has trained and nobody holds, and write down what each model says.

Any number of processes may work on one study: each takes the next run whose folder is free. A process that finds only
runs which others hold waits for them, since it can take one over should its holder be killed; whoever sees all of them
done goes on to the table.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from vitreous.comparison.meter import Meter
from vitreous.comparison.predictions import FILE, predict
from vitreous.comparison.study import Run, Study
from vitreous.pages.run import write_run_page
from vitreous.training.assemble import open_data
from vitreous.training.folder import HeldError, RunFolder
from vitreous.training.listeners import Listener
from vitreous.training.loop import train
from vitreous.training.snapshots import Recorder
from vitreous.weights.load import load

PAUSE = 2.0
"""Seconds between two looks at runs that others hold."""


def work(
    study: Study,
    *,
    data_root: Path | None = None,
    listeners: Sequence[Listener] = (),
    say: Callable[[str], object] = lambda line: None,
    pause: float = PAUSE,
) -> None:
    """Return when every run of the study is done, whoever did it."""
    waiting = False
    while left := [run for run in study.runs() if not run.done]:
        progress = False
        for run in left:
            if run.done or held(run.folder):  # by another process, meanwhile
                continue
            others = [each.folder for each in study.runs() if each.folder != run.folder]
            try:
                finish(run, data_root, listeners, say, lambda others=others: any(map(held, others)))  # type: ignore[misc]
            except HeldError:  # taken a moment before
                pass
            except ValueError as error:
                raise ValueError(f"{run.entrant.label}, seed {run.config.seed}: {error}") from error
            else:
                progress = True
        if not progress:
            if not waiting:
                say(f"{len(left)} run(s) are held by other processes: waiting for them")
            waiting = True
            time.sleep(pause)


def finish(
    run: Run,
    data_root: Path | None,
    listeners: Sequence[Listener],
    say: Callable[[str], object],
    crowded: Callable[[], bool],
) -> None:
    """One run to its end: trained where it is not yet, then asked for every test image."""
    folder = RunFolder(run.folder)
    if folder.read_result() is None:
        say(f"{run.entrant.label}, seed {run.config.seed}")
        train(run.config, run.folder, data_root=data_root, listeners=[*listeners, Recorder(), Meter(crowded)])
    with folder.claimed():
        if not run.done:
            _, tested = open_data(run.config, data_root)
            model = load(folder.model)
            said = predict(model, tested, device=run.config.device, precision=run.config.precision)
            write_run_page(folder)
            said.write(run.folder / FILE)


def held(folder: Path) -> bool:
    """Whether another process writes to a run's folder at this moment."""
    if not (folder / "config.json").is_file():
        return False
    try:
        with RunFolder(folder).claimed():
            return False
    except HeldError:
        return True
