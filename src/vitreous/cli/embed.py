"""`vitreous embed`: write the features of images."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import tyro

from vitreous.cli.console import count, messages, notes, print_json, say_packaged, say_problems
from vitreous.cli.inputs import find_inputs
from vitreous.cli.options import Device, Images, ModelOptions, Precision, SharedModel, Switch
from vitreous.cli.parts import is_folder, write_folder
from vitreous.runtime.distributed import this_rank
from vitreous.runtime.files import check_writable_file


def embed(
    images: Images = (),
    options: SharedModel = ModelOptions(),  # noqa: B008  # frozen
    output: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("features.parquet"),
    part_size: int = 1024,
    batch_size: int = 8,
    device: Device = "auto",
    precision: Precision = "fp32",
    fast: Switch = False,
    merge: int = 0,
    clipboard: Switch = False,
    json: Switch = False,
) -> None:
    """Turn images into feature vectors, for search, clustering or a classifier of your own.

    Args:
        images: Files, folders, globs, .zip and .tar archives, URLs, or - for standard input.
        options: Which model.
        output: A .parquet file (columns image, features), an .npz file (arrays of those names), or a folder of
            Parquet parts (a name without a suffix): an interrupted run resumes there, and `torchrun`
            splits the work.
        part_size: Images in each part of a folder.
        batch_size: Images in a batch.
        device: auto, cpu, cuda, cuda:N or mps.
        precision: Number format: fp32, or bf16, fp16, int8 and (on GPUs that have it) fp8 for speed.
        fast: Use the fastest backend of this machine; finding it takes about a minute the first time.
        merge: Merge this many tokens in each block: faster, and a little less exact (try 8 for a ViT of 197 tokens).
        clipboard: Embed the image on the clipboard.
        json: Print a summary as JSON.
    """
    import torch
    from rich.progress import track

    from vitreous.data.images import ImageError
    from vitreous.predict.embed import embed_each
    from vitreous.predict.pipeline import choose_compute

    if not is_folder(output):
        from vitreous.predict.tables import FEATURE_FILES, check_file

        check_file(output, FEATURE_FILES, "features")
    if not is_folder(output) and this_rank().world_size > 1:
        raise ValueError(f"several processes write a folder of parts, not one file: say -o {output.with_suffix('')}")
    console = messages()
    if not is_folder(output):
        check_writable_file(output)
    found, problems = find_inputs(images, clipboard, console)
    if not found and not problems:
        raise ValueError("name the images to embed: files, folders, globs, archives or URLs")
    model = options.load(console)
    sizes: dict[str, Any] = {"batch_size": batch_size, "device": device, "precision": precision}
    compute = choose_compute(model, "features", fast=fast, merge=merge, images=len(found), note=notes(console), **sizes)
    if found:
        say_packaged(console, options.model, model)
    if is_folder(output):
        from vitreous.predict.parts import embed_job

        job = embed_job(model, compute=compute, merge=merge, **sizes)
        write_folder(output, found, problems, job, part_size, console, json)
        return
    results = embed_each(found, model, compute=compute, **sizes)
    names, rows = [], []
    hidden = not console.is_terminal
    for name, row in track(results, "features", len(found), console=console, transient=True, disable=hidden):
        if isinstance(row, ImageError):
            problems.append(row)
        else:
            names.append(name)
            rows.append(row)
    if rows:
        features = torch.stack(rows)
        from vitreous.predict.tables import write_features

        path = write_features(output, names, features, model.card.name)
        if json:
            print_json({"output": str(path), "images": features.shape[0], "features": features.shape[1]})
        else:
            print(f"wrote {path}: {count(features.shape[0], 'image')} × {features.shape[1]} features")
    elif json:
        print_json({"output": None, "images": 0, "features": None})
    say_problems(console, problems, len(rows) + len(problems))
    if problems:
        sys.exit(2)
