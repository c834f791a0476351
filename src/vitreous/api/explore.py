"""`explore`: load models and open the explorer, a web page that looks into them on any image.

`write_site` writes a page of one model that needs no server: the browser runs the model.
"""

from __future__ import annotations

import webbrowser
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from vitreous.data.images import ImageLike, read_image
from vitreous.data.sample_photos import samples
from vitreous.models.text import TextTower
from vitreous.models.vit import ViT
from vitreous.pages.explanation import Explanation
from vitreous.pages.live import LIVE_VIEWS, LivePrecision, check_live, live_site, round_weights
from vitreous.predict.words import TwoTowers, two_towers, with_target, with_words
from vitreous.runtime.device import pick_device, pick_dtype
from vitreous.runtime.files import short_name
from vitreous.server.serve import RunningExplorer
from vitreous.views.inspection import Inspection
from vitreous.weights.load import load
from vitreous.weights.runs import checkpoint_name

Models = str | Path | ViT
"""A model, or what `load` takes: a name, a file, a folder, a run or a moment of it."""


SITE_IMAGES = ("coffee", "chelsea")
"""Photographs that a static site opens with."""


def explore(
    models: Models | Iterable[Models] | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    device: str = "auto",
    precision: Literal["fp32", "bf16", "fp16"] = "fp32",
    open_browser: bool = False,
    classes: Sequence[str] = (),
    note: Callable[[str], object] = lambda line: None,
) -> RunningExplorer:
    """Serve the explorer, a web page that shows what models see in an image, and return it while it runs.

    `models` are models (moved to `device`), names, files or folders; by default the packaged model. The page is served
    from a background thread: `url` is its address, `stop()` ends it, and so does a `with` block. Port 0 takes a free
    one. Models may give classes, labels, numbers or masks. Any `host` beyond this machine is served with a token only,
    which is part of `url`. `classes` are sentences for CLIPs to choose among, or one for a SigLIP; others can be typed
    into the page. `note` gets a line for each model whose text tower cannot be loaded.

    >>> from urllib.request import urlopen
    >>> with explore("packaged:cifar10", device="cpu") as page:
    ...     urlopen(page.url).status
    200
    """
    if not isinstance(port, int) or not 0 <= port <= 65535:
        raise ValueError(f"a port is a number from 1 to 65535, or 0 for any that is free, got {port!r:.60}")
    sources: Iterable[Models | None] = (
        [models] if models is None or isinstance(models, str | Path | ViT) else list(models) or [None]
    )
    target, dtype = pick_device(device), pick_dtype(precision)
    named: dict[str, ViT] = {}
    texts: dict[str, TwoTowers] = {}
    for source in sources:
        model = source if isinstance(source, ViT) else load(source)
        if not isinstance(model, ViT):
            raise ValueError(f"{source} is no ViT: the explorer looks into Vision Transformers")
        if model.card is None:
            raise ValueError("a model is explored with its preprocessing: set model.card")
        name, model = _free_name(source, model, named), model.to(target, dtype).eval()
        quiet = bool(classes)  # without a text tower, classes are an error that says the same
        if (towers := two_towers(model, classes, note=(lambda line: None) if quiet else note)) is not None:
            texts[name] = towers
        named[name] = _with_classes(model, classes, None if towers is None else towers.tower) if classes else model
    page = RunningExplorer(named, host=host, port=port, texts=texts)
    if open_browser:
        webbrowser.open(page.url)
    return page


def write_site(
    folder: str | Path,
    model: Models | None = None,
    *,
    images: Mapping[str, ImageLike] | None = None,
    views: str | Sequence[str] = "all",
    precision: LivePrecision = "fp16",
    begin: Callable[[str], object] = lambda view: None,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> list[Path]:
    """Write what `explore` shows of one model as a static web site, for any server; return its files, the page first.

    The browser runs the model: weights are a file beside the page, in fp16 or int8. The site opens with `images` by
    name, two photographs by default; `views` of them that the browser cannot compute are computed now. `begin` gets the
    title of each view, `progress` the steps of a slow one.
    """
    loaded = model if isinstance(model, ViT) else load(model)
    rounded = round_weights(check_live(loaded).cpu(), precision)
    pages = []
    for name, image in (images or {name: samples()[name] for name in SITE_IMAGES}).items():
        inspection = Inspection(rounded, read_image(image), name=name)
        inspection.progress = progress
        explanation = Explanation(inspection, [*(views.split(",") if isinstance(views, str) else views), *LIVE_VIEWS])
        explanation.live = True
        pages.append(explanation.page(partial(_begin_view, begin, name)))
    return live_site(Path(folder), short_name(rounded.card.name), pages, rounded, precision)


def _begin_view(begin: Callable[[str], object], name: str, view: str) -> None:
    """Report to the Python caller which view of which photograph of the explorer's static site is computed next."""
    begin(f"{name}: {view}")


def _with_classes(model: ViT, classes: Sequence[str], tower: TextTower | None) -> ViT:
    """Apply `classes`, an argument of the API's `explore`, to a model: the sentences become its classes."""
    if len(classes) == 1:
        return with_target(model, classes[0], tower=tower)
    worded = with_words(model, classes, tower=tower)
    if worded.card.independent:
        raise ValueError("a SigLIP judges each sentence by itself: name one class, and type others into the page")
    return worded


def _free_name(source: Models | None, model: ViT, taken: Iterable[str]) -> str:
    """Name a model in `explore`, with a number if another one has that name."""
    name = model.card.name if source is None or isinstance(source, ViT) else str(source)
    base = checkpoint_name(name) or short_name(name)
    name, number = base, 1
    while name in taken:
        number += 1
        name = f"{base} ({number})"
    return name
