"""Learning from a stream: images come once in an epoch, in an order that only runs forwards, each rank its own share.

The order is a function of (seed, epoch, rank), so that a run which goes on in the middle of an epoch passes over what
it has seen. A rank whose files hold fewer images than its share of the updates begins them anew.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import torch
from torch import Tensor

from vitreous.data.counter_random import CounterRandom
from vitreous.data.datasets import open_dataset
from vitreous.data.image_dataset import ImageDataset
from vitreous.data.prefetch import prefetch
from vitreous.data.preprocess import Preprocess
from vitreous.data.sources.parquet import find_parquet
from vitreous.data.sources.stream import ImageStream, stream_dataset, take_first
from vitreous.runtime.distributed import Rank
from vitreous.training.batches import Batch, cropped, usual_workers
from vitreous.training.config import TrainConfig

BUFFER = 10_000  # rows, as they are encoded, that the shuffle chooses from: about 1 GB of ImageNet
TESTED = 50_000  # images of a stream's test split that are kept in memory, as they are encoded


@dataclass(frozen=True)
class Streamed:
    """A stream that says how many images make an epoch: what a run knows of what it learns from."""

    stream: ImageStream
    images: int

    @property
    def name(self) -> str:
        return self.stream.name

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.stream.class_names

    @property
    def labels(self) -> tuple[int, ...]:
        return (self.images,)  # nobody knows them beforehand; what tells this stream from another is their number

    def __len__(self) -> int:
        return self.images

    def describe(self, i: int) -> str:
        return f"#{i} of the epoch's stream"


def open_stream(config: TrainConfig, data_root: Path | None) -> tuple[Streamed, ImageDataset]:
    """What to learn from as it comes, and the test images as a set."""
    stream = stream_dataset(config.data, config.train_split, data_root)
    images = config.epoch_images or stream.images
    if images is None:
        raise ValueError(f"{config.data} does not say how many images it has: pass --epoch-images N")
    if find_parquet(config.data):
        tested = open_dataset(config.data, "test", data_root)  # in order, files can be read image by image
    else:
        tested = take_first(stream_dataset(config.data, "test", data_root, stream.class_names), TESTED)
    if tested.class_names != stream.class_names:
        tested = tested.with_classes(stream.class_names)
    return Streamed(stream, images), tested


class StreamSource:
    """A stream as a device takes it: the same as `train.source.Source`, without anything that needs the whole set."""

    pixels: Tensor | None = None
    resident = False

    def __init__(
        self, data: Streamed, preprocess: Preprocess, config: TrainConfig, device: torch.device, place: Rank
    ) -> None:
        self.data, self.preprocess, self.config, self.device, self.place = data, preprocess, config, device, place
        self.labels = torch.empty(0, dtype=torch.int64)  # each batch brings its own

    def epoch(self, epoch: int, batch_size: int, first: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, from number `first` on; `batch_size` is that of all ranks together."""
        own = batch_size // self.place.world_size
        steps = len(self.data) // batch_size
        decoded = prefetch(
            lambda item: self._read(epoch, *item),
            self._rows(epoch, first * own, steps * own),
            workers=self.config.workers or usual_workers(self.place),
            waiting=3 * own,
        )
        for step in range(first, steps):
            rows = [next(decoded) for _ in range(own)]
            pixels, labels = torch.stack([pixels for pixels, _ in rows]), torch.tensor([label for _, label in rows])
            numbers = self._numbers(step * own, own)
            if self.device.type == "cuda":
                pixels = pixels.pin_memory()
            moved = pixels.to(self.device, non_blocking=True)
            copies = torch.zeros(own, dtype=torch.int64, device=self.device)
            yield Batch(numbers.to(self.device), copies, moved, labels.to(self.device))

    def _rows(self, epoch: int, first: int, end: int) -> Iterator[tuple[int, ImageStream, tuple[int, dict]]]:
        """This rank's rows of an epoch from number `first` to `end`, with their numbers and the stream they are of."""
        number, skipped = first, 0
        for turn in count():  # another turn where the rank's files are at their end before the epoch is
            seed = self.config.seed * 1009 + turn
            stream = self.data.stream.shard(self.place.rank, self.place.world_size).shuffled(seed, epoch, BUFFER)
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
                raise ValueError(f"{self.data.name} has no image for rank {self.place.rank}: start fewer processes")
            if number == end:
                return

    def _read(self, epoch: int, number: int, stream: ImageStream, row: tuple[int, dict]) -> tuple[Tensor, int]:
        image, label = stream.read(row)
        chance = CounterRandom.of(self.config.seed, epoch, self._numbers(number, 1), 0)
        return cropped(image, self.preprocess, self.config.crop, chance), label

    def _numbers(self, first: int, count: int) -> Tensor:
        """What augmentation is drawn by: the place in the epoch, over all ranks."""
        return (torch.arange(first, first + count)) * self.place.world_size + self.place.rank
