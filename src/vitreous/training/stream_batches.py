"""`StreamSource`: batches of a dataset that is too large to keep, streamed; `open_stream` opens it for a run.

A stream yields each image once in an epoch, in an order that is a function of (seed, epoch, rank): a run that resumes
within an epoch skips what it has seen. A rank whose files hold fewer images than its share of the steps starts them
again.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.data.counter_random import CounterRandom
from vitreous.data.datasets import open_dataset
from vitreous.data.image_dataset import ImageDataset
from vitreous.data.prefetch import prefetch
from vitreous.data.preprocess import Preprocess
from vitreous.data.sources.parquet import find_parquet
from vitreous.data.sources.stream import ImageStream, stream_dataset, take_first
from vitreous.data.splits import check_numbers
from vitreous.runtime.distributed import Rank
from vitreous.training.batches import Batch, cropped, default_workers
from vitreous.training.config import TrainConfig

StreamRow = tuple[int, dict[str, Any]]
SHUFFLE_BUFFER = 10_000  # encoded rows that a stream's shuffle chooses from: about 1 GB of ImageNet
STREAM_TEST_IMAGES = 50_000  # encoded test images of a stream that are kept in memory
STANDARD_ROWS = 2_000  # rows of a stream by which its numbers are standardised


@dataclass(frozen=True)
class StreamedData:
    """A stream of training images, and how many of them make an epoch."""

    stream: ImageStream
    images: int
    numbers: NDArray[np.float32] | None = None
    """The numbers of some images, by which all are standardised: `[n k]`; None for other tasks."""

    @property
    def task(self) -> str:
        return self.stream.task

    @property
    def name(self) -> str:
        return self.stream.name

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.stream.class_names

    @property
    def labels(self) -> tuple[int, ...]:
        return (self.images,)  # labels are not known beforehand; their number identifies the stream

    def __len__(self) -> int:
        return self.images

    def describe(self, i: int) -> str:
        return f"#{i} of the epoch's stream"


def open_stream(config: TrainConfig, data_root: Path | None) -> tuple[StreamedData, ImageDataset]:
    """Open the stream of training images that a run's batches come from, and its test images as a dataset."""
    stream = train_stream(config, data_root)
    images = config.epoch_images or stream.images
    if images is None:
        raise ValueError(f"{config.data} does not say how many images it has: pass --epoch-images N")
    if stream.task == "classify" and find_parquet(config.data):
        test_data = open_dataset(config.data, "test", data_root)  # these are read in order, image by image
    else:
        tested = stream_dataset(config.data, "test", data_root, stream.class_names, stream.task)
        test_data = take_first(tested, STREAM_TEST_IMAGES)
    if test_data.class_names != stream.class_names:
        test_data = test_data.with_classes(stream.class_names)
    numbers = None
    if stream.task == "regress":
        some = islice(stream.shuffled(0, buffer=STANDARD_ROWS).undecoded(), STANDARD_ROWS)
        numbers = np.stack([stream.targets(row) for row in some])
        check_numbers(stream.class_names, numbers)
    return StreamedData(stream, images, numbers), test_data


def train_stream(config: TrainConfig, data_root: Path | None) -> ImageStream:
    """Open the stream of a run's training images alone."""
    task = None if config.task == "auto" else config.task
    return stream_dataset(config.data, config.train_split, data_root, task=task)


class StreamSource:
    """Batches of a stream: like `BatchSource`, without what needs the whole dataset."""

    pixels: Tensor | None = None
    resident = False

    def __init__(
        self, data: StreamedData, preprocess: Preprocess, config: TrainConfig, device: torch.device, rank: Rank
    ) -> None:
        self.data, self.preprocess, self.config, self.device, self.rank = data, preprocess, config, device, rank
        self.labels = torch.empty(0, dtype=torch.int64)  # each batch has its own
        self.standardise: Callable[[Tensor], Tensor] | None = None  # of numbers in their own units

    def epoch(self, epoch: int, batch_size: int, first: int = 0) -> Iterator[Batch]:
        """Yield the batches of a streamed epoch, from number `first` on; `batch_size` counts images of all ranks."""
        own = batch_size // self.rank.world_size
        steps = len(self.data) // batch_size
        decoded = prefetch(
            lambda item: self._read(epoch, *item),
            self._rows(epoch, first * own, steps * own),
            workers=self.config.workers or default_workers(self.rank),
            waiting=3 * own,
        )
        for step in range(first, steps):
            rows = [next(decoded) for _ in range(own)]
            pixels, labels = (
                torch.stack([pixels for pixels, _ in rows]),
                torch.tensor(np.array([row[1] for row in rows])),
            )
            labels = labels if self.standardise is None else self.standardise(labels)
            numbers = self._numbers(step * own, own)
            if self.device.type == "cuda":
                pixels = pixels.pin_memory()
            moved = pixels.to(self.device, non_blocking=True)
            copies = torch.zeros(own, dtype=torch.int64, device=self.device)
            yield Batch(numbers.to(self.device), copies, moved, labels.to(self.device))

    def _rows(self, epoch: int, first: int, end: int) -> Iterator[tuple[int, ImageStream, StreamRow]]:
        """Yield this rank's rows of a streamed epoch from number `first` to `end`, with numbers and their stream."""
        number, skipped = first, 0
        for turn in count():  # again, if the rank's files end before the epoch does
            seed = self.config.seed * 1009 + turn
            stream = self.data.stream.shard(self.rank.rank, self.rank.world_size).shuffled(seed, epoch, SHUFFLE_BUFFER)
            seen = 0
            for row in stream.undecoded():
                seen += 1
                if skipped < first:
                    skipped += 1
                    continue
                if number == end:
                    return
                yield number, stream, row
                number += 1
            if not seen:
                raise ValueError(f"{self.data.name} has no image for rank {self.rank.rank}: start fewer processes")
            if number == end:
                return

    def _read(self, epoch: int, number: int, stream: ImageStream, row: StreamRow) -> tuple[Tensor, Any]:
        """Decode a row of a stream for a batch: a cropped image and its label, or its targets `[k]`."""
        image, label = stream.read(row)
        random = CounterRandom.of(self.config.seed, epoch, self._numbers(number, 1), 0)
        return cropped(image, self.preprocess, self.config.crop, random), label

    def _numbers(self, first: int, count: int) -> Tensor:
        """Return the positions of batches in a streamed epoch, over all ranks, that seed the augmentation."""
        return (torch.arange(first, first + count)) * self.rank.world_size + self.rank.rank
