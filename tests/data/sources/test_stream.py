"""Streams: every image once over all ranks and workers, in an order that seed and epoch decide."""

import pytest
from tiny_sets import make_parquet, number_of

pytest.importorskip("datasets")

from torch.utils.data import DataLoader

from vitreous.data.images import ImageError
from vitreous.data.sources.stream import stream_dataset

NAMES = ["cat", "dog"]


@pytest.fixture
def zoo(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.SLEEP_TIME_ON_THREADS_SHUTDOWN", 0.1, raising=False)  # 5 s after each epoch
    for part in range(4):
        path = tmp_path / f"zoo/data/train-0000{part}-of-00004.parquet"
        make_parquet(path, [i % 2 for i in range(6)], first=6 * part, names=NAMES)
    make_parquet(tmp_path / "zoo/data/test-00000-of-00001.parquet", [1, 0], first=50, names=NAMES)
    return tmp_path / "zoo"


def numbers(stream):
    return [number_of(image) for image, _ in stream]


@pytest.mark.parametrize("prefix", ["", "hf:"])
def test_a_stream_gives_images_labels_and_class_names(zoo, tmp_path, prefix):
    stream = stream_dataset(f"{prefix}{zoo}", "train", tmp_path / "cache")
    assert stream.class_names == ("cat", "dog")
    assert numbers(stream) == list(range(24))
    assert [label for _, label in stream] == [0, 1] * 12
    assert numbers(stream_dataset(f"{prefix}{zoo}", "test", tmp_path / "cache")) == [50, 51]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3])  # four files are shared by two, and image by image by three
def test_ranks_share_the_images_without_overlap(zoo, ranks):
    for stream in (stream_dataset(zoo), stream_dataset(zoo).shuffled(seed=1, epoch=2, buffer=5)):
        parts = [numbers(stream.shard(rank, ranks)) for rank in range(ranks)]
        assert sorted(number for part in parts for number in part) == list(range(24))
        assert max(len(part) for part in parts) - min(len(part) for part in parts) <= 1
    with pytest.raises(ValueError, match="rank has to be from 0 to 1, got 2"):
        stream_dataset(zoo).shard(2, 2)


def test_workers_share_the_images_of_a_rank(zoo):
    loader = DataLoader(stream_dataset(zoo).shard(1, 2), batch_size=None, num_workers=2)
    assert sorted(numbers(loader)) == sorted(numbers(stream_dataset(zoo).shard(1, 2)))


@pytest.mark.slow
def test_seed_and_epoch_decide_the_order(zoo):
    stream = stream_dataset(zoo)
    first = numbers(stream.shuffled(seed=1, epoch=0))
    assert first == numbers(stream.shuffled(seed=1, epoch=0))
    assert sorted(first) == list(range(24))
    assert len({tuple(numbers(stream.shuffled(seed, epoch))) for seed in (1, 9) for epoch in (0, 1)}) == 4
    assert len({tuple(numbers(stream.shuffled(1, epoch).shard(0, 2))) for epoch in range(3)}) == 3
    assert numbers(stream) == list(range(24))  # the stream itself is as it was


def test_a_broken_image_is_named_and_the_rest_goes_on(tmp_path):
    make_parquet(tmp_path / "test-0.parquet", [0, 1], names=NAMES, images=[b"not an image", b"neither"])
    make_parquet(tmp_path / "test-1.parquet", [0], first=7, names=NAMES)
    reader = iter(stream_dataset(tmp_path, "test"))
    for name in ("0.png", "1.png"):
        with pytest.raises(ImageError, match=f"{name}: not an image"):
            next(reader)
    assert number_of(next(reader)[0]) == 7


def test_a_stream_needs_names_for_its_classes(tmp_path):
    make_parquet(tmp_path / "train-0.parquet", ["dog", "cat"])
    with pytest.raises(ValueError, match="a stream cannot look ahead: give class_names"):
        stream_dataset(tmp_path)
    assert [label for _, label in stream_dataset(tmp_path, class_names=NAMES)] == [1, 0]
    with pytest.raises(ValueError, match="has class 'dog': expected"):
        next(iter(stream_dataset(tmp_path, class_names=["emu"])))
    with pytest.raises(FileNotFoundError, match=r"has no test split \(it has train\)"):
        stream_dataset(tmp_path, "test")
    with pytest.raises(ValueError, match="a stream reads one split"):
        stream_dataset(tmp_path, "train+validation")
