"""Decode images, copy batches to the device, choose how the model runs, bring logits or features back, overlapping.

Threads decode ahead (`data.prefetch`). A batch travels as uint8, a quarter of the bytes of floats, from pinned memory
to a GPU, and is normalised on the model's device. On a GPU the next batch is on its way before the outputs of the
last are waited for. On a CPU several batches are computed in parallel if the model allows it, each on a thread of its
own, so that no core idles at the end of a matrix product.
"""

import copy
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

from vitreous.data.image_dataset import ImageDataset
from vitreous.data.images import ImageError, ImageLike, image_name, read_image
from vitreous.data.masks import read_with_mask, view_mask
from vitreous.data.prefetch import batched, prefetch
from vitreous.data.preprocess import Preprocess
from vitreous.models.hooks import check_no_copy, hooks_act_on
from vitreous.models.last_block import Compute, OutputKind, logits_only
from vitreous.models.timm_classifier import TimmClassifier, TimmConfig
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.runtime.device import max_lanes, pick_device, pick_dtype
from vitreous.runtime.files import cache_folder
from vitreous.weights.load import Model

About = TypeVar("About")

MANY = 64
"""From this many images on, packing the weights for a CPU, some tenths of a second, pays off."""


def to_device(batch: Tensor, device: torch.device) -> Tensor:
    """Copy a batch to a device in the image pipeline; a GPU takes it from pinned memory while this thread continues."""
    if device.type == "cuda" and batch.device.type == "cpu":
        batch = batch.pin_memory()
    return batch.to(device, non_blocking=True)


def to_model(batch: Tensor, preprocess: Preprocess, like: Tensor) -> Tensor:
    """Copy a batch `[b c h w]` of the pipeline to the device and dtype of `like`; uint8 pixels are normalised there."""
    if batch.dtype != torch.uint8 and not batch.is_floating_point():
        kind = str(batch.dtype).removeprefix("torch.")
        raise ValueError(f"expected pixels as uint8, or floats normalised as the model's card says, got {kind}")
    batch = to_device(batch, like.device)
    return (preprocess.normalise(batch) if batch.dtype == torch.uint8 else batch).to(like.dtype)


def decode_batches(
    data: ImageDataset, preprocess: Preprocess, batch_size: int, problems: list[ImageError]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Decode a dataset ahead of the model, batch by batch, at the start of the inference pipeline.

    A batch is pixels, uint8 `[b c h w]`, and targets; errors go to `problems`.

    Targets are classes `[b]`, labels or numbers `[b k]`, or masks as the model sees them, `[b h w]`.
    """

    def decode(i: int) -> tuple[Tensor, Tensor] | ImageError:
        try:
            image, mask = read_with_mask(data, i)
            pixels = preprocess.pixels(image)
        except ImageError as error:
            return error
        if mask is not None:
            return pixels, torch.from_numpy(np.array(view_mask(mask, preprocess))).long()
        return pixels, torch.tensor(data.labels[i] if data.targets is None else data.targets[i])

    for batch in batched(prefetch(decode, range(len(data)), waiting=2 * batch_size), batch_size):
        problems += [each for each in batch if isinstance(each, ImageError)]
        if good := [each for each in batch if not isinstance(each, ImageError)]:
            yield torch.stack([pixels for pixels, _ in good]), torch.stack([target for _, target in good])


def compute_batches(
    compute: Compute, batches: Iterable[tuple[Tensor, About]], *, waiting: int = 1, lanes: int = 1
) -> Iterator[tuple[About, Tensor]]:
    """Run the model on batches while others are decoded, and yield its outputs on the CPU, in order.

    On a GPU `waiting` batches are begun before one is read. `lanes` batches are computed in parallel, each with its
    share of torch's threads.

    >>> list(compute_batches(lambda x: x + 1, [(torch.tensor([1]), "one"), (torch.tensor([2]), "two")]))
    [('one', tensor([2])), ('two', tensor([3]))]
    """
    if lanes > 1:
        yield from _compute_in_lanes(compute, batches, lanes)
        return
    begun: list[tuple[About, Tensor]] = []
    for pixels, about in batches:
        begun.append((about, compute(pixels) if len(pixels) else pixels))
        while begun and (begun[-1][1].device.type == "cpu" or len(begun) > waiting):
            first, result = begun.pop(0)
            yield first, result.cpu()
    for last, result in begun:
        yield last, result.cpu()


def _compute_in_lanes(
    compute: Compute, batches: Iterable[tuple[Tensor, About]], lanes: int
) -> Iterator[tuple[About, Tensor]]:
    """Compute several batches of the inference pipeline at once, each on a thread with a share of torch's threads."""
    threads = torch.get_num_threads()

    def work(batch: tuple[Tensor, About]) -> tuple[About, Tensor]:
        torch.set_num_threads(max(1, threads // lanes))  # of this lane; new threads begin with it too
        pixels, about = batch
        return about, compute(pixels).cpu() if len(pixels) else pixels

    results = prefetch(work, batches, workers=lanes, waiting=2 * lanes)
    try:
        with closing(results):
            yield from results
    finally:
        torch.set_num_threads(threads)


Size: TypeAlias = tuple[int, int]
"""Width and height of an image; 0 and 0 if it cannot be read."""
Decoded: TypeAlias = tuple[ImageLike, Size, Tensor | ImageError]


def compute_images(
    compute: Compute, images: Iterable[ImageLike], preprocess: Preprocess, batch_size: int
) -> Generator[Decoded, None, None]:
    """Run the image pipeline: the model on images, decoded ahead, in order.

    Yield each with its size and its row of `compute(pixels)`, or its error.
    """

    def decode(image: ImageLike) -> Decoded:
        try:
            read = read_image(image)
            return image, read.size, preprocess.pixels(read)
        except ImageError as error:  # preprocessing does not know the name
            return image, (0, 0), error if error.name != "image" else ImageError(image_name(image), error.reason)

    def stacked(batch: list[Decoded]) -> tuple[Tensor, list[Decoded]]:
        good = [pixels for *_, pixels in batch if isinstance(pixels, Tensor)]
        return torch.stack(good) if good else torch.empty(0), batch

    with closing(prefetch(decode, images, waiting=2 * batch_size)) as decoded:  # ends the threads of an early stop
        batches = map(stacked, batched(decoded, batch_size))
        for batch, outputs in compute_batches(compute, batches, lanes=lanes_of(compute)):
            rows = iter(outputs)
            for image, size, pixels in batch:
                yield image, size, pixels if isinstance(pixels, ImageError) else next(rows)


# --- what computes --------------------------------------------------------------------------------------------------


def check_finite(outputs: Tensor, name: str) -> None:
    """Raise if the outputs of the pipeline hold NaN or infinity: the likeliest class of them would be any."""
    if not outputs.isfinite().all():
        raise ValueError(f"{name} answers NaN: `vitreous doctor` tells whether its weights hold any")


def task_of(model: Model) -> str:
    """Return the task of the outputs that the inference pipeline brings back.

    A model whose numbers are still in units of their deviation raises.
    """
    if model.card.standard is not None:
        raise ValueError(f"the numbers of {model.card.name} are still in units of their deviation: fold_standard first")
    task: str = model.card.task
    return task


def embedding(model: Model, x: Tensor) -> Tensor:
    """Run a batch in the inference pipeline to features: those below a classifier, or a headless model's output."""
    return model.features(x) if model.card.head == "classifier" else model(x)


def patch_features(model: Model, x: Tensor, blocks: Sequence[int] = ()) -> Tensor:
    """Compute the features of patches that the pipeline returns for a batch: `[b c H W]` → `[b rows columns d]`.

    They are `forward_features` without the class, distillation and register tokens; of `blocks`, those after each,
    normalised as the last's and concatenated. A ResNet's are its last feature map.
    """
    if isinstance(model, TimmClassifier):
        raise ValueError("a timm classifier has no patches that are known here: choose a ViT or ResNet")
    if not isinstance(model, ViT):
        return model.feature_map(x).permute(0, 2, 3, 1)
    if not blocks:
        return model.layout.to_grid(model.forward_features(x), dim=1)
    found = model.get_intermediate_layers(x, list(blocks), reshape=True, norm=True)  # [b d rows columns] each
    return torch.cat(found, dim=1).permute(0, 2, 3, 1)


def patch_shape(model: Model) -> tuple[int, int, int]:
    """Return the shape in which the inference pipeline brings back features of patches: rows, columns and width."""
    config = model.config
    if isinstance(config, TimmConfig):
        raise ValueError("a timm classifier has no patches that are known here: choose a ViT or ResNet")
    return (*config.grid, config.width if isinstance(config, ViTConfig) else config.feature_width)


FORWARDS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "logits": logits_only,
    "features": embedding,
    "tokens": patch_features,
}
PlainOutput: TypeAlias = OutputKind | Literal["tokens"]
"""What the plain model returns: logits, features, or the features of each patch `[b rows columns d]`."""


@dataclass(frozen=True)
class PlainCompute:
    """The plain model as the function that computes batches; results stay on the model's device."""

    model: Model
    output: PlainOutput = "logits"
    lanes: int = 1
    forward: Callable[[Any, Tensor], Tensor] | None = None
    """Computes the output instead, such as a forward pass that merges tokens."""

    @torch.inference_mode()
    def __call__(self, batch: Tensor) -> Tensor:
        forward = self.forward or FORWARDS[self.output]
        x = to_model(batch, self.model.card.preprocess, next(self.model.parameters()))
        return forward(self.model, x).float()


def plain_compute(model: Model, output: PlainOutput, device: str = "auto", precision: str = "fp32") -> PlainCompute:
    """Make the stage of the inference pipeline that runs the plain model on a device; the caller's is not changed."""
    check_precision(model, precision, output)
    return PlainCompute(copy_to(model, device, precision), output)


def check_precision(model: Model, precision: str, output: str = "logits") -> None:
    """Raise before the pipeline computes numbers in a precision that would round them: bf16 has no 1,991."""
    if output == "logits" and precision != "fp32" and model.card is not None and model.card.task == "regress":
        raise ValueError(f"numbers are computed in fp32, {precision} would round them: leave the precision out")


def copy_to(model: Model, device: str, precision: str) -> Model:
    """Return the pipeline's model in evaluation mode on a device: a copy, or the model itself if it is there."""
    target, dtype = pick_device(device), pick_dtype(precision)
    parameter = next(model.parameters())
    target = torch.device(target.type, target.index if target.index is not None else parameter.device.index)
    if parameter.device == target and parameter.dtype == dtype and not model.training:
        return model
    check_no_copy(model, f"move it to {target} and {precision} first, and call eval()")
    return copy.deepcopy(model).to(device=target, dtype=dtype).eval()


def lanes_of(compute: object) -> int:
    """Return how many batches of the pipeline the model may run on at the same time: 1 unless `compute` has `lanes`."""
    return int(getattr(compute, "lanes", 1))


def choose_compute(
    model: Model,
    output: PlainOutput = "logits",
    *,
    fast: bool = False,
    merge: int = 0,
    images: int = 0,
    precision: str = "fp32",
    batch_size: int = 8,
    device: str = "auto",
    note: Callable[[str], object] = lambda line: None,
) -> Compute | None:
    """Choose the function that runs the pipeline's batches; None: the plain model. `note` gets lines about the choice.

    `fast`, int8 and fp8 use `optimize`; `merge` merges tokens in each block. From 64 `images` on, a CPU runs batches
    in parallel and logits with packed weights even without `fast`: that needs no timing or compiling, and changes
    logits by rounding alone. Features without `fast` are the plain model's, bit for bit; those of patches always.
    Inside `capture` or `intervene`, which see neither copies nor other threads, many images run plainly too.
    """
    check_precision(model, precision, output)
    narrow = precision in ("int8", "fp8")
    if output == "tokens" and (fast or merge or narrow):
        raise ValueError("patch features are the plain model's, in fp32, bf16 or fp16: leave --fast and --merge out")
    if not (fast or merge or narrow or (images >= MANY and not hooks_act_on(model))):
        return None
    if output == "tokens":
        on_cpu = pick_device(device).type == "cpu"
        return PlainCompute(copy_to(model, device, precision), output, lanes=max_lanes()) if on_cpu else None
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
