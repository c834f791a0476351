"""`vitreous explain`: explain what a model sees in images; write the interactive page and figures."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from vitreous.cli.console import messages, notes, print_json, say_packaged, say_problems
from vitreous.cli.inputs import find_inputs
from vitreous.cli.options import Device, Folder, Images, ModelOptions, Number, SharedModel, Switch, Words, optional
from vitreous.runtime.files import check_output_name, check_page_file, check_writable_file, check_writable_folder
from vitreous.runtime.progress import Estimate
from vitreous.runtime.wording import count

if TYPE_CHECKING:
    from rich.console import Console

    from vitreous.data.images import ImageError, ImageLike
    from vitreous.pages.live import LivePrecision
    from vitreous.pages.payload import Payload

Range = Annotated[str | None, optional("0-7")]
Live = Annotated[tuple[str, ...] | None, optional("[fp16|int8]")]

SAMPLE = "coffee"
"""The photograph that is explained where no image is named."""


def explain(
    images: Images = (),
    options: SharedModel = ModelOptions(),  # noqa: B008  # frozen
    views: Annotated[str, tyro.conf.arg(metavar="all|NAME,…")] = "all",
    block: int = -1,
    head: Number = None,
    heads: Range = None,
    query: Number = None,
    target: Annotated[str | None, optional("CLASS|SENTENCE")] = None,
    classes: Words = (),
    pixel: Annotated[tuple[int, int] | None, optional("ROW COLUMN")] = None,
    scale: Annotated[Literal["raw", "log", "layer-norm"] | None, optional("{raw,log,layer-norm}")] = None,
    fusion: Literal["mean", "max", "min"] = "mean",
    discard: float = 0.0,
    residual: float = 0.5,
    passes: Annotated[str, tyro.conf.arg(metavar="quick|middle|thorough|N")] = "quick",
    trust: Switch = False,
    ablate: Annotated[Literal["heads"] | None, optional("{heads}")] = None,
    clipboard: Switch = False,
    figures: Folder = None,
    format: Literal["png", "svg", "pdf"] = "png",
    live: Live = None,
    output: Annotated[Path, tyro.conf.arg(aliases=["-o"], metavar="REPORT.html")] = Path("report.html"),
    device: Device = "auto",
    json: Switch = False,
) -> None:
    """Explain what a model sees in images: its answer, its attention, the evidence for a class, and which map to trust.

    Args:
        images: Files, folders, globs, .zip and .tar archives, URLs, or - for standard input. Without any, and without
            --model, a photograph of a cup of coffee.
        options: Which model.
        views: Which views the page shows; `vitreous views` lists them.
        block: The block, for views of one block; -1 is the last.
        head: The head, for views of one head; without it, the mean over heads.
        heads: Heads that are shown side by side, such as 0-7 or 0,3,5; without it, all.
        query: The query token: its row of the attention matrix. 0 is the class token.
        target: The class to explain, by name or index; without it, the predicted one. For a CLIP or SigLIP, a sentence.
        classes: Words that a CLIP chooses among, or weighs the target against; or a file with a class a line.
        pixel: Of a model that gives masks: row and column of the pixel to explain, as the model sees the image.
        scale: How the attention matrix is shown; without it, on all three scales.
        fusion: How rollout joins heads.
        discard: The share of smallest attention that rollout drops.
        residual: The share of each token that passes by the residual in rollout.
        passes: Forward passes of the removal map: quick takes 64, middle 256, thorough 1,024.
        trust: Also measure which map to trust: deletion, insertion, and maps of random weights.
        ablate: Also switch every head off by itself and rank heads by the change of the class's logit.
        clipboard: Explain the image on the clipboard.
        figures: Also write every view as a figure to this folder.
        format: The format of those figures.
        live: Put the network into the page, which then answers for other images without Python: 16-bit weights, or
            int8 for half the size.
        output: The page's file.
        device: auto, cpu, cuda, cuda:N or mps.
        json: Print answers and written files as JSON.
    """
    from vitreous.api.explain import explain_each
    from vitreous.data.images import ImageError
    from vitreous.pages.live import LIVE_VIEWS, check_live, round_weights, warn_large
    from vitreous.pages.report import save_report
    from vitreous.predict.words import name_target, read_words
    from vitreous.runtime.device import pick_device
    from vitreous.views.inspection import Choice
    from vitreous.views.registry import missing_views

    console = messages()
    output = _page_file(output)
    check_writable_file(output)
    if figures is not None:
        check_writable_folder(figures, "--figures")
    model = options.load(console).to(pick_device(device))
    model, index = name_target(model, target, read_words(classes), note=notes(console))
    images, precision = _live(images, live)
    if precision is not None:
        network = check_live(model)
        if warning := warn_large(network, precision):
            notes(console)(warning)
        model = round_weights(network, precision)
        views = ",".join([views, *LIVE_VIEWS])
    choice = Choice(
        block=block,
        head=head,
        heads=_numbers(heads),
        query=query,
        target=index,
        scale=scale,
        fusion=fusion,
        discard=discard,
        residual=residual,
        passes=passes,
        pixel=pixel,
    )
    found, problems = _find(images, clipboard, options.model, console)
    if precision is not None and any(image is None for _, image in found):
        raise ValueError("a live page opens with an image: name one, or leave --model out")
    slow = [name for name, wanted in (("trust", trust), ("ablation", ablate is not None)) if wanted]
    pages: list[tuple[str, Payload]] = []
    answers: list[dict[str, str | None]] = []
    written: list[Path] = []
    for each in explain_each(found, model, ",".join([views, *slow]), choice):
        if isinstance(each, ImageError):
            problems.append(each)
            continue
        if not pages:
            if each.inspection.name == SAMPLE and not images:
                notes(console)("no image was named: a sample photograph of a cup of coffee")
            say_packaged(console, options.model, model)
            for reason, left_out in missing_views(each.inspection).items() if "all" in views.split(",") else ():
                console.print(f"left out, since {reason}: {', '.join(left_out)}", style="dim", markup=False)
        name = each.inspection.name
        each.live = precision is not None
        with Estimate(console, f"computing the views of {name or 'the model'}") as estimate:
            each.inspection.progress = estimate
            pages.append(each.page(estimate.begin))
        answers.append({"image": name or None, "answer": each.summary or None})
        if trust:
            answers[-1]["trust"] = each.verdict
        if each.summary and not json:
            print(f"{name}: {each.summary}")
        if trust and not json:
            print(f"{name}: {each.verdict} (on the page: Model, “Which map to trust”)")
        for view, reason in each.skipped.items():
            console.print(f"left out {view}: {reason}", style="dim", markup=False)
        if figures is not None:
            written += each.save_figures(figures, format, apart=len(found) > 1)
    if pages:
        save_report(output, pages, model, live=precision)
    if json:
        report = str(output) if pages else None
        print_json({"report": report, "figures": [str(path) for path in written], "images": answers})
    elif pages:
        print(f"wrote {output} ({output.stat().st_size / 2**20:.1f} MB)")
        if figures is not None:
            print(f"wrote {count(len(written), 'figure')} to {figures}")
    say_problems(console, problems)
    if problems:
        sys.exit(2)


def _find(
    asked: tuple[str, ...], clipboard: bool, model: str | None, console: Console
) -> tuple[list[tuple[str, ImageLike | None]], list[ImageError]]:
    """List the images that `vitreous explain` is given, and errors of paths that name none."""
    from vitreous.data.images import image_name
    from vitreous.data.sample_photos import samples

    found, problems = find_inputs(asked, clipboard, console)
    if found or problems:
        return [(image_name(image), image) for image in found], problems
    if model is not None:
        return [("", None)], []
    return [(SAMPLE, samples()[SAMPLE])], []


def _live(images: tuple[str, ...], live: tuple[str, ...] | None) -> tuple[tuple[str, ...], LivePrecision | None]:
    """Read `vitreous explain --live`: the precision, fp16 where none is named; other words after it are images.

    >>> _live(("cat.jpg",), ("int8",)), _live((), ("cat.jpg",)), _live(("cat.jpg",), None)
    ((('cat.jpg',), 'int8'), (('cat.jpg',), 'fp16'), (('cat.jpg',), None))
    >>> _live(("cat.jpg",), ("int4",))
    Traceback (most recent call last):
    ValueError: --live takes fp16 or int8, got 'int4'
    """
    if live is None:
        return images, None
    for word in live:
        if re.fullmatch(r"u?int\d+|b?fp?\d+", word) and word not in ("fp16", "int8") and not Path(word).exists():
            raise ValueError(f"--live takes fp16 or int8, got {word!r}")
    precision: LivePrecision = "int8" if "int8" in live else "fp16"
    return (*images, *(word for word in live if word not in ("fp16", "int8"))), precision


def _page_file(output: Path) -> Path:
    """Return the file that `vitreous explain -o` names: .html is added to a bare name; another suffix is an error."""
    check_output_name(output)
    if not output.suffix and not output.is_dir():
        return output.with_suffix(".html")
    return check_page_file(output, "--figures FOLDER")


def _numbers(text: str | None) -> tuple[int, ...] | None:
    """Parse the numbers of blocks or heads that a flag of `vitreous explain` names, `0-7` or `0,3,5`."""
    if text is None:
        return None
    found: list[int] = []
    try:
        for part in text.split(","):
            first, dash, last = part.partition("-")
            found += range(int(first), int(last) + 1) if dash else [int(first)]
    except ValueError as error:
        raise ValueError(f"heads are numbers such as 0-7 or 0,3,5, got {text!r}") from error
    if not found:
        raise ValueError(f"heads are numbers such as 0-7 or 0,3,5, got {text!r}, which is none")
    return tuple(found)
