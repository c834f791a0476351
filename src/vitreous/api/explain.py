"""`explain`: put a model in front of an image, or of each of several; the explanation shows and saves itself."""

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitreous.data.finding import Images, open_images
from vitreous.data.images import ImageError, ImageLike, image_name, read_image
from vitreous.data.preprocess import Fit
from vitreous.data.sample_photos import samples
from vitreous.pages.explanation import Explanation
from vitreous.predict.words import name_target
from vitreous.runtime.device import pick_device
from vitreous.views.inspection import Choice, Inspection
from vitreous.weights.load import Model, loaded


def explain(
    image: Images | None = None,
    model: Model | str | Path | None = None,
    views: str | Sequence[str] = "all",
    *,
    target: int | str | None = None,
    classes: Sequence[str] = (),
    name: str = "",
    device: str = "auto",
    fit: Fit | None = None,
    **choice: Any,
) -> Explanation | list[Explanation]:
    """Explain what a model sees in an image, in a notebook or script: its answer, attention, the evidence for a class.

    `image` is a path, a URL, bytes, a PIL image, an array or a tensor; a folder, an archive, a pattern or a list of
    images gives a list of explanations. Without it, the views of the model alone are shown; without a model too, those
    of the packaged model and a photograph of a cup of coffee. `target` is the class to explain, by name or index; for a
    CLIP or SigLIP it is a sentence, and `classes` are those that a CLIP weighs it against. `name` is what the page
    calls the image. `fit` crops, squashes or pads images of other sides than the model's. `choice` are fields of
    `Choice`, such as `block`, `head` and `query`. Views are computed when they are asked for, in evaluation mode: a
    model in training mode is left in evaluation mode.

    >>> explanation = explain(samples()["chelsea"], "packaged:cifar10", views="relevance,rollout")
    >>> explanation.answer.best.class_name, explanation.map("relevance").shape
    ('cat', (8, 8))
    """
    inspected, index = name_target(_with_fit(loaded(model).to(pick_device(device)), fit), target, classes)
    chosen = Choice(target=index, **choice)
    if image is None:
        found = [("", None)] if model is not None else [("coffee", samples()["coffee"])]
        one = True
    else:
        sources, one = open_images(image)
        found = [(name if one and name else image_name(source), read_image(source)) for source in sources]
    explained = [Explanation(Inspection(inspected, opened, chosen, each), views) for each, opened in found]
    return explained[0] if one else explained


def _with_fit(model: Model, fit: Fit | None) -> Model:
    """Return the model for `explain` with another fit of images; it shares its weights with the caller's."""
    if fit is None:
        return model
    shown = copy.copy(model)
    shown.card = replace(model.card, preprocess=model.card.preprocess.with_fit(fit))
    return shown


def explain_each(
    images: Iterable[tuple[str, ImageLike | None]], model: Model, views: str | Sequence[str], choice: Choice
) -> Iterator[Explanation | ImageError]:
    """Explain images one by one, each opened when its turn comes; an image that cannot be read gives its error.

    `images` are pairs of a name and an image, as `read_image` takes it, or None for the model alone.
    """
    Inspection(model, None, choice)  # a choice that the model does not have is an error before any image is opened
    return _each(images, model, views, choice)


def _each(
    images: Iterable[tuple[str, ImageLike | None]], model: Model, views: str | Sequence[str], choice: Choice
) -> Iterator[Explanation | ImageError]:
    """Yield the explanation of each image for `explain_each`, or the error of one that cannot be read."""
    for name, image in images:
        try:
            opened = None if image is None else read_image(image)
            inspection = Inspection(model, opened, choice, name)
            if opened is not None:
                _ = inspection.view  # preprocessing rejects some images
            explanation = Explanation(inspection, views)
        except ImageError as error:
            yield error if error.name == name else ImageError(name, error.reason)
        else:
            yield explanation
