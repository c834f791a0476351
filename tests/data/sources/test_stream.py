"""Streams: every image once over all ranks and workers, in an order that seed and epoch decide."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tiny_sets import make_parquet, number_of, png

pytest.importorskip("datasets")

from torch.utils.data import DataLoader

from vitreous.data.images import ImageError
from vitreous.data.sources.stream import choose_targets, stream_dataset, take_first

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


# --- several labels, numbers ------------------------------------------------------------------------------------------


def write(path, columns, features=None):
    """A parquet file with an image for each row, and the columns given as pyarrow arrays."""
    count = len(next(iter(columns.values())))
    table = pa.table({"image": pa.array([png(i) for i in range(count)], pa.binary()), **columns})
    if features is not None:
        known = {"image": {"_type": "Image"}, **features}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": known}})})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)
    return path.parent


LISTED = {"labels": {"feature": {"names": ["cat", "dog", "outdoor"], "_type": "ClassLabel"}, "_type": "List"}}


def test_lists_of_named_classes_are_several_labels(tmp_path):
    lists = pa.array([[0, 2], [], None, [1]], pa.list_(pa.int64()))
    stream = stream_dataset(write(tmp_path / "zoo/train-0.parquet", {"labels": lists}, LISTED))
    assert (stream.task, stream.class_names, stream.images) == ("multilabel", ("cat", "dog", "outdoor"), 4)
    assert [target.tolist() for _, target in stream] == [[1, 0, 1], [0, 0, 0], [0, 0, 0], [0, 1, 0]]
    assert numbers(stream) == [0, 1, 2, 3]
    kept = take_first(stream, 9)
    assert (kept.task, len(kept), kept.targets.tolist()[0]) == ("multilabel", 4, [1, 0, 1])
    assert number_of(kept.image(3)) == 3


def test_columns_of_true_and_false_are_labels_and_of_floats_are_numbers(tmp_path):
    flags = {"cat": pa.array([True, False]), "outdoor": pa.array([False, False]), "id": pa.array([7, 8])}
    stream = stream_dataset(write(tmp_path / "flags/train-0.parquet", flags))
    assert (stream.task, stream.class_names) == ("multilabel", ("cat", "outdoor"))
    assert [target.tolist() for _, target in stream] == [[1, 0], [0, 0]]
    ages = {"age": pa.array([31.5, 42.0], pa.float32()), "height": pa.array([1.75, 1.5]), "rooms": pa.array([1, 2])}
    folder = write(tmp_path / "ages/train-0.parquet", ages)
    stream = stream_dataset(folder)
    assert (stream.task, stream.class_names) == ("regress", ("age", "height"))
    assert [target.tolist() for _, target in stream] == [[31.5, 1.75], [42.0, 1.5]]
    assert {target.dtype for _, target in stream} == {np.dtype("float32")}
    assert stream_dataset(folder, task="multilabel").class_names == ("rooms",)


def test_a_column_of_true_and_false_may_be_called_label(tmp_path):
    flags = {"label": pa.array([False, True, True]), "night": pa.array([True, False, True])}
    stream = stream_dataset(write(tmp_path / "flags/train-0.parquet", flags))
    assert (stream.task, stream.class_names) == ("multilabel", ("label", "night"))
    assert [target.tolist() for _, target in stream] == [[0, 1], [1, 0], [1, 1]]


def test_a_cell_that_is_neither_is_named(tmp_path):
    stream = stream_dataset(write(tmp_path / "ages/train-0.parquet", {"age": pa.array([31.5, None, float("nan")])}))
    reader = iter(stream)
    next(reader)
    with pytest.raises(ValueError, match="row 1 of ages is empty in column 'age': fill in a number"):
        next(reader)
    with pytest.raises(ValueError, match="row 2 of ages has 'nan' in column 'age': expected a number"):
        next(reader)
    flags = stream_dataset(write(tmp_path / "flags/train-0.parquet", {"cat": pa.array([1, 2])}), task="multilabel")
    with pytest.raises(ValueError, match="row 1 of flags has '2' in column 'cat': expected 0 or 1"):
        list(flags)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("segment", "masks are not read from a stream"),
        ("regress", "zoo has no columns of numbers: it has image, labels"),
        (None, "does not name its classes, and a stream cannot look ahead"),
    ],
)
def test_what_a_stream_cannot_be_learned_for_is_one_line(task, message, tmp_path):
    folder = write(tmp_path / "zoo/train-0.parquet", {"labels": pa.array([["cat"], ["dog"]])})
    with pytest.raises(ValueError, match=message):
        stream_dataset(folder, task=task)
    named = stream_dataset(folder, class_names=["cat", "dog"])
    assert [target.tolist() for _, target in named] == [[1, 0], [0, 1]]


def test_a_class_comes_before_other_columns():
    image, number = {"_type": "Image"}, {"_type": "Value", "dtype": "float64"}
    named = {"_type": "ClassLabel", "names": ["cat"]}
    for label in (named, {"_type": "Value", "dtype": "int64"}, {"_type": "Value", "dtype": "large_string"}):
        assert choose_targets({"image": image, "label": label, "score": number}, "zoo", None) == ("classify", ())
    assert choose_targets({"image": image, "label": named, "score": number}, "zoo", "regress")[1] == ("score",)
