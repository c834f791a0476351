"""`find_concepts`: learn what the patches of one block tell apart from a folder of images, and measure what it does."""

import hashlib
import operator
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import SupportsIndex

import torch

from vitreous.data.finding import Images, open_images
from vitreous.data.images import ImageError, image_name
from vitreous.inside.capture import within
from vitreous.inside.concepts import (
    collect_tokens,
    learn_concepts,
    measure_concepts,
    reaches_the_answer,
    unused_share,
)
from vitreous.models.vit import ViT
from vitreous.pages.concepts import Concepts
from vitreous.runtime.device import pick_device
from vitreous.runtime.files import short_name
from vitreous.weights.load import Model, loaded

LEAST = 10  # images
HELD_OUT = 5  # one of so many images
PER_WIDTH = 4  # concepts for each dimension of a token


def find_concepts(
    images: Images,
    model: Model | str | Path | None = None,
    block: int | None = None,
    *,
    concepts: SupportsIndex | None = None,
    active: SupportsIndex = 8,
    steps: SupportsIndex = 1000,
    measured: SupportsIndex = 96,
    seed: SupportsIndex = 0,
    device: str = "auto",
    progress: Callable[[str, int, int], None] | None = None,
) -> Concepts:
    """Find the concepts of one block of a ViT in a folder of images, or a list: the more images, the better.

    A sparse autoencoder learns `concepts` directions of the patch tokens after `block` (negative numbers count from the
    end; without one, two thirds of the way up), of which `active` rebuild each patch. Each of the `measured` most
    active ones is then switched off, and the change of the classes is measured on a fifth of the images, which `seed`
    draws and holds out. Equal images count once. `progress` gets what is being done, how much of it is done and how
    much there is. All images are held in memory: a few thousand are enough, and fit. A model in training mode is
    measured in evaluation mode and left as it was; one in half precision has its concepts learned in single precision.

    >>> from vitreous.data.sample_photos import samples
    >>> photos = [samples()[name].rotate(angle) for name in ("chelsea", "coffee") for angle in range(6)]
    >>> find_concepts(photos, "packaged:cifar10", block=5, concepts=32, steps=2, measured=1).block
    5
    """
    begun = time.perf_counter()
    vit = loaded(model)
    answers = vit.card.head == "classifier" and vit.card.task == "classify" and vit.config.classes >= 2
    if not isinstance(vit, ViT) or not answers:
        raise ValueError("concepts are found in a ViT that answers with classes, two or more: this model is another")
    vit = vit.to(pick_device(device))
    depth = vit.config.depth
    concepts = _whole("concepts", PER_WIDTH * vit.config.width if concepts is None else concepts)
    active, steps, measured = _whole("active", active), _whole("steps", steps), _whole("measured", measured)
    seed = _whole("seed", seed, least=0)
    if active > concepts:
        raise ValueError(f"{active} of {concepts} concepts cannot be active: pass at most all")
    block = 2 * depth // 3 if block is None else within(block, depth, "block")
    sources, _ = open_images(images)
    say = progress or (lambda what, done, total: None)
    preprocess, like = vit.card.preprocess, next(vit.parameters())
    names, views, seen = [], [], set()
    for i, source in enumerate(sources):
        try:
            view = preprocess.view(source)
            pixels, name = hashlib.sha256(view.tobytes()).digest(), short_name(image_name(source))
            if pixels in seen:
                warnings.warn(f"left out: {name} equals an image before it", stacklevel=2)
                continue
            seen.add(pixels)
            views.append(view)
            names.append(name)
        except ImageError as error:
            warnings.warn(f"left out: {error}", stacklevel=2)
        say("images", i + 1, len(sources))
    if len(views) < LEAST:
        raise ValueError(f"there are too few images to learn concepts from: {len(views)}, and {LEAST} are the least")
    x = [preprocess.normalise(preprocess.pixels_of(view)).to(like) for view in views]
    with _evaluation_mode(vit):
        if not reaches_the_answer(vit, torch.stack(x[:1]), block):
            raise ValueError(
                f"no patch after block {block} has an effect on the answer: choose an earlier block, or train the head"
            )
        tokens, logits = collect_tokens(vit, x, block)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed)).tolist()
    held_out, known = (sorted(part) for part in (order[: len(x) // HELD_OUT], order[len(x) // HELD_OUT :]))
    learned = [i in set(known) for i in range(len(x))]
    autoencoder = learn_concepts(
        tokens[known].flatten(0, 1),
        concepts,
        active,
        steps,
        seed,
        lambda done, total: say("steps", done, total),
    )
    with _evaluation_mode(vit):
        found = measure_concepts(
            vit,
            x,
            block,
            autoencoder,
            tokens,
            logits,
            learned,
            measured,
            lambda done, total: say("effects", done, total),
        )
    if not found:
        warnings.warn(
            "no concept is in enough images to be measured, two that were held out and two others: give more images",
            stacklevel=2,
        )
    return Concepts(
        short_name(vit.card.name),
        block,
        min(measured, concepts),
        found,
        autoencoder,
        views,
        names,
        [vit.card.label(index) for index in range(vit.config.classes)],
        vit.layout,
        sum(learned),
        autoencoder.explained(tokens[held_out].flatten(0, 1)),
        unused_share(autoencoder, tokens[held_out]),
        time.perf_counter() - begun,
    )


def _whole(what: str, number: SupportsIndex, least: int = 1) -> int:
    """Check a number that `find_concepts` was given."""
    try:
        found = least - 1 if isinstance(number, bool) else operator.index(number)
    except TypeError:
        found = least - 1
    if not least <= found < 2**63:
        raise ValueError(f"{what} must be a whole number of at least {least}, got {number!r:.60}")
    return found


@contextmanager
def _evaluation_mode(model: Model) -> Iterator[None]:
    """Hold the model in evaluation mode, without dropout, for a `vitreous.find_concepts` call; then restore modules."""
    trained = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in trained:
            module.training = True
