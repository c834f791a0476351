"""`classify`: images → their most probable classes, as `Answers` that a notebook shows as a table."""

import base64
import html
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from vitreous.data.finding import Images, open_images
from vitreous.data.images import ImageError, ImageLike, image_name, is_web_address, read_image
from vitreous.data.preprocess import Fit
from vitreous.models.last_block import Compute
from vitreous.predict.pipeline import choose_compute, compute_images, plain_compute
from vitreous.weights.load import Model, loaded

THUMBNAIL = 64  # pixels of the longer side
SHOWN = 100  # images in the table of a notebook


@dataclass(frozen=True)
class Prediction:
    """One class that a model gives an image, and its probability."""

    index: int
    """The class's index among the model's outputs."""
    class_name: str
    probability: float
    logit: float

    def __str__(self) -> str:
        return f"{self.class_name} {self.probability:.1%}"


@dataclass(frozen=True, repr=False)
class Answer:
    """An image and its most probable classes, the most probable first."""

    image: str
    """The image's path or name."""
    predictions: tuple[Prediction, ...]
    source: ImageLike | None = field(default=None, compare=False)
    """The image itself, for the thumbnail in a notebook."""

    @property
    def best(self) -> Prediction:
        """The most probable class."""
        return self.predictions[0]

    def __repr__(self) -> str:
        width = max(len(p.class_name) for p in self.predictions)
        return "\n".join([self.image, *(f"  {p.class_name:<{width}}  {p.probability:6.1%}" for p in self.predictions)])

    def _repr_html_(self) -> str:
        return Answers([self])._repr_html_()


class Answers(list[Answer]):
    """The answers to several images, in their order: a list that shows itself as a table."""

    def __repr__(self) -> str:
        width = max((len(answer.image) for answer in self[:SHOWN]), default=0)
        lines = [f"{answer.image:<{width}}  {', '.join(map(str, answer.predictions[:3]))}" for answer in self[:SHOWN]]
        return "\n".join(lines + ([f"… and {len(self) - SHOWN} more"] if len(self) > SHOWN else [])) or "no images"

    def _repr_html_(self) -> str:
        """Make a table with thumbnails, for a notebook."""
        rows = []
        for answer in self[:SHOWN]:
            classes = "<br>".join(html.escape(str(prediction)) for prediction in answer.predictions)
            rows.append(f"<tr><td>{thumbnail(answer.source)}<td>{html.escape(answer.image)}<td>{classes}")
        more = f"<p>… and {len(self) - SHOWN} more</p>" if len(self) > SHOWN else ""
        return f"<table><tr><th><th>image<th>classes{''.join(rows)}</table>{more}"


def thumbnail(source: ImageLike | None) -> str:
    """Make the HTML image of an answer in a notebook; empty if the image cannot be read (any more)."""
    if source is None:
        return ""
    if isinstance(source, str) and is_web_address(source):  # the notebook's browser shows it itself
        return f'<img alt="" width="{THUMBNAIL}" src="{html.escape(source)}">'
    try:
        image = read_image(source)
    except (ImageError, TypeError):
        return ""
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    file = io.BytesIO()
    image.save(file, "PNG")
    return f'<img alt="" src="data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}">'


def classify(
    images: Images,
    model: Model | str | None = None,
    *,
    top: int = 5,
    batch_size: int = 8,
    device: str = "auto",
    precision: str = "fp32",
    fast: bool = False,
    fit: Fit | None = None,
    classes: Sequence[str] | None = None,
    template: str = "{}",
) -> Answer | Answers:
    """Return the `top` classes of an image, or of each of several; an unreadable image raises `ImageError`.

    `images` is a path, a URL, bytes, a file, a Pillow image, an array or a tensor: an `Answer`; or a folder, a zip or
    tar archive, a pattern or a list of these: `Answers`. `model` is a loaded model, a name or path for `load`, or None
    for the packaged one. `fast` runs it by `optimize`. `fit` crops, squashes or pads images of other sides than the
    model's; None does what the checkpoint says. `classes` are words for a CLIP or SigLIP to choose among, `template` is
    the sentence around each, such as "a photo of a {}".

    >>> from vitreous.data.samples import samples
    >>> answer = classify(samples()["chelsea"], "packaged:cifar10", device="cpu", top=2)
    >>> answer.image, "cat" in answer.best.class_name
    ('chelsea', True)
    >>> len(classify(list(samples().values()), "packaged:cifar10", device="cpu"))
    3
    """
    sources, one = open_images(images)
    model = loaded(model)
    if classes is not None:
        from vitreous.predict.words import with_words  # not at the top: it needs the `tokenizers` library

        model = with_words(model, classes, [template])
    sizes: dict[str, Any] = {"batch_size": batch_size, "device": device, "precision": precision}
    compute = choose_compute(model, fast=fast, **sizes)
    answers = Answers()
    for answer in classify_each(sources, model, top=top, compute=compute, fit=fit, **sizes):
        if isinstance(answer, ImageError):
            raise answer
        answers.append(answer)
    return answers[0] if one else answers


def classify_each(
    images: Iterable[ImageLike],
    model: Model | str | None = None,
    *,
    top: int = 5,
    batch_size: int = 8,
    device: str = "auto",
    precision: str = "fp32",
    compute: Compute | None = None,
    fit: Fit | None = None,
) -> Iterator[Answer | ImageError]:
    """Classify images one answer at a time and in order; an unreadable image gives its error.

    `compute` returns logits `[b classes]` of pixels, uint8 `[b c h w]`, in place of the plain model: such as what
    `optimize` returns.
    """
    model = loaded(model)
    card = model.card
    if card.head != "classifier":
        what = "gives an embedding" if card.head == "projection" else "has no head"
        raise ValueError(
            f"{card.name} {what}, so it cannot name classes: use `vitreous embed`, fine-tune it to your classes, or "
            "name them in words (--classes) if it is a CLIP or SigLIP"
        )
    if top < 1:
        raise ValueError(f"top must be at least 1, got {top}")
    compute = compute or plain_compute(model, "logits", device, precision)
    computed = compute_images(compute, images, card.preprocess.with_fit(fit), batch_size)
    with closing(computed):  # a caller that stops early leaves no thread behind
        for image, logits in computed:
            if isinstance(logits, ImageError):
                yield logits
                continue
            if not logits.isfinite().all():
                raise ValueError(f"{card.name} answers NaN: `vitreous doctor` tells whether its weights hold any")
            yield Answer(image_name(image), top_classes(logits, card.label, top, independent=card.independent), image)


def top_classes(
    logits: Tensor, name: Callable[[int], str], top: int, *, independent: bool = False
) -> tuple[Prediction, ...]:
    """Rank an image's classes by its logits `[classes]`: the most probable first."""
    probabilities = logits.sigmoid() if independent else logits.softmax(dim=-1)
    order = logits.argsort(descending=True, stable=True)[:top].tolist()  # equal logits: the lower class first
    return tuple(Prediction(i, name(i), probabilities[i].item(), logits[i].item()) for i in order)
