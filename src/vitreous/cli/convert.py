"""`vitreous convert`: write a checkpoint for another library, or as an ONNX or torch graph."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

from vitreous.cli.console import messages, print_json, say_remarks
from vitreous.cli.options import Assume, Number, Sides, Switch, Text
from vitreous.runtime.files import check_output_name

GRAPHS = ("onnx", "torch-export")


def convert(
    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="IN")],
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")],
    to: Literal["timm", "torchvision", "huggingface", "google", "vitreous", "onnx", "torch-export"],
    assume: Assume = (),
    image_size: Sides = None,
    resize: Text = None,
    dynamic_size: Switch = False,
    opset: Number = None,
    json: Switch = False,
) -> None:
    """Write a checkpoint for another library, or as a graph; an error names what the target does not support.

    Args:
        source: The checkpoint: a name, a file or a folder.
        out: A folder for weights and config files, or a .safetensors, .pth, .pt or .npz file for weights alone; for a
            graph an .onnx or .pt2 file.
        to: The library; or onnx or torch-export for a graph, which is run and compared with the model before it is
            kept.
        assume: What the files do not say, or say wrongly, such as heads=6; may be repeated.
        image_size: Height and width to write it for; positions are resized as the checkpoint's library does.
        resize: Another resizing convention: google, timm, torchvision, huggingface, dinov2 or dinov2-registers.
        dynamic_size: Let the graph take images of any whole number of patches and resize positions itself.
        opset: ONNX operator set version, 18 or more; by default 18.
        json: Print what was written as JSON.
    """
    from vitreous.speed.export import export
    from vitreous.weights.assume import parse_assumptions
    from vitreous.weights.convert import convert as write
    from vitreous.weights.load import load

    if to not in GRAPHS and (dynamic_size or opset is not None):
        raise ValueError(
            f"--dynamic-size and --opset are for onnx and torch-export, and {to} is a library's checkpoint: leave "
            "them out"
        )
    check_output_name(out)
    console = messages()
    model = load(source, image_size=image_size, resize=resize, assume=parse_assumptions(assume))
    say_remarks(console, model)
    measured: dict[str, float] = {}
    if to in GRAPHS:
        graph = export(model, out, to, dynamic_size=dynamic_size, resize=resize, opset=opset)
        files, measured = list(graph.files), {"difference": graph.difference, "tolerance": graph.tolerance}
        tried = ", ".join("×".join(str(side) for side in shape) for shape in graph.tried)
        text = (
            f"largest difference from the model: {graph.difference:.2g}, {graph.tolerance:.2g} allowed; tried {tried}"
        )
    else:
        files = write(model, out, to)
    if json:
        print_json({"to": to, "files": [str(path) for path in files], **measured})
    else:
        print("\n".join(f"wrote {path}" for path in files))
    if measured:
        console.print(text, style="dim", markup=False)
