"""`BatchSource`: batches of a dataset in epoch order, resident in memory or decoded ahead; random crops of images.

A `Batch` has indices `[b]`, and pixels uint8 `[b c h w]`, whose last channel is the mask if the dataset has masks. What
is random (the order, and the crop of an image that is decoded on the fly) is a function of (seed, epoch, index).

Shapes:  n images of the dataset · b images of a batch
"""

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from PIL.Image import Image, Resampling
from torch import Tensor

from vitreous.data.augment.geometry import draw_crop
from vitreous.data.counter_random import CounterRandom, permutation
from vitreous.data.decoded import array_bytes, decode
from vitreous.data.image_dataset import ImageDataset
from vitreous.data.images import ImageError
from vitreous.data.masks import read_with_mask, view_mask
from vitreous.data.prefetch import prefetch
from vitreous.data.preprocess import INTERPOLATIONS, Preprocess
from vitreous.runtime.distributed import Rank, span
from vitreous.training.config import TrainConfig

MARGIN = 8 / 7  # images that are cropped at random are stored larger than the model's size: 256 for 224
CHECKED = 2_000  # images that are read once before training, if they are not kept in memory


@dataclass(frozen=True)
class Batch:
    """The images and labels of one training step, on the device."""

    indices: Tensor
    """Indices into the dataset: int64 `[b]`."""
    copies: Tensor
    """How often the image came earlier in this epoch: int64 `[b]`, zero without repeated augmentation."""
    pixels: Tensor | None = None
    """uint8 `[b c h w]`, or None if they are resident in `BatchSource.pixels`."""
    labels: Tensor | None = None
    """int64 `[b]`, or None if they are in `BatchSource.labels`; float targets `[b k]` of labels and numbers."""


class BatchSource:
    """Batches of a dataset, without the images that cannot be read.

    Of more than `CHECKED` images that do not fit into memory, an unreadable one ends the run when its turn comes.
    """

    def __init__(
        self,
        data: ImageDataset,
        preprocess: Preprocess,
        config: TrainConfig,
        device: torch.device,
        *,
        training: bool,
        rank: Rank = Rank(),  # noqa: B008  # frozen
        progress: Callable[[str, int, int], object] = lambda dataset, total, done: None,
    ) -> None:
        if config.balance != "none" and data.task != "classify":
            raise ValueError(f"--balance {config.balance} is for classes, and the task is {data.task}: leave it out")
        self.data, self.config, self.device, self.rank = data, config, device, rank
        self.crop = config.crop if training else None
        self.preprocess = preprocess
        self.stored = with_margin(preprocess) if self.crop is not None else preprocess
        pixels, unread = None, dict[int, str]()
        if _fits(array_bytes(data, self.stored), config, device):
            count = partial(progress, data.name, len(data))
            pixels = decode(data, self.stored, progress=count, problems=unread)
        elif len(data) <= CHECKED:
            errors = zip(range(len(data)), prefetch(self._error, range(len(data)), workers=self.workers), strict=True)
            unread = {i: error for i, error in errors if error}
        self.unreadable = [ImageError(data.describe(i), reason) for i, reason in unread.items()]
        if unread:
            kept = [i for i in range(len(data)) if i not in unread]
            self.data, pixels = data.take(kept), None if pixels is None else pixels[kept]
        if self.data.targets is None:
            self.labels = torch.tensor(self.data.labels, dtype=torch.int64, device=device)  # [n]
        else:
            self.labels = torch.tensor(self.data.targets, dtype=torch.float32, device=device)  # [n k]
        self.pixels: Tensor | None = None if pixels is None else pixels.to(device)  # [n c h w]

    @property
    def resident(self) -> bool:
        return self.pixels is not None

    def epoch(self, epoch: int, batch_size: int, first: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch of training, from number `first` on; an incomplete last batch is left out.

        `batch_size` counts the images of all ranks; each rank yields its part of a batch.
        """
        indices, copies = (rank_part(values, batch_size, self.rank) for values in self.order(epoch))
        batch_size //= self.rank.world_size
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

    def order(self, epoch: int) -> tuple[Tensor, Tensor]:
        """Return the indices of an epoch's batches, over all ranks, and their copy numbers: int64 `[n]`."""
        if self.config.balance == "sampling":
            return balanced_order(self.config.seed, epoch, self.data.labels)
        return epoch_order(self.config.seed, epoch, len(self.data), self.config.repeats)

    def all(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield this rank's batches once and in order, nothing random: pixels `[b c h w]`, labels `[b]` or `[b k]`."""
        own = span(len(self.data), self.rank)
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
        return self.config.workers or default_workers(self.rank)

    def _read(self, i: int) -> tuple[Image, Image | None]:
        """Read an image that a training batch takes, and its mask if it has one; an error names it."""
        try:
            return read_with_mask(self.data, i)
        except ImageError as error:
            raise ImageError(self.data.describe(i), error.reason) from error

    def some(self, indices: Sequence[int]) -> Tensor:
        """Return a batch of a few images as the model is tested on them: uint8 `[i c h w]` on the device."""
        if self.pixels is not None and self.crop is None:
            return self.pixels[list(indices)]
        return torch.stack([self._view(i) for i in indices]).to(self.device)

    def _error(self, i: int) -> str:
        """Return why no batch can have an image: it or its mask cannot be read; empty if both can."""
        try:
            self._read(i)
        except ImageError as error:
            return error.reason
        return ""

    def _view(self, i: int) -> Tensor:
        """Read any image by its index for batches without randomness, as in evaluation: the model's own view of it."""
        image, mask = self._read(i)
        return cropped(image, self.preprocess, mask=mask)

    def _cropped(self, epoch: int, i: int, copy: int) -> Tensor:
        """Read any image by its index for an epoch's batches, and crop it randomly."""
        random = CounterRandom.of(self.config.seed, epoch, torch.tensor([i]), copy)
        image, mask = self._read(i)
        return cropped(image, self.preprocess, self.crop, random, mask)


def cropped(
    image: Image,
    preprocess: Preprocess,
    crop: tuple[float, float] | None = None,
    random: CounterRandom | None = None,
    mask: Image | None = None,
) -> Tensor:
    """Crop one image for batches of any source, at random or, without `crop`, as the model views it: uint8 `[c h w]`.

    The mask, if there is one, is cropped alike by nearest neighbour: the last channel. The crop of a model that
    squashes images is drawn in the squashed image, where a resident one is cropped: it reaches the sides of wide ones.
    """
    image = image.convert("RGB" if len(preprocess.mean) == 3 else "L")
    if crop is None or random is None:
        views = [preprocess.view(image), *([] if mask is None else [view_mask(mask, preprocess)])]
    else:
        tall, wide = with_margin(preprocess).size if preprocess.squashes else (image.height, image.width)
        top, left, height, width = (edge.item() for edge in draw_crop(random, (tall, wide), crop))
        columns = [edge * image.width / wide for edge in (left, left + width)]
        rows = [edge * image.height / tall for edge in (top, top + height)]
        size, inside = (preprocess.size[1], preprocess.size[0]), (columns[0], rows[0], columns[1], rows[1])
        views = [image.resize(size, INTERPOLATIONS[preprocess.interpolation], box=inside)]
        views += [] if mask is None else [mask.resize(size, Resampling.NEAREST, box=inside)]
    return torch.cat([_to_tensor(view) for view in views])


def epoch_order(seed: int, epoch: int, images: int, repeats: int = 1) -> tuple[Tensor, Tensor]:
    """Return the order of an epoch's batches: indices and their copy numbers, int64 `[n]`, for any `repeats`.

    >>> epoch_order(0, 0, 4, repeats=2)[1]
    tensor([0, 1, 0, 1])
    """
    shuffled = permutation(seed, epoch, images)[: math.ceil(images / repeats)]
    indices = shuffled.repeat_interleave(repeats)[:images]
    return indices, torch.arange(repeats).repeat(len(shuffled))[:images]


def balanced_order(seed: int, epoch: int, labels: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return the order of an epoch's batches in which each class has an equal share; it has as many images.

    Classes take turns, each going through its own images again and again: images of rare classes come more than once,
    and of large classes some are left out.

    >>> labels = torch.tensor([0, 0, 0, 1])
    >>> labels[balanced_order(0, 0, labels.tolist())[0]].sort().values
    tensor([0, 0, 1, 1])
    """
    members: dict[int, list[int]] = {}
    for i in permutation(seed, epoch, len(labels)).tolist():
        members.setdefault(labels[i], []).append(i)
    groups = list(members.values())  # in a random order, so that each epoch gives the odd images to other classes
    turns = [divmod(n, len(groups)) for n in range(len(labels))]
    rounds = [(divmod(turn, len(groups[group])), group) for turn, group in turns]
    drawn = torch.tensor([(groups[group][i], copy) for (copy, i), group in rounds])  # [n 2]
    drawn = drawn[permutation(seed ^ 1, epoch, len(labels))]
    return drawn[:, 0], drawn[:, 1]


def rank_part(values: Tensor, batch_size: int, rank: Rank) -> Tensor:
    """Return a rank's slice of each complete batch of an epoch, of values `[n]`, concatenated.

    >>> rank_part(torch.arange(9), 4, Rank(rank=1, world_size=2))
    tensor([2, 3, 6, 7])
    """
    whole = values[: len(values) // batch_size * batch_size]
    return whole.view(-1, rank.world_size, batch_size // rank.world_size)[:, rank.rank].flatten()


def default_workers(rank: Rank) -> int:
    """Return how many threads decode training batches ahead: one a core, shared by this machine's ranks; 8 at most."""
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if rank.world_size > 1 else 1
    return max(1, min(8, (os.cpu_count() or 1) // local))


def with_margin(preprocess: Preprocess) -> Preprocess:
    """Enlarge the preprocessing of a batch's images by `MARGIN`, so that there is room for crops.

    Images are squashed if the model squashes them; else they keep their proportions, and the centre is stored.
    """
    size = math.ceil(preprocess.size[0] * MARGIN), math.ceil(preprocess.size[1] * MARGIN)
    return replace(preprocess, size=size, resize=size, cover=not preprocess.squashes, pad=False)


def _to_tensor(image: Image) -> Tensor:
    """Turn an image of a training batch into pixels, uint8 `[c h w]`."""
    pixels = np.array(image)
    return torch.from_numpy(pixels.reshape(image.height, image.width, -1).transpose(2, 0, 1).copy())  # [c h w]


def _fits(size: int, config: TrainConfig, device: torch.device) -> bool:
    """Return whether decoded training images fit into memory, so that batches are resident."""
    if config.resident != "auto":
        return config.resident == "yes"
    if device.type == "cuda":
        return size <= torch.cuda.mem_get_info(device)[1] // 4
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError):  # no such call on Windows
        memory = 8 << 30
    return size <= memory // 4
