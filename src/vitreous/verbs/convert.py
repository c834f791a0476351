"""`vitreous convert`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from vitreous.verbs.options import Sides, messages


def convert(
    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="IN")],
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")],
    to: Literal["timm", "torchvision", "huggingface", "google", "vitreous"],
    heads: Annotated[int | None, tyro.conf.arg(name="model-heads", metavar="N")] = None,
    trained_size: Sides = None,
) -> None:
    """Write a checkpoint for another library; what the library cannot hold is named and nothing is written.

    Args:
        source: The checkpoint: a name, a file or a folder.
        out: A folder for weights and config files, or a .safetensors, .pth, .pt or .npz file for weights alone.
        to: The library.
        heads: Attention heads, where no file tells.
        trained_size: Height and width the checkpoint was trained at, where its positions make no square.
    """
    from vitreous.weights.convert import convert as write
    from vitreous.weights.load import load

    console = messages()
    known: dict[str, Any] = {} if heads is None else {"heads": heads}
    model = load(source, trained_size=trained_size, **known)
    for line in model.card.report.remarks():
        console.print(line, style="dim", markup=False)
    for path in write(model, out, to):
        print(f"wrote {path}")
