"""`vitreous explain`: write the interactive page and figures of an image."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from vitreous.cli.console import Estimate, messages, print_json, say_packaged, say_problems
from vitreous.cli.inputs import find_inputs
from vitreous.cli.options import Device, Folder, Images, ModelOptions, Number, SharedModel, Switch, optional
from vitreous.runtime.files import check_writable_file, check_writable_folder

if TYPE_CHECKING:
    from rich.console import Console

    from vitreous.data.images import ImageError, ImageLike
    from vitreous.pages.payload import Payload

Range = Annotated[str | None, optional("0-7")]


def explain(
    images: Images = (),
    options: SharedModel = ModelOptions(),  # noqa: B008  # frozen
    views: Annotated[str, tyro.conf.arg(metavar="all|NAME,…")] = "all",
    block: int = -1,
    head: Number = None,
    heads: Range = None,
    query: Number = None,
    target: Annotated[str | None, optional("CLASS")] = None,
    scale: Annotated[Literal["raw", "log", "layer-norm"] | None, optional("{raw,log,layer-norm}")] = None,
    fusion: Literal["mean", "max", "min"] = "mean",
    discard: float = 0.0,
    residual: float = 0.5,
    trust: Switch = False,
    ablate: Annotated[Literal["heads"] | None, optional("{heads}")] = None,
    clipboard: Switch = False,
    figures: Folder = None,
    format: Literal["png", "svg", "pdf"] = "png",
    output: Annotated[Path, tyro.conf.arg(aliases=["-o"], metavar="REPORT.html")] = Path("report.html"),
    device: Device = "auto",
    json: Switch = False,
) -> None:
    """Explain what a model sees in images: its answer, its attention, the evidence for a class, and which map to trust.

    Args:
        images: Files, folders, globs, .zip and .tar archives, URLs, or - for standard input. Without any, and without
            --model, a photograph of a cat.
        options: Which model.
        views: Which views the page shows; `vitreous views` lists them.
        block: The block, for views of one block; -1 is the last.
        head: The head, for views of one head; without it, the mean over heads.
        heads: Heads that are shown side by side, such as 0-7 or 0,3,5; without it, all.
        query: The query token: its row of the attention matrix. 0 is the class token.
        target: The class to explain, by name or index; without it, the predicted one.
        scale: How the attention matrix is shown; without it, on all three scales.
        fusion: How rollout joins heads.
        discard: The share of smallest attention that rollout drops.
        residual: The share of each token that passes by the residual in rollout.
        trust: Also measure which map to trust: deletion, insertion, and maps of random weights.
        ablate: Also switch every head off by itself and rank heads by the change of the class's logit.
        clipboard: Explain the image on the clipboard.
        figures: Also write every view as a figure to this folder.
        format: The format of those figures.
        output: The page's file.
        device: auto, cpu, cuda, cuda:N or mps.
        json: Print answers and written files as JSON.
    """
    from vitreous.api.explain import explain_each
    from vitreous.data.images import ImageError
    from vitreous.pages.explanation import save_report
    from vitreous.predict.class_names import find_class
    from vitreous.runtime.device import pick_device
    from vitreous.views.inspection import Choice

    console = messages()
    check_writable_file(output)
    if figures is not None:
        check_writable_folder(figures, "--figures")
    model = options.load(console).to(pick_device(device))
    choice = Choice(
        block=block,
        head=head,
        heads=_numbers(heads),
        query=query,
        target=find_class(target, model),
        scale=scale,
        fusion=fusion,
        discard=discard,
        residual=residual,
    )
    found, problems = _find(images, clipboard, options.model, console)
    slow = [name for name, wanted in (("trust", trust), ("ablation", ablate is not None)) if wanted]
    pages: list[tuple[str, Payload]] = []
    answers: list[dict[str, str | None]] = []
    written: list[Path] = []
    for each in explain_each(found, model, ",".join([views, *slow]), choice):
        if isinstance(each, ImageError):
            problems.append(each)
            continue
        if not pages:
            say_packaged(console, options.model, model)
        name = each.inspection.name
        with Estimate(console, f"computing the views of {name or 'the model'}") as estimate:
            each.inspection.progress = estimate
            pages.append(each.page(estimate.begin))
        answers.append({"image": name or None, "answer": each.summary or None})
        if each.summary and not json:
            print(f"{name}: {each.summary}")
        for view, reason in each.skipped.items():
            console.print(f"left out {view}: {reason}", style="dim", markup=False)
        if figures is not None:
            written += each.save_figures(figures, format, apart=len(found) > 1)
    if pages:
        save_report(output, pages, model)
    if json:
        report = str(output) if pages else None
        print_json({"report": report, "figures": [str(path) for path in written], "images": answers})
    elif pages:
        print(f"wrote {output} ({output.stat().st_size / 2**20:.1f} MB)")
        if figures is not None:
            print(f"wrote {len(written)} figure{'s' * (len(written) != 1)} to {figures}")
    say_problems(console, problems)
    if problems:
        sys.exit(2)


def _find(
    asked: tuple[str, ...], clipboard: bool, model: str | None, console: Console
) -> tuple[list[tuple[str, ImageLike | None]], list[ImageError]]:
    """List the images to explain by name, and errors of paths that name none; a checkpoint alone has views too."""
    from vitreous.data.images import image_name
    from vitreous.data.samples import samples

    found, problems = find_inputs(asked, clipboard, console)
    if found or problems:
        return [(image_name(image), image) for image in found], problems
    return ([("", None)] if model is not None else [("chelsea", samples()["chelsea"])]), []


def _numbers(text: str | None) -> tuple[int, ...] | None:
    """Parse the numbers of blocks or heads that a flag names, `0-7` or `0,3,5`."""
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
