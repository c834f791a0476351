"""`vitreous classify`: classify images; print their classes, or write them to a file."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from vitreous.cli.console import Estimate, messages, notes, print_json, say_packaged, say_problems
from vitreous.cli.inputs import find_inputs
from vitreous.cli.options import Device, Images, ModelOptions, Precision, SharedModel, Switch, Template, Words, optional
from vitreous.cli.parts import is_folder, write_folder
from vitreous.runtime.distributed import this_rank
from vitreous.runtime.files import check_writable_file
from vitreous.runtime.wording import count

if TYPE_CHECKING:
    from vitreous.data.images import ImageError
    from vitreous.predict.classify import Answer

ONE_BY_ONE = 4
"""Up to this many images get a table of their own; more share one."""


def classify(
    images: Images = (),
    options: SharedModel = ModelOptions(),  # noqa: B008  # frozen
    classes: Words = (),
    template: Template = "{}",
    top: int = 5,
    clipboard: Switch = False,
    json: Switch = False,
    output: Annotated[Path | None, optional("FILE|FOLDER", "-o")] = None,
    part_size: int = 1024,
    batch_size: int = 8,
    device: Device = "auto",
    precision: Precision = "fp32",
    fast: Switch = False,
    merge: int = 0,
) -> None:
    """Classify images.

    Args:
        images: Files, folders, globs, .zip and .tar archives, URLs, or - for standard input. Without any, three sample
            photographs.
        options: Which model.
        classes: Words for a CLIP or SigLIP to choose among, such as "a cat" "a dog", or a file with a class a line.
        template: The sentence around each of these words, such as "a photo of a {}".
        top: The number of classes to show for each image.
        clipboard: Classify the image on the clipboard.
        json: Print JSON instead of tables.
        output: Write the answers to a .csv, .json or .parquet file, or to a folder of Parquet parts (a name without
            a suffix): an interrupted run resumes there, and `torchrun` splits the work.
        part_size: Images in each part of that folder.
        batch_size: Images in a batch.
        device: auto, cpu, cuda, cuda:N or mps.
        precision: Number format: fp32, or bf16, fp16, int8 and (on GPUs that have it) fp8 for speed.
        fast: Use the fastest backend of this machine; finding it takes about a minute the first time. Without it,
            64 images and more on a CPU still run with packed weights, in parallel: rounding differs.
        merge: Merge this many tokens in each block: faster, and a little less exact (try 8 for a ViT of 197 tokens).
    """
    from vitreous.data.images import ImageError
    from vitreous.data.samples import samples
    from vitreous.predict.classify import classify_each
    from vitreous.predict.pipeline import choose_compute
    from vitreous.runtime.device import pick_device

    console = messages()
    for name, value in (("top", top), ("batch size", batch_size)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    in_parts = output is not None and is_folder(output)
    if this_rank().world_size > 1 and not in_parts:
        raise ValueError("several processes write a folder of parts: name it with -o")
    if output is not None and not in_parts:
        from vitreous.predict.tables import ANSWER_FILES, check_file

        check_file(output, ANSWER_FILES, "answers")
        check_writable_file(output)
    pick_device(device)  # checked before the model is loaded
    if template != "{}" and not classes:
        raise ValueError("--template is the sentence around --classes: name them too")
    words: tuple[str, ...] = ()
    if classes:
        from vitreous.predict.words import check_sentences, read_words

        words = check_sentences(read_words(classes))
    found, problems = find_inputs(images, clipboard, console)
    if sampled := not found and not problems:
        found = list(samples().values())
    if not found:
        if json:
            print_json([])
        say_problems(console, problems)
        sys.exit(2)
    model = options.load(console)
    if words:
        from vitreous.predict.words import with_words

        model = with_words(model, words, [template], note=notes(console))
    if sampled:
        notes(console)("no image was named: three sample photographs")
    sizes: dict[str, Any] = {"batch_size": batch_size, "device": device, "precision": precision}
    compute = choose_compute(model, fast=fast, merge=merge, images=len(found), note=notes(console), **sizes)
    if output is not None and in_parts:
        from vitreous.predict.parts import classify_job

        say_packaged(console, options.model, model)
        job = classify_job(model, top=top, compute=compute, merge=merge, **sizes)
        write_folder(output, found, problems, job, part_size, console, json)
        return
    results: Iterable[Answer | ImageError] = classify_each(found, model, top=top, compute=compute, **sizes)
    with Estimate(console, "classifying") as estimate:
        rows = list(estimate.track(results, len(found)))
    answers = [row for row in rows if not isinstance(row, ImageError)]
    if answers:
        say_packaged(console, options.model, model)
    if output is not None:
        from vitreous.predict.tables import write_answers

        path = write_answers(output, [*rows, *problems], model.card.name, min(top, model.config.classes))
        if json:
            print_json({"output": str(path), "images": len(answers), "unreadable": len(found) - len(answers)})
        else:
            print(f"wrote {path}: {count(len(answers), 'image')}")
    elif json:
        print_json([{"image": a.image, "predictions": [asdict(p) for p in a.predictions]} for a in answers])
    else:
        _print_tables(answers, "probability of each by itself" if model.card.independent else "probability")
    problems += [row for row in rows if isinstance(row, ImageError)]
    say_problems(console, problems, len(answers) + len(problems))
    if problems:
        sys.exit(2)


def _print_tables(answers: list[Answer], probability: str = "probability") -> None:
    """Print classify's table of classes for each image, or a row for each of many images."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text  # names are shown as they are, not read as markup

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)  # a file has no margin to wrap at
    if len(answers) > ONE_BY_ONE:
        table = Table(box=None, pad_edge=False)
        for name in ("image", "class", probability, "then"):
            table.add_column(name, justify="right" if name == probability else "left", overflow="fold")
        for answer in answers:
            best, then = answer.best, Text(", ".join(map(str, answer.predictions[1:3])), style="dim")
            table.add_row(Text(answer.image), Text(best.class_name), f"{best.probability:.1%}", then)
        console.print(table)
        return
    for answer in answers:
        table = Table(title=Text(answer.image), title_justify="left", box=None, pad_edge=False)
        for name in ("class", probability, "", "logit", "index"):
            table.add_column(name, justify="left" if name in ("class", "") else "right")
        for p in answer.predictions:
            bar = _bar(p.probability)
            table.add_row(Text(p.class_name), f"{p.probability:.1%}", bar, f"{p.logit:.2f}", str(p.index))
        console.print(table)


def _bar(share: float, width: int = 20) -> str:
    """Write a probability in classify's table as a bar of block characters, in eighths of one."""
    eighths = round(share * width * 8)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()
