"""Images to the device as bytes, and outputs back: decoding, copying and computing overlap.

Threads decode ahead (`data.prefetch`). A batch travels as uint8, a quarter of the bytes of floats, from pinned memory
to a GPU, and is normalised on the model's device. On a GPU the next batch is on its way before the outputs of the
last are waited for. On a CPU several batches are computed in parallel if the model allows it, each on a thread of its
own, so that no core idles at the end of a matrix product.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from typing import TypeVar

import torch
from torch import Tensor

from vitreous.data.image_dataset import ImageDataset
from vitreous.data.images import ImageError, ImageLike, image_name, read_image
from vitreous.data.prefetch import batched, prefetch
from vitreous.data.preprocess import Preprocess

Batch = TypeVar("Batch")


def to_device(batch: Tensor, device: torch.device) -> Tensor:
    """Copy a batch to a device; a GPU takes it from pinned memory while this thread continues."""
    if device.type == "cuda" and batch.device.type == "cpu":
        batch = batch.pin_memory()
    return batch.to(device, non_blocking=True)


def to_model(batch: Tensor, preprocess: Preprocess, like: Tensor) -> Tensor:
    """Copy a batch `[b c h w]` to the device and dtype of `like`; uint8 pixels are normalised there, floats are not."""
    batch = to_device(batch, like.device)
    return (preprocess.normalise(batch) if batch.dtype == torch.uint8 else batch).to(like.dtype)


def decode_images(
    images: Iterable[ImageLike], preprocess: Preprocess, batch_size: int
) -> Generator[tuple[ImageLike, Tensor | ImageError], None, None]:
    """Yield each image with its pixels, uint8 `[c h w]`, or its error; decoded ahead on threads."""

    def decode(image: ImageLike) -> tuple[ImageLike, Tensor | ImageError]:
        try:
            return image, preprocess.pixels(read_image(image))
        except ImageError as error:  # preprocessing does not know the name
            return image, error if error.name != "image" else ImageError(image_name(image), error.reason)

    return prefetch(decode, images, waiting=2 * batch_size)


def decode_batches(
    data: ImageDataset, preprocess: Preprocess, batch_size: int, problems: list[ImageError]
) -> Iterator[tuple[Tensor, list[int]]]:
    """Yield batches of pixels, uint8 `[b c h w]`, with their labels; errors of unreadable images go to `problems`."""

    def decode(i: int) -> tuple[Tensor | ImageError, int]:
        try:
            return preprocess.pixels(read_image(data.image(i))), data.labels[i]
        except ImageError as error:
            return error, data.labels[i]

    for batch in batched(prefetch(decode, range(len(data)), waiting=2 * batch_size), batch_size):
        problems += [pixels for pixels, _ in batch if isinstance(pixels, ImageError)]
        good = [(pixels, label) for pixels, label in batch if isinstance(pixels, Tensor)]
        if good:
            yield torch.stack([pixels for pixels, _ in good]), [label for _, label in good]


def compute_batches(
    compute: Callable[[Batch], Tensor], batches: Iterable[Batch], *, waiting: int = 1, lanes: int = 1
) -> Iterator[tuple[Batch, Tensor]]:
    """Yield each batch with `compute(batch)` on the CPU, in order.

    On a GPU `waiting` batches are begun before one is read. `lanes` batches are computed in parallel, each with its
    share of torch's threads.

    >>> list(compute_batches(lambda x: x + 1, [torch.tensor(1), torch.tensor(2)]))
    [(tensor(1), tensor(2)), (tensor(2), tensor(3))]
    """
    if lanes > 1:
        yield from _compute_in_lanes(compute, batches, lanes)
        return
    begun: list[tuple[Batch, Tensor]] = []
    for batch in batches:
        begun.append((batch, compute(batch)))
        while begun and (begun[-1][1].device.type == "cpu" or len(begun) > waiting):
            first, result = begun.pop(0)
            yield first, result.cpu()
    for last, result in begun:
        yield last, result.cpu()


def _compute_in_lanes(
    compute: Callable[[Batch], Tensor], batches: Iterable[Batch], lanes: int
) -> Iterator[tuple[Batch, Tensor]]:
    threads = torch.get_num_threads()

    def work(batch: Batch) -> tuple[Batch, Tensor]:
        torch.set_num_threads(max(1, threads // lanes))  # of this lane; new threads begin with it too
        return batch, compute(batch).cpu()

    results = prefetch(work, batches, workers=lanes, waiting=2 * lanes)
    try:
        with closing(results):
            yield from results
    finally:
        torch.set_num_threads(threads)


def compute_images(
    compute: Callable[[Tensor], Tensor],
    images: Iterable[ImageLike],
    preprocess: Preprocess,
    batch_size: int,
    lanes: int = 1,
) -> Iterator[tuple[ImageLike, Tensor | ImageError]]:
    """Yield each image with its row of `compute(pixels)`, or its error, in order."""

    def begin(batch: list[tuple[ImageLike, Tensor | ImageError]]) -> Tensor:
        good = [pixels for _, pixels in batch if isinstance(pixels, Tensor)]
        return compute(torch.stack(good)) if good else torch.empty(0)

    with closing(decode_images(images, preprocess, batch_size)) as decoded:  # ends the threads of an early stop
        for batch, outputs in compute_batches(begin, batched(decoded, batch_size), lanes=lanes):
            rows = iter(outputs)
            for image, pixels in batch:
                yield image, pixels if isinstance(pixels, ImageError) else next(rows)
