"""`vitreous evaluate`: measure a model on labelled images by the figures of its task, and print them."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Annotated, Any, Literal

import tyro

from vitreous.cli.console import messages, notes, print_json, say_problems
from vitreous.cli.options import (
    Device,
    Folder,
    ModelOptions,
    Number,
    OutputFolder,
    Precision,
    SharedModel,
    Switch,
    Template,
    optional,
)
from vitreous.runtime.distributed import this_rank
from vitreous.runtime.progress import Estimate
from vitreous.runtime.wording import count


def evaluate(
    data: Annotated[str, tyro.conf.arg(metavar="NAME|FOLDER|CSV")],
    options: SharedModel = ModelOptions(),  # noqa: B008  # frozen
    probe: Annotated[Literal["knn", "linear"] | None, optional("{knn,linear}")] = None,
    tokens: Switch = False,
    blocks: Annotated[tuple[int, ...], optional("N …")] = (),
    template: Template = "{}",
    ensemble: Switch = False,
    limit: Number = None,
    all: Switch = False,
    output: OutputFolder = None,
    json: Switch = False,
    batch_size: int = 16,
    device: Device = "auto",
    precision: Precision = "fp32",
    fast: Switch = False,
    merge: int = 0,
    data_root: Folder = None,
) -> None:
    """Measure a model's accuracy on labelled images; under `torchrun`, each process takes its share.

    A model of several labels is measured by mean average precision and F1, one of numbers by R² and errors, one of
    masks by IoU. Unreadable images are named and left out; the exit code is then 2 (under `torchrun` 0).

    Args:
        data: A folder with a sub-folder a class (named by class, WordNet id or index), a .csv file with columns image
            and label, or a dataset's name; for other tasks a table of labels or numbers, or images/ and masks/.
        options: Which model.
        probe: Measure the features instead of the head, by k-NN or logistic regression; data without a test split is
            divided as `finetune` does it.
        tokens: Probe the features of patches on images with masks (folders images/ and masks/): mean IoU and pixel
            accuracy of one linear layer.
        blocks: With --tokens, the blocks whose features it reads, side by side (default: the last).
        template: The sentence around each class name, such as "a photo of a {}", for a CLIP or SigLIP: it gets the
            data's class names as words.
        ensemble: Use the seven templates of CLIP's authors instead, and the mean of their features.
        limit: Use at most this many images, taken evenly.
        all: Also measure images that the model learned from; without it, of its own training folder the held-out part.
        output: Write result.json and per_class.json to this folder, and confusion.npz for classes.
        json: Print JSON.
        batch_size: Images in a batch.
        device: auto, cpu, cuda, cuda:N or mps.
        precision: Number format: fp32, or bf16, fp16, int8 and (on GPUs that have it) fp8 for speed.
        fast: Use the fastest backend of this machine; finding it takes about a minute the first time. Without it,
            64 images and more on a CPU still run with packed weights, in parallel: rounding differs.
        merge: Merge this many tokens in each block: faster, and a little less exact (try 8 for a ViT of 197 tokens).
        data_root: The folder of named datasets.
    """
    from vitreous.data.datasets import find_source
    from vitreous.data.splits import open_split
    from vitreous.predict.evaluate import evaluate as measure
    from vitreous.predict.evaluate import open_unseen
    from vitreous.predict.evaluation_result import Evaluation
    from vitreous.predict.pipeline import choose_compute
    from vitreous.predict.probe import probe as measure_probe
    from vitreous.predict.words import ENSEMBLE, with_folder_names
    from vitreous.runtime.distributed import cpu_group
    from vitreous.runtime.files import check_writable_folder, write_json

    console = messages()
    if probe is not None and this_rank().world_size > 1:
        raise ValueError("a probe needs all features in one process: run it without torchrun")
    if probe is not None and (fast or merge or precision != "fp32"):
        raise ValueError("a probe reads the plain model's features in fp32: leave --fast, --merge and --precision out")
    if ensemble and template != "{}":
        raise ValueError("--ensemble has templates of its own: leave --template out")
    if probe is not None and (ensemble or template != "{}"):
        raise ValueError("a probe reads features of images alone: leave --template and --ensemble out")
    if tokens and probe != "linear":
        raise ValueError("--tokens measures the features of patches by a linear layer: add --probe linear")
    if blocks and not tokens:
        raise ValueError("--blocks chooses the features of patches: add --tokens")
    if output is not None:
        check_writable_folder(output, "-o")
    with suppress(ValueError):  # a table that may be of several tasks: the model decides
        find_source(data, data_root, task="segment" if tokens else None)  # a misspelled name is an error before loading
    model = options.load(console)
    about = {"model": model.card.name, "data": data}
    sizes: dict[str, Any]
    if probe is not None:
        train, images = open_split(data, data_root, task="segment" if tokens else None)
        images = images if limit is None else images.spread(limit)
        with Estimate(console, f"features of {count(len(train) + len(images), 'image')}") as estimate:
            sizes = {"batch_size": batch_size, "device": device, "tokens": tokens, "blocks": blocks}
            summary = measure_probe(train, images, model, probe, progress=estimate, **sizes)
        if output is not None:
            write_json(output / "result.json", summary | about)
        _print_summary(summary | about, json)
        if left_out := summary["unreadable"]:
            console.print(f"vitreous: {count(left_out, 'unreadable image')} left out", markup=False)
            sys.exit(2)
        return
    images, note = open_unseen(data, model, data_root, all_images=all)
    images = images if limit is None else images.spread(limit)
    model = with_folder_names(model, images.class_names, ENSEMBLE if ensemble else [template], note=notes(console))
    sizes = {"batch_size": batch_size, "device": device, "precision": precision}
    compute = choose_compute(model, fast=fast, merge=merge, images=len(images), note=notes(console), **sizes)
    with Estimate(console, f"evaluating {count(len(images), 'image')}") as estimate, cpu_group() as rank:
        result = measure(images, model, rank=rank, compute=compute, progress=estimate, **sizes)
    if not rank.first:
        return
    if output is not None:
        for path in result.write(output):
            console.print(f"wrote {path}", markup=False)
    note = "; ".join(filter(None, (note, result.note)))
    part = {"note": note} if note and json else {}
    equal = isinstance(result, Evaluation) and result.is_balanced
    per_class = {} if equal or not json else {"per_class": result.per_class()}
    _print_summary(result.summary() | about | part | per_class, json)
    if not json and (classes := result.format_classes()):
        print(classes)
    if note:
        console.print(note, markup=False)
    say_problems(console, result.problems, len(images))
    if result.problems and rank.world_size == 1:  # torchrun would report a crash
        sys.exit(2)


def _print_summary(summary: dict[str, Any], as_json: bool) -> None:
    """Print the figures of `vitreous evaluate`, as lines or as JSON."""
    from vitreous.predict.evaluation_result import format_summary

    if as_json:
        print_json(summary, indent=None)
    else:
        print(format_summary(summary))
