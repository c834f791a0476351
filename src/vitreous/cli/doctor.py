"""`vitreous doctor`: print what was loaded and assumed, and check the preprocessing."""

from __future__ import annotations

from typing import Annotated

from vitreous.cli.console import messages, print_json
from vitreous.cli.options import Folder, ModelOptions, SharedModel, Switch, optional
from vitreous.runtime.progress import Estimate
from vitreous.runtime.wording import count


def doctor(
    options: SharedModel = ModelOptions(),  # noqa: B008  # frozen
    classes: Switch = False,
    trace: Switch = False,
    data: Annotated[str | None, optional("NAME|FOLDER")] = None,
    limit: int = 500,
    json: Switch = False,
    data_root: Folder = None,
) -> None:
    """Show what was loaded, what was resized or assumed, and whether the preprocessing is correct.

    Args:
        options: Which model.
        classes: List the model's classes instead: index and name.
        trace: Also print the shape at each step of a forward pass.
        data: Labelled images, on which plausible preprocessings are tried and the best one is named.
        limit: Use at most this many of the images, evenly spaced.
        json: Print JSON.
        data_root: The folder of named datasets.
    """
    from vitreous.data.datasets import open_dataset
    from vitreous.predict.preprocess_check import check_preprocess
    from vitreous.weights.inspect import inspect

    images = None if data is None else open_dataset(data, "test", data_root).spread(limit)
    model = options.load()
    if classes:
        names = [model.card.label(i) for i in range(model.config.classes)] if model.card.head == "classifier" else []
        if json:
            print_json(names)
        else:
            print("\n".join(f"{i:>4}  {name}" for i, name in enumerate(names)) or "the model has no classes")
        return
    summary = inspect(model, shapes=trace)
    if images is not None:
        with Estimate(messages(), f"trying preprocessings on {count(len(images), 'image')}") as estimate:
            check = check_preprocess(model, images, progress=estimate)
        summary.sections["preprocessings tried"] = [(trial.name, f"{trial.top1:.1%}") for trial in check.trials]
        summary.sections["verdict"] = [("", line) for line in check.verdict()]
        summary.values["preprocessings"] = [{"name": trial.name, "top1": trial.top1} for trial in check.trials]
        summary.values["verdict"] = check.verdict()
    if json:
        print_json(summary.to_dict())
    else:
        print(summary)
