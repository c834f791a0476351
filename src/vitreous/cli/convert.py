"""`vitreous convert`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from vitreous.cli.console import messages, print_json, say_remarks
from vitreous.cli.options import Number, Sides, Text

if TYPE_CHECKING:
    from rich.console import Console

    from vitreous.weights.load import Model


def convert(
    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="IN")],
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")],
    to: Literal["timm", "torchvision", "huggingface", "google", "vitreous", "onnx", "torch-export"],
    heads: Annotated[int | None, tyro.conf.arg(name="model-heads", metavar="N")] = None,
    trained_size: Sides = None,
    image_size: Sides = None,
    resize: Text = None,
    dynamic_size: bool = False,
    opset: Number = None,
    json: bool = False,
) -> None:
    """Write a checkpoint for another library, or as a graph; what the target cannot hold is named, nothing is written.

    Args:
        source: The checkpoint: a name, a file or a folder.
        out: A folder for weights and config files, or a .safetensors, .pth, .pt or .npz file for weights alone; for a
            graph an .onnx or .pt2 file.
        to: The library; or onnx or torch-export for a graph, which is run and compared with the model before it is
            kept.
        heads: Attention heads, where no file tells.
        trained_size: Height and width the checkpoint was trained at, where its positions make no square.
        image_size: Height and width to write it for; positions are resized as the checkpoint's library does.
        resize: Another resizing convention: google, timm, torchvision, huggingface, dinov2 or dinov2-registers.
        dynamic_size: Let the graph take images of any whole number of patches and resize positions itself.
        opset: ONNX's version of operators, 18 or more; 18 by itself.
        json: Print what was written as JSON.
    """
    from vitreous.weights.convert import TARGETS
    from vitreous.weights.convert import convert as write
    from vitreous.weights.load import load

    if to in TARGETS and (dynamic_size or opset is not None):
        raise ValueError(
            f"--dynamic-size and --opset are for onnx and torch-export, and {to} is a library's checkpoint: leave "
            "them out"
        )
    console = messages()
    known: dict[str, Any] = {} if heads is None else {"heads": heads}
    model = load(source, trained_size=trained_size, image_size=image_size, resize=resize, **known)
    say_remarks(console, model)
    if to in TARGETS:
        _say(write(model, out, to), to, json)
    else:
        _graph(model, out, to, dynamic_size, resize, opset, console, json)


def _say(files: Iterable[Path], to: str, as_json: bool, **more: object) -> None:
    if as_json:
        print_json({"to": to, "files": [str(path) for path in files], **more})
        return
    for path in files:
        print(f"wrote {path}")


def _graph(
    model: Model,
    out: Path,
    kind: str,
    dynamic_size: bool,
    resize: str | None,
    opset: int | None,
    console: Console,
    as_json: bool,
) -> None:
    from vitreous.speed.export import export

    written = export(model, out, kind, dynamic_size=dynamic_size, resize=resize, opset=opset)
    _say(written.files, kind, as_json, difference=written.difference, tolerance=written.tolerance)
    tried = ", ".join("×".join(str(side) for side in shape) for shape in written.tried)
    text = (
        f"largest difference from the model: {written.difference:.2g}, {written.tolerance:.2g} allowed; tried {tried}"
    )
    console.print(text, style="dim", markup=False)
