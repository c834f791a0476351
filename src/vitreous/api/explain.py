"""`explain`: a model in front of an image → an explanation that shows, draws and saves itself."""

import difflib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from PIL.Image import Image

from vitreous.data.finding import Images, open_images
from vitreous.data.images import ImageError, image_name, read_image
from vitreous.data.samples import samples
from vitreous.pages.explanation import Explanation
from vitreous.runtime.device import pick_device
from vitreous.views.inspection import Choice, Inspection
from vitreous.weights.load import Model, load

FEW_CLASSES = 20
"""Classes up to which an error names them all."""


def explain(
    image: Images | None = None,
    model: Model | str | Path | None = None,
    views: str | Sequence[str] = "all",
    *,
    target: int | str | None = None,
    name: str = "",
    device: str = "auto",
    **choice: Any,
) -> Explanation | list[Explanation]:
    """Explain what a model sees in an image: its answer, its attention, the evidence for a class.

    `image` is a path, bytes, a PIL image, an array or a tensor; a folder, a pattern or a list of images gives a list of
    explanations. Without it, the views of the model alone are shown; without a model too, those of the packaged model
    and a photograph of a cat. `target` is the class to explain, by name or index; `name` is what the page calls the
    image. `choice` are fields of `Choice`, such as `block`, `head` and `query`.

    >>> explanation = explain(views="relevance,rollout")
    >>> explanation.answer.best.class_name, explanation.map("relevance").shape
    ('cat', (8, 8))
    """
    loaded = load(model) if model is None or isinstance(model, str | Path) else model
    inspected = loaded.to(pick_device(device))
    chosen = Choice(target=find_class(target, inspected), **choice)
    if image is None:
        found = [("", None)] if model is not None else [("chelsea", samples()["chelsea"])]
        one = True
    else:
        sources, one = open_images(image)
        found = [(name if one and name else image_name(source), read_image(source)) for source in sources]
    explained = [Explanation(Inspection(inspected, opened, chosen, each), views) for each, opened in found]
    return explained[0] if one else explained


def explain_each(
    images: Iterable[tuple[str, Image | Path | None]], model: Model, views: str | Sequence[str], choice: Choice
) -> Iterator[Explanation | ImageError]:
    """Explain images one by one, each opened when its turn comes; an image that cannot be read gives its error.

    `images` are pairs of a name and an image, a path, or None for the model alone.
    """
    Inspection(model, None, choice)  # a choice that the model does not have is an error before any image is opened
    return _each(images, model, views, choice)


def _each(
    images: Iterable[tuple[str, Image | Path | None]], model: Model, views: str | Sequence[str], choice: Choice
) -> Iterator[Explanation | ImageError]:
    for name, image in images:
        try:
            opened = read_image(image) if isinstance(image, Path) else image
            inspection = Inspection(model, opened, choice, name)
            if opened is not None:
                _ = inspection.view  # preprocessing refuses some images
            explanation = Explanation(inspection, views)
        except ImageError as error:
            yield error if isinstance(image, Path) and error.name == name else ImageError(name, error.reason)
        else:
            yield explanation


def find_class(target: int | str | None, model: Model) -> int | None:
    """A class by index or by name; `ValueError` with the closest names where there is none.

    >>> find_class("cat", load()), find_class("3", load()), find_class(None, load())
    (3, 3, None)
    """
    if target is None or isinstance(target, int):
        return target
    names = model.card.class_names or ()
    if target in names:
        return names.index(target)
    if target.isdecimal():
        return int(target)
    close = difflib.get_close_matches(target, names, n=3)
    hint = f"its classes are {', '.join(names)}" if 0 < len(names) <= FEW_CLASSES else "give a class name or index"
    hint = f"did you mean {' or '.join(close)}?" if close else hint
    raise ValueError(f"the model has no class {target!r}: {hint}")
