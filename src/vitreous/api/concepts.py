"""`find_concepts`: learn what the patches of one block tell apart from a folder of images, and measure what it does."""

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from vitreous.data.finding import Images, open_images
from vitreous.data.images import ImageError, image_name
from vitreous.inside.capture import within
from vitreous.inside.concepts import collect_tokens, learn_concepts, measure_concepts, unused_share
from vitreous.models.vit import ViT
from vitreous.pages.concepts import Concepts
from vitreous.runtime.device import pick_device
from vitreous.runtime.files import short_name
from vitreous.weights.load import Model, loaded

LEAST = 10  # images
HELD_OUT = 5  # every fifth image
PER_WIDTH = 4  # concepts for each dimension of a token


def find_concepts(
    images: Images,
    model: Model | str | Path | None = None,
    block: int | None = None,
    *,
    concepts: int | None = None,
    active: int = 8,
    steps: int = 1000,
    measured: int = 96,
    seed: int = 0,
    device: str = "auto",
    progress: Callable[[str, int, int], None] | None = None,
) -> Concepts:
    """Find the concepts of one block of a ViT in a folder of images, or a list: the more images, the better.

    A sparse autoencoder learns `concepts` directions of the patch tokens after `block` (negative numbers count from the
    end; without one, two thirds of the way up), of which `active` rebuild each patch. Each of the `measured` most
    active ones is then switched off, and the change of the classes is measured on images that were held out. `progress`
    gets what is being done, how much of it is done and how much there is. All images are held in memory: a few thousand
    are enough, and fit. A model in training mode is measured in evaluation mode and left as it was.

    >>> from vitreous.data.samples import samples
    >>> photos = [samples()[name].rotate(angle) for name in ("chelsea", "coffee") for angle in range(6)]
    >>> find_concepts(photos, "packaged:cifar10", block=5, concepts=32, steps=2, measured=1).block
    5
    """
    begun = time.perf_counter()
    vit = loaded(model)
    if not isinstance(vit, ViT) or vit.card.head != "classifier" or vit.card.task != "classify":
        raise ValueError("concepts are found in a ViT that answers with classes: this model is another")
    vit = vit.to(pick_device(device))
    depth = vit.config.depth
    concepts = PER_WIDTH * vit.config.width if concepts is None else concepts
    for what, number in (("concepts", concepts), ("active", active), ("steps", steps), ("measured", measured)):
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise ValueError(f"{what} must be a whole number of at least 1, got {number!r:.60}")
    block = 2 * depth // 3 if block is None else within(block, depth, "block")
    sources, _ = open_images(images)
    say = progress or (lambda what, done, total: None)
    preprocess, like = vit.card.preprocess, next(vit.parameters())
    names, views = [], []
    for i, source in enumerate(sources):
        try:
            views.append(preprocess.view(source))
            names.append(short_name(image_name(source)))
        except ImageError as error:
            warnings.warn(f"left out: {error}", stacklevel=2)
        say("images", i + 1, len(sources))
    if len(views) < LEAST:
        raise ValueError(f"there are too few images to learn concepts from: {len(views)}, and {LEAST} are the least")
    x = [preprocess.normalise(preprocess.pixels_of(view)).to(like) for view in views]
    with _evaluation_mode(vit):
        tokens, logits = collect_tokens(vit, x, block)
    learned = [i % HELD_OUT > 0 for i in range(len(x))]
    held_out = tokens[::HELD_OUT]
    autoencoder = learn_concepts(
        tokens[[i for i, known in enumerate(learned) if known]].flatten(0, 1),
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
    return Concepts(
        short_name(vit.card.name),
        block,
        found,
        autoencoder,
        views,
        names,
        [vit.card.label(index) for index in range(vit.config.classes)],
        vit.layout,
        sum(learned),
        autoencoder.explained(held_out.flatten(0, 1)),
        unused_share(autoencoder, held_out),
        time.perf_counter() - begun,
    )


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
