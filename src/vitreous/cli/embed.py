"""`vitreous embed`: turn images into feature vectors, one for each or for each patch, and write them to a file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from vitreous.cli.console import messages, notes, print_json, say_packaged, say_problems, write_folder
from vitreous.cli.inputs import find_inputs
from vitreous.cli.options import Device, Images, ModelOptions, Number, Precision, SharedModel, Switch, Words, is_folder
from vitreous.runtime.distributed import this_rank
from vitreous.runtime.files import check_writable_file, check_writable_folder
from vitreous.runtime.progress import Estimate
from vitreous.runtime.wording import count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from vitreous.predict.pipeline import PlainOutput
    from vitreous.weights.load import Model


def embed(
    images: Images = (),
    options: SharedModel = ModelOptions(),  # noqa: B008  # frozen
    text: Words = (),
    tokens: Switch = False,
    output: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("features.parquet"),
    part_size: Number = None,
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
        text: Sentences to embed beside the images, by the text tower of a CLIP or SigLIP; or a file with one a line.
        tokens: Write the features of each patch, a grid of vectors for each image, instead of one vector.
        output: A .parquet file (columns image, features), an .npz file (arrays of those names), or a folder of
            Parquet parts (a name without a suffix): an interrupted run resumes there, and `torchrun`
            splits the work. With --tokens also an .npy file, to be read as a memory map.
        part_size: Images in each part of a folder: 1,024, or with --tokens as many as have 256 MB of features.
        batch_size: Images in a batch.
        device: auto, cpu, cuda, cuda:N or mps.
        precision: Number format: fp32, or bf16, fp16, int8 and (on GPUs that have it) fp8 for speed.
        fast: Use the fastest backend of this machine; finding it takes about a minute the first time.
        merge: Merge this many tokens in each block: faster, and a little less exact (try 8 for a ViT of 197 tokens).
        clipboard: Embed the image on the clipboard.
        json: Print a summary as JSON.
    """
    import torch

    from vitreous.data.images import ImageError
    from vitreous.predict.embed import embed_each
    from vitreous.predict.pipeline import choose_compute
    from vitreous.predict.tables import FEATURE_FILES, TOKEN_FILES, check_file, write_features, write_tokens

    if is_folder(output):
        check_writable_folder(output, "-o")
    else:
        check_file(output, TOKEN_FILES if tokens else FEATURE_FILES, "features")
        check_writable_file(output)
        if part_size is not None:
            raise ValueError(
                "--part-size is for a folder of parts (a name without a suffix): leave it out for one file"
            )
    if tokens and text:
        raise ValueError("a sentence has one vector and no patches: leave --tokens or --text out")
    if not is_folder(output) and this_rank().world_size > 1:
        raise ValueError(f"several processes write a folder of parts, not one file: say -o {output.with_suffix('')}")
    console = messages()
    found, problems = find_inputs(images, clipboard, console)
    if not found and not problems and not text:
        raise ValueError("name the images to embed: files, folders, globs, archives or URLs")
    if text and is_folder(output):
        raise ValueError(f"sentences go to one file, beside the images': say -o {output}.parquet")
    model = options.load(console)
    sentences, described = _describe(model, text, notes(console)) if text else ((), None)
    sizes: dict[str, Any] = {"batch_size": batch_size, "device": device, "precision": precision}
    kind: PlainOutput = "tokens" if tokens else "features"
    compute = choose_compute(model, kind, fast=fast, merge=merge, images=len(found), note=notes(console), **sizes)
    if found:
        say_packaged(console, options.model, model)
    if is_folder(output):
        from vitreous.predict.parts import PART_SIZE, embed_job, token_part_size

        job = embed_job(model, compute=compute, merge=merge, tokens=tokens, **sizes)
        if part_size is None:
            part_size = token_part_size(model, precision) if tokens else PART_SIZE
        write_folder(output, found, problems, job, part_size, console, json)
        return

    def readable() -> Iterator[tuple[str, Tensor]]:
        results = embed_each(found, model, tokens=tokens, compute=compute, **sizes)
        with Estimate(console, "features") as estimate:
            for name, row in estimate.track(results, len(found)):
                if isinstance(row, ImageError):
                    problems.append(row)
                else:
                    yield name, row

    shape: tuple[int, ...] = ()
    if tokens:
        shape = write_tokens(output, readable(), model.card.name, precision)
    elif (named := list(readable())) or described is not None:
        rows = [row for _, row in named]
        features = torch.stack([*rows, *(() if described is None else described)])
        write_features(output, [name for name, _ in named], features, model.card.name, sentences)
        shape = len(rows), features.shape[1]
    _print_summary(output, shape, len(sentences), json)
    say_problems(console, problems, sum(shape[:1]) + len(problems))
    if problems:
        sys.exit(2)


def _print_summary(output: Path, shape: tuple[int, ...], texts: int, as_json: bool) -> None:
    """Print what `vitreous embed` wrote, by the shape of features: images, rows and columns of patches if any, d."""
    if not shape:
        if as_json:
            print_json({"output": None, "images": 0, "features": None})
        return
    images, *grid, width = shape
    if as_json:
        counts = {"images": images, **({"texts": texts} if texts else {})}
        counts |= dict(zip(("rows", "columns"), grid, strict=True)) if grid else {}
        print_json({"output": str(output), **counts, "features": width})
    else:
        what = count(images, "image") + (f" and {count(texts, 'text')}" if texts else "")
        patches = f" × {grid[0]}×{grid[1]} patches" if grid else ""
        print(f"wrote {output}: {what}{patches} × {width} features")


def _describe(model: Model, text: tuple[str, ...], note: Callable[[str], None]) -> tuple[tuple[str, ...], Tensor]:
    """Compute the features of the sentences of `vitreous embed`, beside the images: the sentences, and `[s e]`."""
    from vitreous.predict.words import check_sentences, read_words, text_features, tower_of

    sentences = check_sentences(read_words(text, "--text"))
    return sentences, text_features(tower_of(model), sentences, note=note).float().cpu()
