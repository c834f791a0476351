"""`vitreous doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from vitreous.cli.console import messages, print_json
from vitreous.cli.options import ModelOptions, SharedModel


def doctor(
    options: SharedModel = ModelOptions(),  # noqa: B008  # frozen
    trace: bool = False,
    data: Annotated[str | None, tyro.conf.arg(metavar="NAME|FOLDER")] = None,
    limit: int = 500,
    json: bool = False,
    data_root: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None,
) -> None:
    """Say what was loaded, what was resized or assumed, and whether the preprocessing is right.

    Args:
        options: Which model.
        trace: Also print the shape at each step of an image's way through the model.
        data: Labelled images, on which the plausible preprocessings are tried and the one that fits is named.
        limit: Use so many images of it at the most, taken evenly.
        json: Print JSON.
        data_root: Where named datasets are kept.
    """
    from vitreous.data.datasets import open_dataset
    from vitreous.models.summary import trace as follow
    from vitreous.predict.preprocess_check import fit_preprocessing
    from vitreous.weights.inspect import examine, facts

    images = None if data is None else open_dataset(data, "test", data_root).spread(limit)
    model = options.load()
    sections = examine(model)
    if trace:
        sections["shapes"] = follow(model)
    if images is not None:
        with messages().status(f"trying preprocessings on {len(images)} images"):
            fit = fit_preprocessing(model, images)
        sections["preprocessings tried"] = [(trial.name, f"{trial.top1:.1%}") for trial in fit.trials]
        sections["verdict"] = [("", line) for line in fit.verdict()]
    if json:
        found = facts(model)
        if trace:
            found["shapes"] = dict(sections["shapes"])
        if images is not None:
            found["preprocessings"] = [{"name": trial.name, "top1": trial.top1} for trial in fit.trials]
            found["verdict"] = fit.verdict()
        print_json(found)
        return
    for title, rows in sections.items():
        print(title)
        width = max(18, *(len(label) + 2 for label, _ in rows))
        for label, text in rows:
            print(f"  {label:<{width}}{text}" if label else f"  {text}")
