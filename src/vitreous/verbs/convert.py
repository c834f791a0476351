"""`vitreous convert`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import tyro

from vitreous.verbs.options import messages


def convert(
    source: tyro.conf.Positional[str],
    out: tyro.conf.Positional[Path],
    to: Literal["timm", "torchvision", "huggingface", "google", "vitreous"],
    heads: int | None = None,
    trained_size: tuple[int, int] | int | None = None,
) -> None:
    """Write a checkpoint for another library; what the library cannot hold is named and nothing is written.

    Args:
        source: The checkpoint: a name, a file or a folder.
        out: A folder, which gets the weights and the config files that the library reads; or a .safetensors, .pth,
            .pt or .npz file, which gets the weights alone.
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
        console.print(f"[dim]{line}[/dim]")
    for path in write(model, out, to):
        print(f"wrote {path}")
