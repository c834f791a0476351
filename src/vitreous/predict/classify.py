"""`classify`: images to ranked labels."""

import copy
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from PIL.Image import Image
from torch import Tensor

from vitreous.data.images import ImageError, read_image
from vitreous.data.prefetch import batched, prefetch
from vitreous.models.last_block import logits_only
from vitreous.predict.pipeline import answered, fed, lanes_of
from vitreous.runtime.device import pick_device, pick_dtype
from vitreous.weights.load import Model, load

ImageLike = str | Path | Image


@dataclass(frozen=True)
class Prediction:
    """One class and how sure the model is of it."""

    index: int
    label: str
    probability: float
    logit: float


@dataclass(frozen=True)
class Answer:
    """An image and its best classes, best first."""

    image: str
    predictions: tuple[Prediction, ...]

    @property
    def best(self) -> Prediction:
        return self.predictions[0]


def classify(
    images: ImageLike | Iterable[ImageLike],
    model: Model | str | None = None,
    *,
    top: int = 5,
    batch_size: int = 8,
    device: str = "auto",
    precision: str = "fp32",
) -> list[Answer]:
    """The `top` classes of each image; an image that cannot be read raises `ImageError`.

    `model` is a loaded model, a name or path for `load`, or None for the model inside the package.

    >>> from vitreous.data.samples import samples
    >>> classify(samples()["chelsea"], device="cpu")[0].best.label
    'cat'
    """
    one = isinstance(images, ImageLike)
    answers = []
    for answer in classify_each(
        [images] if one else images,  # type: ignore[list-item,arg-type]
        model,
        top=top,
        batch_size=batch_size,
        device=device,
        precision=precision,
    ):
        if isinstance(answer, ImageError):
            raise answer
        answers.append(answer)
    return answers


def classify_each(
    images: Iterable[ImageLike],
    model: Model | str | None = None,
    *,
    top: int = 5,
    batch_size: int = 8,
    device: str = "auto",
    precision: str = "fp32",
    using: Callable[[Tensor], Tensor] | None = None,
) -> Iterator[Answer | ImageError]:
    """As `classify`, one answer at a time and in order; a bad image gives its error instead of an answer.

    `using` computes the logits `[b classes]` of images `[b c h w]`, uint8, instead, such as what `optimize` gives.
    """
    if not isinstance(model, torch.nn.Module):
        model = load(model)
    card = model.card
    if card.head != "classifier":
        what = "gives an embedding" if card.head == "projection" else "has no head"
        raise ValueError(
            f"{card.name} {what}, so it cannot name classes: use `vitreous embed`, "
            "or fine-tune it to your classes first"
        )
    if top < 1:
        raise ValueError(f"top must be at least 1, got {top}")
    compute = using or partial(started, placed(model, device, precision), function=logits_only)

    def begin(batch: list[tuple[str, Tensor | ImageError]]) -> Tensor:
        good = [tensor for _, tensor in batch if isinstance(tensor, Tensor)]
        return compute(torch.stack(good)) if good else torch.empty(0)

    with closing(read_ahead(images, model, batch_size)) as read:  # whoever stops early leaves no thread behind
        for batch, answers in answered(begin, batched(read, batch_size), lanes=lanes_of(using)):
            if not answers.isfinite().all():
                raise ValueError(f"{card.name} answers NaN: `vitreous doctor` tells whether its weights hold any")
            logits = iter(answers)
            for name, tensor in batch:
                yield tensor if isinstance(tensor, ImageError) else Answer(name, rank(next(logits), card.label, top))


def read_ahead(
    images: Iterable[ImageLike], model: Model, batch_size: int
) -> Generator[tuple[str, Tensor | ImageError], None, None]:
    """Each image's name with what the model sees of it, uint8 `[c h w]`, or the reason why there is none."""

    def prepare(image: ImageLike) -> tuple[str, Tensor | ImageError]:
        name = getattr(image, "filename", "") or "image" if isinstance(image, Image) else str(image)
        try:
            return name, model.card.preprocess.pixels(read_image(image))
        except ImageError as error:  # preprocessing knows no names
            return name, error if error.name != "image" else ImageError(name, error.reason)

    return prefetch(prepare, images, waiting=2 * batch_size)


def placed(model: Model, device: str, precision: str) -> Model:
    """The model where and as it is to run, evaluating; the caller's own stays as it is."""
    place, dtype = pick_device(device), pick_dtype(precision)
    parameter = next(model.parameters())
    place = torch.device(place.type, place.index if place.index is not None else parameter.device.index)
    if parameter.device == place and parameter.dtype == dtype and not model.training:
        return model
    return copy.deepcopy(model).to(device=place, dtype=dtype).eval()


@torch.inference_mode()
def started(model: Model, batch: Tensor, function: Callable[[Model, Tensor], Tensor]) -> Tensor:
    """A batch `[b c h w]`, pixels or normalised, through `function(model, batch)`: float, where the model lives."""
    return function(model, fed(batch, model.card.preprocess, next(model.parameters()))).float()


def run(model: Model, batch: Tensor, function: Callable[[Model, Tensor], Tensor]) -> Tensor:
    """As `started`, and waited for: the result is on the CPU."""
    return started(model, batch, function).cpu()


def rank(logits: Tensor, label: Callable[[int], str], top: int) -> tuple[Prediction, ...]:
    """The best classes of one image's logits `[classes]`."""
    probabilities = logits.softmax(dim=-1)
    order = logits.argsort(descending=True, stable=True)[:top].tolist()  # equal logits: the lower class first
    return tuple(Prediction(i, label(i), probabilities[i].item(), logits[i].item()) for i in order)
