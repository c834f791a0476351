"""`vitreous compare`: train several models with one budget and compare them, or compare the heat maps of one."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from vitreous.cli.console import messages, print_json
from vitreous.cli.options import Device, Folder, Number, OutputFolder, Switch, Text, optional
from vitreous.runtime.files import check_output_name
from vitreous.runtime.progress import Estimate
from vitreous.runtime.startup import INTERRUPTED

if TYPE_CHECKING:
    from pathlib import Path

Models = Annotated[tuple[str, ...], tyro.conf.Positional, optional("MODEL …")]


def compare(
    models: Models = (),
    data: Annotated[str | None, optional("NAME|FOLDER")] = None,
    epochs: Number = None,
    minutes: Annotated[float | None, optional("M")] = None,
    seeds: int = 3,
    output: OutputFolder = None,
    json: Switch = False,
    study: Text = None,
    task: Annotated[
        Literal["classify", "multilabel", "regress", "segment"] | None,
        optional("{classify,multilabel,regress,segment}"),
    ] = None,
    recipe: Text = None,
    image_size: Number = None,
    batch_size: Number = None,
    learning_rates: Annotated[tuple[float, ...], optional("RATE …")] = (),
    precision: Annotated[Literal["fp32", "bf16"] | None, optional("{fp32,bf16}")] = None,
    compile: Annotated[Literal["yes", "no"] | None, optional("{yes,no}")] = None,
    train_split: Text = None,
    skip_compiled: Switch = False,
    device: Device = "auto",
    data_root: Folder = None,
    maps: Switch = False,
    masks: Folder = None,
    methods: Annotated[tuple[str, ...], optional("METHOD …")] = (),
    images: Number = None,
    greedy: int = 32,
) -> None:
    """Compare models: the same images, augmentation, budget and seeds; one table and one page.

    As in `vitreous compare vit_micro_patch4_32 resnet18_small --data cifar10 --epochs 30`. A variant's name and
    resnet14 … resnet152 (resnet18_small … for small images) begin from scratch, a checkpoint is fine-tuned. Fields may
    follow a name: vit_femto_patch4_32:position=sine-1d, resnet14_small:width=9. timm:NAME is any classifier of timm's
    from scratch, timm:NAME@WEIGHTS.safetensors one that is fine-tuned (timm has to be installed).
    MODEL@POLICY says what learns in it (full, head, attention, last:N, lora). The same command again resumes an
    unfinished study; started several times at once, the processes share the work.

    With --maps, nothing is trained: every method of heat maps is measured on one model, as in `vitreous compare --maps
    --data imagenet/val --masks pets`. Started by torchrun, the processes share the images.

    Args:
        models: Two or more: variants, ResNets, classifiers of timm's, checkpoints.
        data: What to learn from and to test on: a dataset's name, a folder, parquet files, or a table. Several labels,
            numbers and masks are compared by mAP, R² and mean IoU.
        epochs: Passes over the images, the same for every model; by default the recipe's.
        minutes: Time for each run instead: the epochs that fit are measured for each model and kept.
        seeds: Runs of each model.
        output: The study's folder; by default studies/MODELS-DATA. With --maps, also the page: PAGE.html.
        json: Print what comparison.json holds.
        study: A named study instead of models: scratch-vit-vs-resnet, scratch-vit-vs-cnn or finetuned-vit-vs-resnet;
            --data then takes one of its datasets, or NAME=FOLDER to say where its files are.
        task: What is learned, if the data does not say it: classify, multilabel, regress or segment.
        recipe: What all models share (`vitreous recipes`); by default the usual one for data and models.
        image_size: Height and width of images for all models; by default each one's own.
        batch_size: Images for each update; by default the recipe's.
        learning_rates: The largest learning rate of each model, in their order; by default the usual one for its kind.
        precision: Number format of training: fp32 or bf16; by default the recipe's.
        compile: Whether to compile the training step; by default the recipe's.
        train_split: The split to learn from: train or train+validation; by default the recipe's.
        skip_compiled: Leave out the speed of compiled models, which takes a minute or so to measure on a CPU.
        device: auto, cpu, cuda or cuda:N.
        data_root: The folder of named datasets.
        maps: Compare the heat maps of one model, by default the packaged ViT-Ti/16, on the images of --data.
        masks: With --maps: a folder with images/ and masks/, to measure which maps lie on the object.
        methods: With --maps: the methods to compare; by default all.
        images: With --maps: at most this many images, spread over all.
        greedy: With --maps: images for which a nearly best order of patches is searched, to compare with.
    """
    if output is not None:
        check_output_name(output)
    if maps:
        _compare_maps(models, data, output, masks, methods, images, greedy, device, json)
        return
    if masks is not None or methods or images is not None:
        raise ValueError("--masks, --methods and --images are options of --maps: add it, or leave them out")

    from vitreous.api.compare import compare as run
    from vitreous.comparison.runs import StudyDisplay
    from vitreous.training.loop import Stopped

    console = messages()
    try:
        with StudyDisplay(console) as display:
            found = run(
                models,
                data,
                output,
                study=study,
                epochs=epochs,
                minutes=minutes,
                seeds=seeds,
                task=task,
                recipe=recipe,
                image_size=image_size,
                batch_size=batch_size,
                learning_rates=learning_rates,
                precision=precision,
                compile=compile,
                train_split=train_split,
                compiled=not skip_compiled,
                device=device,
                data_root=data_root,
                listeners=[display],
            )
    except Stopped as stopped:
        console.print(f"{stopped}; resume with the same command", markup=False)
        sys.exit(128 + stopped.signal_number)
    if json:
        print_json(found.to_dict(), indent=None)
    else:
        print(found.table)
    console.print(f"wrote {found.page} and {found.folder / 'comparison.json'}", markup=False)


def _compare_maps(
    models: tuple[str, ...],
    data: str | None,
    output: Path | None,
    masks: Path | None,
    methods: tuple[str, ...],
    images: int | None,
    greedy: int,
    device: str,
    json: bool,
) -> None:
    from vitreous.comparison.maps import compare_maps

    if len(models) > 1:
        raise ValueError(f"--maps compares the maps of one model, got {len(models)}: name one")
    console = messages()
    with Estimate(console, "maps") as estimate:

        def progress(what: str, done: int, total: int) -> None:
            if what != estimate.what:
                estimate.begin(what)
            if done:
                estimate(done, total)

        model = models[0] if models else None
        options = {"masks": masks, "methods": methods, "images": images, "greedy": greedy, "device": device}
        found = compare_maps(data, model, output, progress=progress, **options)  # type: ignore[arg-type]
    if found is None:
        return
    if json:
        print_json(found.table, indent=None)
    else:
        print(found.markdown)
    console.print(f"wrote {', '.join(str(path) for path in found.files)}", markup=False)
    if found.ended:
        console.print("ended early: the tables are of the images so far; resume with the same command", markup=False)
        sys.exit(INTERRUPTED)
