"""`vitreous classify`: classify images; print their classes, labels, numbers or masks, or write them to a file."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from vitreous.cli.console import messages, notes, print_json, say_packaged, say_problems, write_folder
from vitreous.cli.inputs import find_inputs
from vitreous.cli.options import (
    Device,
    Images,
    ModelOptions,
    Precision,
    SharedModel,
    Switch,
    Template,
    Words,
    is_folder,
    optional,
)
from vitreous.runtime.distributed import this_rank
from vitreous.runtime.files import check_writable_file, check_writable_folder
from vitreous.runtime.progress import Estimate
from vitreous.runtime.wording import count

if TYPE_CHECKING:
    from vitreous.data.images import ImageError, ImageLike
    from vitreous.predict.classify import Answer
    from vitreous.weights.load import Model

ONE_BY_ONE = 4
"""Up to this many images get a table of their own; more share one."""
LEFT = ("image", "class", "label", "labels", "number", "present", "then", "")
"""Columns of words, which begin at the left."""


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
    """Classify images: a class each, or whatever the model was trained for: several labels, numbers, a mask.

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
            a suffix): an interrupted run resumes there, and `torchrun` splits the work. A model of masks writes them to
            that folder, as indexed PNG files with a classes.json.
        part_size: Images in each part of that folder.
        batch_size: Images in a batch.
        device: auto, cpu, cuda, cuda:N or mps.
        precision: Number format: fp32, or bf16, fp16, int8 and (on GPUs that have it) fp8 for speed.
        fast: Use the fastest backend of this machine; finding it takes about a minute the first time. Without it,
            64 images and more on a CPU still run with packed weights, in parallel: rounding differs.
        merge: Merge this many tokens in each block: faster, and a little less exact (try 8 for a ViT of 197 tokens).
    """
    from vitreous.data.images import ImageError
    from vitreous.data.sample_photos import samples
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
    if output is not None and in_parts:
        check_writable_folder(output, "-o")
    elif output is not None:
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
    if output is not None and not in_parts:
        from vitreous.predict.tables import answer_fields

        answer_fields(top, model.card)  # raises before any image is classified
    if sampled:
        notes(console)("no image was named: three sample photographs")
    sizes: dict[str, Any] = {"batch_size": batch_size, "device": device, "precision": precision}
    compute = choose_compute(model, fast=fast, merge=merge, images=len(found), note=notes(console), **sizes)
    masks = output if in_parts and model.card.task == "segment" else None
    if masks is not None and this_rank().world_size > 1:
        raise ValueError("masks are written by one process: run it without torchrun")
    if output is not None and in_parts and masks is None:
        from vitreous.predict.parts import classify_job

        say_packaged(console, options.model, model)
        job = classify_job(model, top=top, compute=compute, merge=merge, **sizes)
        write_folder(output, found, problems, job, part_size, console, json)
        return
    results: Iterable[Answer | ImageError] = classify_each(found, model, top=top, compute=compute, **sizes)
    if model.card.task == "segment":
        results = _write_masks(results, found, model, masks)
    with Estimate(console, "classifying") as estimate:
        rows = list(estimate.track(results, len(found)))
    answers = [row for row in rows if not isinstance(row, ImageError)]
    if answers:
        say_packaged(console, options.model, model)
    if output is not None:
        from vitreous.predict.tables import write_answers

        if masks is None:
            path = write_answers(output, [*rows, *problems], model.card, min(top, model.config.classes))
        else:
            path = masks
        if json:
            print_json({"output": str(path), "images": len(answers), "unreadable": len(found) - len(answers)})
        else:
            print(f"wrote {path}: {count(len(answers), 'image' if masks is None else 'mask')}")
    elif json:
        print_json([answer.to_dict() for answer in answers])
    else:
        _print_tables(answers, top, "probability of each by itself" if model.card.independent else "probability")
    problems += [row for row in rows if isinstance(row, ImageError)]
    say_problems(console, problems, len(answers) + len(problems))
    if problems:
        sys.exit(2)


def _write_masks(
    answers: Iterable[Answer | ImageError], images: Sequence[ImageLike], model: Model, folder: Path | None
) -> Iterator[Answer | ImageError]:
    """Write the masks of `vitreous classify` to its folder, if any; pass the answers on without: masks take memory."""
    from vitreous.data.images import ImageError
    from vitreous.predict.segmentation import begin_masks, write_mask

    if folder is not None:
        begin_masks(folder, images, [model.card.label(i) for i in range(model.config.classes)])
    for answer in answers:
        if isinstance(answer, ImageError) or answer.mask is None:
            yield answer
            continue
        if folder is not None:
            write_mask(folder, answer.image, answer.mask, answer.classes)
        yield replace(answer, mask=None)


def _print_tables(answers: list[Answer], top: int, probability: str = "probability") -> None:
    """Print classify's table of classes for each image, or a row for each of many images."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text  # names are shown as they are, not read as markup

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)  # a file has no margin to wrap at
    many = len(answers) > ONE_BY_ONE
    tables = [_many(answers, probability)] if many else [_one(answer, top, probability) for answer in answers]
    for number, (header, *rows) in enumerate(tables):
        title = None if many else Text(answers[number].image)
        if title is not None and "probability" not in header:  # a narrow table would break the name
            console.print(title, soft_wrap=True)
            title = None
        table = Table(title=title, title_justify="left", box=None, pad_edge=False)
        for name in header:
            justify: Literal["left", "right"] = "left" if name in LEFT else "right"
            table.add_column(name, justify=justify, overflow="fold" if many else "ellipsis")
        for row in rows:
            named = zip(header, row, strict=True)
            table.add_row(*(Text(cell, style="dim" if name == "then" else "") for name, cell in named))
        console.print(table)
        if not many and (hidden := _hidden_labels(answers[number])):
            console.print(Text(f"also present: {', '.join(hidden)}"), soft_wrap=True)


def _one(answer: Answer, top: int, probability: str) -> list[list[str]]:
    """Lay out the table that the command `classify` prints for one image, the header first."""
    if answer.numbers is not None:
        return [["number", "value"], *map(list, answer.rows())]
    if answer.shares is not None:
        rows = [[s.class_name, f"{s.share:.1%}", _bar(s.share), str(s.index)] for s in answer.shares[:top]]
        return [["class", "share of pixels", "", "index"], *rows]
    marked = answer.labels is not None
    header = ["label" if marked else "class", probability, "", *["present"] * marked, "logit", "index"]
    return [header] + [
        [
            p.class_name,
            f"{p.probability:.1%}",
            _bar(p.probability),
            *["yes" if p.present else "no"] * marked,
            f"{p.logit:.2f}",
            str(p.index),
        ]
        for p in answer.predictions
    ]


def _hidden_labels(answer: Answer) -> list[str]:
    """Return the labels of an image that are present and not in classify's table, which --top cuts."""
    shown = {p.class_name for p in answer.predictions}
    return [label for label in answer.labels or () if label not in shown]


def _many(answers: list[Answer], probability: str) -> list[list[str]]:
    """List the rows that the command `classify` prints for many images, the header first."""
    if answers[0].numbers is not None:
        return [["image", *answers[0].numbers], *([a.image, *(value for _, value in a.rows())] for a in answers)]
    if answers[0].labels is not None:
        return [["image", "labels"], *([answer.image, answer.brief()] for answer in answers)]
    if answers[0].shares is not None:
        parts = [(a.image, [(s.class_name, s.share) for s in a.shares or ()]) for a in answers]
        probability = "share of pixels"
    else:
        parts = [(a.image, [(p.class_name, p.probability) for p in a.predictions]) for a in answers]
    rows = []
    for image, ((name, share), *others) in parts:
        rows.append([image, name, f"{share:.1%}", ", ".join(f"{name} {share:.1%}" for name, share in others[:2])])
    return [["image", "class", probability, "then"], *rows]


def _bar(share: float, width: int = 20) -> str:
    """Write a probability in classify's table as a bar of block characters, in eighths of one."""
    eighths = round(share * width * 8)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()
