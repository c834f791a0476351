"""`vitreous explore`."""

from __future__ import annotations

from typing import Annotated, Literal

import tyro

from vitreous.cli.console import messages, say_remarks


def explore(
    model: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME …", help_behavior_hint="")] = (),
    port: int = 8137,
    host: str = "127.0.0.1",
    device: str = "auto",
    precision: Literal["fp32", "bf16", "fp16"] = "fp32",
    fast: bool = False,
) -> None:
    """Open a web page on this machine: drop an image in, and see what each patch looks at.

    Args:
        model: Models to choose among, by name, file or folder, a run or a moment of it; by default the packaged one.
        port: Where to listen; 0 takes a free one.
        host: Who may reach it: this machine alone by default; any other address asks for a token.
        device: auto, cpu, cuda, cuda:N or mps.
        precision: Number format of the network that is looked into: fp32, or bf16 and fp16, whose maps differ a little.
        fast: Refused here: a folded and compiled network has no inside to look at. On a GPU, try --precision bf16.
    """
    from vitreous.models.vit import ViT
    from vitreous.pages.page import short
    from vitreous.runtime.device import pick_device, pick_dtype
    from vitreous.server.serve import serve
    from vitreous.weights.load import load
    from vitreous.weights.runs import checkpoint_name

    if not 0 <= port <= 65535:
        raise ValueError(f"a port is a number from 1 to 65535, or 0 for any that is free, got {port}")
    if fast:
        raise ValueError(
            "--fast folds and compiles the network, which leaves no inside to look at: leave it out, and on a GPU try "
            "--precision bf16"
        )
    console, place, dtype = messages(), pick_device(device), pick_dtype(precision)
    models: dict[str, ViT] = {}
    for name in model or (None,):
        found = load(name)
        if not isinstance(found, ViT):
            raise ValueError(f"{name} is a ResNet: the explorer looks into Vision Transformers")
        say_remarks(console, found)
        label = base = (checkpoint_name(name) or short(name)) if name else "packaged"
        number = 1
        while label in models:
            number += 1
            label = f"{base} ({number})"
        models[label] = found.to(place, dtype).eval()
    serve(models, host=host, port=port, say=lambda text: console.print(text, markup=False))
