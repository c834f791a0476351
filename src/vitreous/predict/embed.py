"""`embed` of the Python API: images → feature vectors, or features of patches; at once or one by one."""

from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Any

import torch
from torch import Tensor

from vitreous.data.finding import Images, open_images
from vitreous.data.images import ImageError, ImageLike, image_name
from vitreous.data.preprocess import Fit
from vitreous.models.last_block import Compute
from vitreous.predict.pipeline import choose_compute, compute_images, patch_shape, plain_compute
from vitreous.weights.load import Model, loaded


def embed(
    images: Images,
    model: Model | str | None = None,
    *,
    tokens: bool = False,
    batch_size: int = 8,
    device: str = "auto",
    precision: str = "fp32",
    fast: bool = False,
    fit: Fit | None = None,
) -> Tensor:
    """Embed an image as a feature vector `[d]`, or several as `[images d]`; `ImageError` if one is unreadable.

    `images`, `model` and `fit` are as for `classify`. The vector is the features below a classifier, or the output of a
    model without one. With `tokens` each patch has a vector, `[rows columns d]` or `[images rows columns d]`: the last
    block's normalised tokens, without the class token and registers; of a ResNet the last feature map.

    >>> from vitreous.data.sample_photos import samples
    >>> photos = samples()
    >>> one, several = (embed(each, "packaged:cifar10", device="cpu") for each in (photos["chelsea"], photos.values()))
    >>> one.ndim, several.ndim, len(several)
    (1, 2, 3)
    >>> embed(photos["chelsea"], "packaged:cifar10", tokens=True, device="cpu").shape
    torch.Size([8, 8, 256])
    """
    sources, one = open_images(images)
    model = loaded(model)
    sizes: dict[str, Any] = {"batch_size": batch_size, "device": device, "precision": precision}
    compute = choose_compute(model, "tokens" if tokens else "features", fast=fast, **sizes)
    rows = []
    for _, row in embed_each(sources, model, tokens=tokens, compute=compute, fit=fit, **sizes):
        if isinstance(row, ImageError):
            raise row
        rows.append(row)
    if not rows:
        return torch.empty(0, *(patch_shape(model) if tokens else (0,)))
    return rows[0] if one else torch.stack(rows)


def embed_each(
    images: Iterable[ImageLike],
    model: Model | str | None = None,
    *,
    tokens: bool = False,
    batch_size: int = 8,
    device: str = "auto",
    precision: str = "fp32",
    compute: Compute | None = None,
    fit: Fit | None = None,
) -> Iterator[tuple[str, Tensor | ImageError]]:
    """Embed images one by one: yield each one's name and vector `[d]`, in order; an unreadable one gives its error.

    With `tokens` it is the patches' vectors, `[rows columns d]`. `compute` returns such rows of pixels, uint8
    `[b c h w]`, in place of the plain model.
    """
    model = loaded(model)
    compute = compute or plain_compute(model, "tokens" if tokens else "features", device, precision)
    computed = compute_images(compute, images, model.card.preprocess.with_fit(fit), batch_size)
    with closing(computed):  # a caller that stops early leaves no thread behind
        for image, _, row in computed:
            yield image_name(image), row
