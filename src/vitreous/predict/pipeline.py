"""Images to the device as bytes, and outputs back: decoding, copying and computing overlap.

Threads decode ahead (`data.prefetch`). A batch travels as uint8, a quarter of the bytes of floats, from pinned memory
to a GPU, and is normalised on the model's device. On a GPU the next batch is on its way before the outputs of the
last are waited for. On a CPU several batches are computed in parallel if the model allows it, each on a thread of its
own, so that no core idles at the end of a matrix product.
"""

import copy
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from vitreous.data.image_dataset import ImageDataset
from vitreous.data.images import ImageError, ImageLike, image_name, read_image
from vitreous.data.prefetch import batched, prefetch
from vitreous.data.preprocess import Preprocess
from vitreous.models.last_block import Compute, OutputKind, logits_only
from vitreous.models.vit import ViT
from vitreous.runtime.device import max_lanes, pick_device, pick_dtype
from vitreous.runtime.files import cache_folder
from vitreous.weights.load import Model

Batch = TypeVar("Batch")

MANY = 64
"""From this many images on, packing the weights for a CPU, some tenths of a second, pays off."""


def to_device(batch: Tensor, device: torch.device) -> Tensor:
    """Copy a batch to a device; a GPU takes it from pinned memory while this thread continues."""
    if device.type == "cuda" and batch.device.type == "cpu":
        batch = batch.pin_memory()
    return batch.to(device, non_blocking=True)


def to_model(batch: Tensor, preprocess: Preprocess, like: Tensor) -> Tensor:
    """Copy a batch `[b c h w]` to the device and dtype of `like`; uint8 pixels are normalised there, floats are not."""
    batch = to_device(batch, like.device)
    return (preprocess.normalise(batch) if batch.dtype == torch.uint8 else batch).to(like.dtype)


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
) -> Generator[tuple[ImageLike, Tensor | ImageError], None, None]:
    """Yield each image with its row of `compute(pixels)`, or its error, in order."""

    def decode(image: ImageLike) -> tuple[ImageLike, Tensor | ImageError]:
        try:
            return image, preprocess.pixels(read_image(image))
        except ImageError as error:  # preprocessing does not know the name
            return image, error if error.name != "image" else ImageError(image_name(image), error.reason)

    def begin(batch: list[tuple[ImageLike, Tensor | ImageError]]) -> Tensor:
        good = [pixels for _, pixels in batch if isinstance(pixels, Tensor)]
        return compute(torch.stack(good)) if good else torch.empty(0)

    with closing(prefetch(decode, images, waiting=2 * batch_size)) as decoded:  # ends the threads of an early stop
        for batch, outputs in compute_batches(begin, batched(decoded, batch_size), lanes=lanes):
            rows = iter(outputs)
            for image, pixels in batch:
                yield image, pixels if isinstance(pixels, ImageError) else next(rows)


# --- what computes --------------------------------------------------------------------------------------------------


def embedding(model: Model, x: Tensor) -> Tensor:
    """Return the vector of an image: the features below a classifier, or a headless or projecting model's output."""
    return model.features(x) if model.card.head == "classifier" else model(x)


FORWARDS: dict[str, Callable[[Any, Tensor], Tensor]] = {"logits": logits_only, "features": embedding}


@dataclass(frozen=True)
class PlainCompute:
    """The plain model as `compute`; results stay on the model's device."""

    model: Model
    output: OutputKind = "logits"
    lanes: int = 1
    forward: Callable[[Any, Tensor], Tensor] | None = None
    """Computes the output instead, such as a forward pass that merges tokens."""

    @torch.inference_mode()
    def __call__(self, batch: Tensor) -> Tensor:
        forward = self.forward or FORWARDS[self.output]
        x = to_model(batch, self.model.card.preprocess, next(self.model.parameters()))
        return forward(self.model, x).float()


def plain_compute(model: Model, output: OutputKind, device: str = "auto", precision: str = "fp32") -> PlainCompute:
    """Run the plain model on a device in a precision; the caller's model is not changed."""
    return PlainCompute(copy_to(model, device, precision), output)


def copy_to(model: Model, device: str, precision: str) -> Model:
    """Return the model in evaluation mode on a device: a copy, or the model itself if it is there already."""
    target, dtype = pick_device(device), pick_dtype(precision)
    parameter = next(model.parameters())
    target = torch.device(target.type, target.index if target.index is not None else parameter.device.index)
    if parameter.device == target and parameter.dtype == dtype and not model.training:
        return model
    return copy.deepcopy(model).to(device=target, dtype=dtype).eval()


def lanes_of(compute: object) -> int:
    """Return how many batches may be computed at the same time: 1 unless `compute` has `lanes`."""
    return int(getattr(compute, "lanes", 1))


def choose_compute(
    model: Model,
    output: OutputKind = "logits",
    *,
    fast: bool = False,
    merge: int = 0,
    images: int = 0,
    precision: str = "fp32",
    batch_size: int = 8,
    device: str = "auto",
    note: Callable[[str], object] = lambda line: None,
) -> Compute | None:
    """Choose what computes logits or features; None for the plain model. `note` gets lines about the choice.

    `fast`, int8 and fp8 use `optimize`; `merge` merges tokens in each block. From 64 `images` on, a CPU runs batches
    in parallel and logits with packed weights even without `fast`: that needs no timing or compiling, and changes
    logits by rounding alone. Features without `fast` are the plain model's, bit for bit.
    """
    narrow = precision in ("int8", "fp8")
    if not (fast or merge or narrow or images >= MANY):
        return None
    from vitreous.speed.backends import Forward  # not at the top: a tenth of a second to import
    from vitreous.speed.optimize import optimize, resolve_output

    if merge:
        note(f"merging {merge} tokens in each block: answers differ from the whole model's")
    options: dict[str, Any] = {"output": output, "batch_size": batch_size, "device": pick_device(device)}
    if fast or narrow:
        if precision == "fp16":
            raise ValueError("--fast takes fp32, bf16, int8 or fp8, got fp16: use bf16")
        note("finding the fastest backend; the first time on a machine takes about a minute")
        chosen = optimize(model, precision, merge=merge, cache=cache_folder(), **options)
        for line in chosen.notes:
            note(line)
        times = ", ".join(f"{name} {1000 * seconds:.1f} ms" for name, seconds in chosen.seconds.items())
        note(f"fast: {chosen.backend}" + (f" ({times} for a batch of {batch_size})" if times else ""))
        return chosen
    if merge:
        if not isinstance(model, ViT):
            raise ValueError("only a Vision Transformer has tokens to merge: leave --merge out for a ResNet")
        forward = Forward(resolve_output(model, output), merge).function
        return PlainCompute(copy_to(model, device, precision), output, forward=forward)
    if pick_device(device).type != "cpu":
        return None
    if isinstance(model, ViT) and precision != "fp16" and output == "logits":
        chosen = optimize(model, precision, backends=("packed",), **options)
        if chosen.backend == "packed":
            return chosen
    return PlainCompute(copy_to(model, device, precision), output, lanes=max_lanes())
