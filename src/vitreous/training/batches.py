"""Where an update's images come from: memory that holds them all, or threads that decode them ahead.

Both hand out the same: for image numbers `[b]`, pixels uint8 `[b c h w]` on the device. What is random about them
(the order, and the crop of an image that is decoded on the fly) is a function of (seed, epoch, index).

Shapes:  n images of the set · b images of a batch
"""

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from PIL.Image import Image
from torch import Tensor

from vitreous.data.augment.geometry import draw_crop
from vitreous.data.counter_random import CounterRandom, permutation
from vitreous.data.decoded import array_bytes, decode
from vitreous.data.image_dataset import ImageDataset
from vitreous.data.images import ImageError, read_image
from vitreous.data.prefetch import prefetch
from vitreous.data.preprocess import INTERPOLATIONS, Preprocess
from vitreous.runtime.distributed import Rank, span
from vitreous.training.config import TrainConfig

MARGIN = 8 / 7  # images that are cropped at random are kept a little larger than the model's size: 256 for 224


@dataclass(frozen=True)
class Batch:
    """One update's images, on the device."""

    indices: Tensor
    """Which images of the set: int64 `[b]`."""
    copies: Tensor
    """How often an image was shown in this epoch before: int64 `[b]`, zero but for repeated augmentation."""
    pixels: Tensor | None = None
    """uint8 `[b c h w]`, or None where they lie in `Source.pixels`."""
    labels: Tensor | None = None
    """int64 `[b]`, or None where they lie in `Source.labels`."""


class Source:
    """A set of images as a device takes them."""

    def __init__(
        self,
        data: ImageDataset,
        preprocess: Preprocess,
        config: TrainConfig,
        device: torch.device,
        *,
        training: bool,
        place: Rank = Rank(),  # noqa: B008  # frozen
        progress: Callable[[str, int, int], object] = lambda what, total, done: None,
    ) -> None:
        self.data, self.config, self.device, self.place = data, config, device, place
        self.crop = config.crop if training else None
        self.preprocess = preprocess
        self.stored = with_margin(preprocess) if self.crop is not None else preprocess
        self.labels = torch.tensor(data.labels, device=device)  # [n]
        self.pixels: Tensor | None = None  # [n c h w]
        if _fits(array_bytes(len(data), self.stored), config, device):
            pixels = decode(data, self.stored, progress=lambda done: progress(data.name, len(data), done))
            self.pixels = pixels.to(device) if device.type != "cpu" else pixels

    @property
    def resident(self) -> bool:
        return self.pixels is not None

    def epoch(self, epoch: int, batch_size: int, first: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, from number `first` on; what is left over at the end waits for another epoch.

        `batch_size` is that of all ranks together; each takes its own part of a batch.
        """
        indices, copies = epoch_order(self.config.seed, epoch, len(self.data), self.config.repeats)
        indices, copies = (own_part(values, batch_size, self.place) for values in (indices, copies))
        batch_size //= self.place.world_size
        parts = [slice(i * batch_size, (i + 1) * batch_size) for i in range(first, len(indices) // batch_size)]
        if self.resident:
            indices, copies = indices.to(self.device), copies.to(self.device)
            for part in parts:
                yield Batch(indices[part], copies[part])
            return
        begin = parts[0].start if parts else 0
        wanted = zip(indices[begin:].tolist(), copies[begin:].tolist(), strict=True)
        decoded = prefetch(
            lambda item: self._cropped(epoch, *item), wanted, workers=self.workers, waiting=3 * batch_size
        )
        for part in parts:
            pixels = torch.stack([next(decoded) for _ in range(batch_size)])
            moved = (pixels.pin_memory() if self.device.type == "cuda" else pixels).to(self.device, non_blocking=True)
            yield Batch(indices[part].to(self.device), copies[part].to(self.device), moved)

    def all(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """All of this rank's images once and in order, nothing random: pixels `[b c h w]` and labels `[b]`."""
        own = span(len(self.data), self.place)
        if self.pixels is not None:
            for begin in own[::batch_size]:
                some = slice(begin, min(begin + batch_size, own.stop))
                yield self.pixels[some].to(self.device), self.labels[some]
            return
        views = prefetch(self._view, own, workers=self.workers, waiting=3 * batch_size)
        for begin in own[::batch_size]:
            count = min(batch_size, own.stop - begin)
            yield torch.stack([next(views) for _ in range(count)]).to(self.device), self.labels[begin : begin + count]

    @property
    def workers(self) -> int:
        return self.config.workers or usual_workers(self.place)

    def _read(self, i: int) -> Image:
        try:
            return read_image(self.data.image(i))
        except ImageError as error:
            raise ImageError(self.data.describe(i), error.reason) from error

    def _view(self, i: int) -> Tensor:
        return cropped(self._read(i), self.preprocess)

    def _cropped(self, epoch: int, i: int, copy: int) -> Tensor:
        """One image for training."""
        chance = CounterRandom.of(self.config.seed, epoch, torch.tensor([i]), copy)
        return cropped(self._read(i), self.preprocess, self.crop, chance)


def cropped(
    image: Image, preprocess: Preprocess, crop: tuple[float, float] | None = None, chance: CounterRandom | None = None
) -> Tensor:
    """A random part of an image, or the model's own view of it where nothing is cropped: uint8 `[c h w]`."""
    image = image.convert("RGB" if len(preprocess.mean) == 3 else "L")
    if crop is None or chance is None:
        return _to_tensor(preprocess.view(image))
    box = draw_crop(chance, (image.height, image.width), crop)
    top, left, height, width = (edge.item() for edge in box)
    size = preprocess.size[1], preprocess.size[0]
    method = INTERPOLATIONS[preprocess.interpolation]
    return _to_tensor(image.resize(size, method, box=(left, top, left + width, top + height)))


def epoch_order(seed: int, epoch: int, images: int, repeats: int = 1) -> tuple[Tensor, Tensor]:
    """An epoch's image numbers and their copies, int64 `[n]`; as many in an epoch whatever `repeats` is.

    >>> epoch_order(0, 0, 4, repeats=2)[1]
    tensor([0, 1, 0, 1])
    """
    shuffled = permutation(seed, epoch, images)[: math.ceil(images / repeats)]
    indices = shuffled.repeat_interleave(repeats)[:images]
    return indices, torch.arange(repeats).repeat(len(shuffled))[:images]


def own_part(values: Tensor, batch_size: int, place: Rank) -> Tensor:
    """Of values `[n]` in whole batches, those of this rank: its slice of each batch, one after the other.

    >>> own_part(torch.arange(9), 4, Rank(rank=1, ranks=2))
    tensor([2, 3, 6, 7])
    """
    whole = values[: len(values) // batch_size * batch_size]
    return whole.view(-1, place.world_size, batch_size // place.world_size)[:, place.rank].flatten()


def usual_workers(place: Rank) -> int:
    """Threads that decode: one a core, shared by the ranks of this machine, eight at the most."""
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if place.world_size > 1 else 1
    return max(1, min(8, (os.cpu_count() or 1) // local))


def with_margin(preprocess: Preprocess) -> Preprocess:
    """The same view, a little larger all round."""
    size = math.ceil(preprocess.size[0] * MARGIN), math.ceil(preprocess.size[1] * MARGIN)
    return replace(preprocess, size=size, resize=size, cover=True)


def _to_tensor(image: Image) -> Tensor:
    pixels = np.array(image)
    return torch.from_numpy(pixels.reshape(image.height, image.width, -1).transpose(2, 0, 1).copy())  # [c h w]


def _fits(size: int, config: TrainConfig, device: torch.device) -> bool:
    if config.resident != "auto":
        return config.resident == "yes"
    if device.type == "cuda":
        return size <= torch.cuda.mem_get_info(device)[1] // 4
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError):  # no such call on Windows
        memory = 8 << 30
    return size <= memory // 4
