"""`classify`: images → their classes, labels, numbers or masks, as `Answers` that a notebook shows as a table."""

import base64
import html
import io
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vitreous.data.finding import Images, open_images
from vitreous.data.images import ImageError, ImageLike, image_name, is_web_address, read_image
from vitreous.data.masks import draw_mask, mask_colours
from vitreous.data.preprocess import Fit, Preprocess
from vitreous.models.last_block import Compute
from vitreous.predict.pipeline import Size, check_finite, choose_compute, compute_images, plain_compute, task_of
from vitreous.predict.segmentation import class_shares, full_mask
from vitreous.runtime.wording import format_number
from vitreous.weights.card import Card
from vitreous.weights.load import Model, loaded

THUMBNAIL, MASK_THUMBNAIL = 64, 192  # pixels of the longer side
SHOWN = 100  # images in the table of a notebook


@dataclass(frozen=True)
class Prediction:
    """One class or label that a model gives an image, and its probability."""

    index: int
    """The class's index among the model's outputs."""
    class_name: str
    probability: float
    logit: float
    present: bool | None = None
    """Of several labels: whether the probability reaches the label's threshold; None for classes."""

    def __str__(self) -> str:
        return f"{self.class_name} {self.probability:.1%}"


@dataclass(frozen=True)
class ClassShare:
    """One class of a mask, and its share of the image's pixels."""

    index: int
    """The class's value in the mask."""
    class_name: str
    share: float

    def __str__(self) -> str:
        return f"{self.class_name} {self.share:.1%}"


@dataclass(frozen=True, repr=False)
class Answer:
    """An image and what the model says about it: classes or labels, numbers, or a mask."""

    image: str
    """The image's path or name."""
    predictions: tuple[Prediction, ...] = ()
    """Classes or labels, the most probable first; none for numbers and masks."""
    source: ImageLike | None = field(default=None, compare=False)
    """The image itself, for the thumbnail in a notebook."""
    labels: tuple[str, ...] | None = None
    """Of several labels: all that are present, the most probable first."""
    numbers: dict[str, float] | None = None
    """Name → number, in its own unit."""
    shares: tuple[ClassShare, ...] | None = None
    """The classes of the mask, the largest first."""
    mask: NDArray[np.uint8] | None = field(default=None, compare=False)
    """The class of each pixel of the upright image, as indices of classes; 255 beyond what the model sees: `[h w]`."""
    classes: int = 0
    """The number of classes that a mask may have."""

    @property
    def best(self) -> Prediction:
        """The most probable class in an answer of `classify`."""
        if not self.predictions:
            what = "numbers" if self.numbers is not None else "shares and mask"
            raise ValueError(f"this answer names no class of the whole image: read its {what}")
        return self.predictions[0]

    def rows(self) -> list[tuple[str, str]]:
        """Return what there is to read in an answer of `classify`, as pairs of name and value."""
        if self.numbers is not None:
            return [(name, format_number(value)) for name, value in self.numbers.items()]
        if self.shares is not None:
            return [(each.class_name, f"{each.share:6.1%}") for each in self.shares]
        return [(p.class_name, f"{p.probability:6.1%}{'  present' * bool(p.present)}") for p in self.predictions]

    def brief(self) -> str:
        """Sum up in a line what is predicted for an image: three largest classes, labels present, or numbers."""
        if self.numbers is not None:
            return ", ".join(f"{name} {value}" for name, value in self.rows())
        if self.labels is not None:
            return ", ".join(self.labels) or "no label"
        return ", ".join(map(str, (self.predictions if self.shares is None else self.shares)[:3]))

    def to_dict(self) -> dict[str, Any]:
        """Return what is predicted for one image, classes, labels, numbers or shares, as JSON values.

        The pixels of a mask are left out.
        """
        values: dict[str, Any] = {"image": self.image}
        if self.numbers is not None:
            return values | {"numbers": self.numbers}
        if self.shares is not None:
            return values | {"shares": [asdict(each) for each in self.shares]}
        if self.labels is not None:
            values["labels"] = list(self.labels)
        hidden = () if self.labels is not None else ("present",)
        each = [{k: v for k, v in asdict(p).items() if k not in hidden} for p in self.predictions]
        return values | {"predictions": each}

    def __repr__(self) -> str:
        rows = self.rows()
        width = max((len(name) for name, _ in rows), default=0)
        return "\n".join([self.image, *(f"  {name:<{width}}  {value}" for name, value in rows)])

    def _repr_html_(self) -> str:
        return Answers([self])._repr_html_()

    def _html_cell(self) -> str:
        """Write what `classify` predicts for one image as HTML; classes of a mask with their colours."""
        if self.shares is not None:
            colours, square = mask_colours(self.classes), '<span style="color:{}">■</span> '
            return "<br>".join(square.format(colours[each.index]) + html.escape(str(each)) for each in self.shares)
        if self.numbers is not None or self.labels is not None:
            lines = [f"{name} {value.strip()}" for name, value in self.rows()]
        else:
            lines = list(map(str, self.predictions))
        return "<br>".join(html.escape(line) for line in lines)


class Answers(list[Answer]):
    """The answers to several images, in their order: a list that shows itself as a table."""

    def __repr__(self) -> str:
        width = max((len(answer.image) for answer in self[:SHOWN]), default=0)
        lines = [f"{answer.image:<{width}}  {answer.brief()}" for answer in self[:SHOWN]]
        return "\n".join(lines + ([f"… and {len(self) - SHOWN} more"] if len(self) > SHOWN else [])) or "no images"

    def _repr_html_(self) -> str:
        """Show in a notebook what `classify` returns: each image's thumbnail beside its predictions."""
        cells = [(thumbnail(a.source, a.mask, a.classes), html.escape(a.image), a._html_cell()) for a in self[:SHOWN]]
        rows = "".join(f"<tr><td>{'<td>'.join(row)}" for row in cells)
        more = f"<p>… and {len(self) - SHOWN} more</p>" if len(self) > SHOWN else ""
        kinds = ["numbers" if a.numbers is not None else "classes" if a.labels is None else "labels" for a in self[:1]]
        return f"<table><tr><th><th>image<th>{''.join(kinds) or 'classes'}{rows}</table>{more}"


def thumbnail(source: ImageLike | None, mask: NDArray[np.uint8] | None = None, classes: int = 0) -> str:
    """Make the thumbnail beside a prediction of `classify` in a notebook; empty if it cannot be read (any more).

    It is an `<img>` element, with the mask if there is one.
    """
    if source is None:
        return ""
    if isinstance(source, str) and is_web_address(source) and mask is None:  # the notebook's browser shows it itself
        return f'<img alt="" width="{THUMBNAIL}" src="{html.escape(source)}">'
    try:
        image = read_image(source)
    except (ImageError, TypeError):
        return ""
    side = THUMBNAIL if mask is None else MASK_THUMBNAIL
    image.thumbnail((side, side))
    if mask is not None:
        image = draw_mask(image, mask, classes)
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
    """Classify an image, or each of several: return the `top` classes; an unreadable image raises `ImageError`.

    A model of another task answers otherwise: `answer.labels` are the labels that are present, `answer.numbers` the
    numbers by name, `answer.mask` the class of each pixel, at the image's own size, and `answer.shares` their shares.

    `images` is a path, a URL, bytes, a file, a Pillow image, an array or a tensor: an `Answer`; or a folder, a zip or
    tar archive, a pattern or a list of these: `Answers`. `model` is a loaded model, a name or path for `load`, or None
    for the packaged one. `fast` runs it by `optimize`. `fit` crops, squashes or pads images of other sides than the
    model's; None does what the checkpoint says. `classes` are words for a CLIP or SigLIP to choose among, `template` is
    the sentence around each, such as "a photo of a {}".

    >>> from vitreous.data.sample_photos import samples
    >>> answer = classify(samples()["chelsea"], "packaged:cifar10", device="cpu", top=2)
    >>> answer.image, "cat" in answer.best.class_name
    ('chelsea', True)
    >>> len(classify(list(samples().values()), "packaged:cifar10", device="cpu"))
    3
    """
    sources, one = open_images(images)
    model = loaded(model)
    if classes is None and template != "{}":
        raise ValueError("template is the sentence around classes: name them too, as words (classes=[…])")
    if classes is not None:
        from vitreous.predict.words import with_words  # not at the top: it needs the `tokenizers` library

        model = with_words(model, classes, [template], note=partial(warnings.warn, stacklevel=5))
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
    for what, number in (("top", top), ("batch_size", batch_size)):
        if isinstance(number, bool) or not isinstance(number, int | np.integer) or number < 1:
            raise ValueError(f"{what} must be at least 1, and a whole number, got {number!r:.60}")
    answer = ANSWERS[task_of(model)]
    compute = compute or plain_compute(model, "logits", device, precision)
    preprocess = card.preprocess.with_fit(fit)
    with closing(compute_images(compute, images, preprocess, batch_size)) as computed:  # an early stop ends its threads
        for image, size, outputs in computed:
            if isinstance(outputs, ImageError):
                yield outputs
                continue
            check_finite(outputs, card.name)
            said = answer(outputs, card, top, preprocess, size)
            yield replace(said, image=image_name(image), source=image)


# --- what outputs say, for each task ----------------------------------------------------------------------------------


def _classes(logits: Tensor, card: Card, top: int, preprocess: Preprocess, size: Size) -> Answer:
    """Make the answer of `classify` from logits `[k]`: the most probable classes."""
    return Answer("", top_classes(logits, card.label, top, independent=card.independent))


def _labels(logits: Tensor, card: Card, top: int, preprocess: Preprocess, size: Size) -> Answer:
    """Make the answer of `classify` from logits `[k]`: the most probable labels, and all that are present."""
    ranked = top_classes(logits, card.label, len(logits), independent=True)
    marked = tuple(replace(p, present=p.probability >= card.threshold(p.index)) for p in ranked)
    return Answer("", marked[:top], labels=tuple(p.class_name for p in marked if p.present))


def _numbers(outputs: Tensor, card: Card, top: int, preprocess: Preprocess, size: Size) -> Answer:
    """Make the answer of `classify` from outputs `[k]`: numbers in their own units."""
    return Answer("", numbers={card.label(i): value for i, value in enumerate(outputs.tolist())})


def _mask(logits: Tensor, card: Card, top: int, preprocess: Preprocess, size: Size) -> Answer:
    """Make the answer of `classify` if it has to name a class for each pixel, from logits `[k h w]`."""
    mask = full_mask(logits, preprocess, *size)
    shares = tuple(ClassShare(i, card.label(i), share) for i, share in class_shares(mask, len(logits)).items())
    return Answer("", shares=shares, mask=mask, classes=len(logits))


ANSWERS: dict[str, Callable[[Tensor, Card, int, Preprocess, Size], Answer]] = {
    "classify": _classes,
    "multilabel": _labels,
    "regress": _numbers,
    "segment": _mask,
}
"""Task → what a model's outputs for one image say."""


def top_classes(
    logits: Tensor, name: Callable[[int], str], top: int, *, independent: bool = False
) -> tuple[Prediction, ...]:
    """Rank an image's classes for `classify` by its logits `[classes]`: the most probable first."""
    probabilities = logits.sigmoid() if independent else logits.softmax(dim=-1)
    order = logits.argsort(descending=True, stable=True)[:top].tolist()  # equal logits: the lower class first
    return tuple(Prediction(i, name(i), probabilities[i].item(), logits[i].item()) for i in order)
