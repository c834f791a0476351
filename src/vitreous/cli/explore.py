"""`vitreous explore`: serve the explorer's web page."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated, Literal

import tyro

from vitreous.cli.console import messages, notes, say_packaged, say_remarks
from vitreous.cli.options import Device, Folder, Switch, Words, optional
from vitreous.runtime.files import check_writable_folder
from vitreous.runtime.progress import Estimate


def explore(
    model: Annotated[tuple[str, ...], optional("NAME …")] = (),
    classes: Words = (),
    port: int = 8137,
    host: str = "127.0.0.1",
    device: Device = "auto",
    precision: Literal["fp32", "bf16", "fp16"] = "fp32",
    open_browser: Switch = False,
    static: Folder = None,
    live: Annotated[Literal["fp16", "int8"], tyro.conf.arg(metavar="{fp16,int8}")] = "fp16",
) -> None:
    """Serve a web page on this machine: drop an image in, and see what each patch attends to. End it with Ctrl-C.

    Args:
        model: Models to choose among: names, files, folders, runs or their checkpoints; by default the packaged one.
        classes: Sentences for CLIPs to choose among, or one for a SigLIP; or a file with one a line. Others can be
            typed into the page.
        port: The port to listen on; 0 takes a free one.
        host: The address to listen on: this machine alone by default; any other address asks for a token.
        device: auto, cpu, cuda, cuda:N or mps.
        precision: Number format: fp32; bf16 and fp16 are faster on a GPU, and their maps differ a little.
        open_browser: Open the page in a browser.
        static: Serve nothing, write the page of one model to this folder for any web server; the browser runs it.
        live: How --static stores the weights: int8 is half the size.
    """
    from vitreous.api.explore import explore as open_explorer

    words: tuple[str, ...] = ()
    if classes:
        from vitreous.predict.words import read_words

        words = read_words(classes)
    console = messages()
    served = {"port": port, "host": host, "device": device, "precision": precision, "open_browser": open_browser}
    defaults = inspect.signature(explore).parameters
    unused = [f"--{name.replace('_', '-')}" for name, value in served.items() if value != defaults[name].default]
    if static is not None and unused:
        raise ValueError(f"--static serves nothing: leave out {', '.join(unused)}")
    if static is None and live != "fp16":
        raise ValueError("--live is for the weights of a page that --static writes: add --static FOLDER")
    if static is not None:
        _write_static(static, model, live, words)
        return
    with open_explorer(
        model,
        host=host,
        port=port,
        device=device,
        precision=precision,
        open_browser=open_browser,
        classes=words,
        note=notes(console),
    ) as page:
        for loaded in page.models.values():
            say_remarks(console, loaded)
        if page.token is not None:
            console.print(
                f"beware: with --host {host} other machines can reach the explorer, and what is sent can be read on "
                "the way; whoever has the token below can use it. Leave --host out to keep it to this machine",
                markup=False,
            )
        console.print(f"the explorer is at {page.url} (end it with Ctrl-C)", markup=False)
        page.wait()


def _write_static(
    folder: Path, models: tuple[str, ...], precision: Literal["fp16", "int8"], words: tuple[str, ...]
) -> None:
    """Write the static site of `vitreous explore --static`, and say what it holds."""
    from vitreous.api.explore import write_site
    from vitreous.pages.live import check_live, warn_large
    from vitreous.weights.load import load

    if len(models) > 1 or words:
        raise ValueError("a static site holds one model and its own classes: name one --model, and no --classes")
    check_writable_folder(folder, "--static")
    named, console = models[0] if models else None, messages()
    model = check_live(load(named))
    say_remarks(console, model)
    say_packaged(console, named, model)
    if warning := warn_large(model, precision):
        notes(console)(warning)
    with Estimate(console, "computing the views") as estimate:
        written = write_site(folder, model, precision=precision, begin=estimate.begin, progress=estimate)
    for path in written:
        print(f"wrote {path} ({path.stat().st_size / 2**20:.1f} MB)")
    print(f"any web server can serve {folder}: python -m http.server -d {folder}")
