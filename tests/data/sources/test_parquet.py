"""Parquet files as the Hub lays them out: found, read a row group at a time, by threads and processes alike."""

import multiprocessing
import os
import pickle
import random
import subprocess
import sys
import threading

import numpy as np
import pytest
from tiny_sets import make_folder, make_parquet, number_of, numbers, put_numbers

from vitreous.data.datasets import open_dataset
from vitreous.data.images import ImageError
from vitreous.data.prefetch import prefetch
from vitreous.data.sources.parquet import RowGroups, choose_columns, number_labels

NAMES = ["cat", "dog"]


def make_splits(folder):
    make_parquet(folder / "train-00000-of-00002.parquet", [0, 1, 0, 1, 0], names=NAMES)
    make_parquet(folder / "train-00001-of-00002.parquet", [1, 0, 1], first=5, names=NAMES)
    make_parquet(folder / "validation-00000-of-00001.parquet", [1], first=8, names=NAMES)
    make_parquet(folder / "test-00000-of-00001.parquet", [0, 1], first=9, names=NAMES)
    return folder


@pytest.mark.parametrize("place", [".", "data"])
def test_a_folder_gives_its_splits(tmp_path, place):
    make_splits(tmp_path / place)
    train = open_dataset(tmp_path, "train")
    assert (train.class_names, train.labels) == (("cat", "dog"), (0, 1, 0, 1, 0, 1, 0, 1))
    assert numbers(train) == list(range(8))
    assert numbers(open_dataset(tmp_path)) == [9, 10]
    assert numbers(open_dataset(tmp_path, "validation")) == [8]
    assert numbers(open_dataset(str(tmp_path), "train+validation")) == list(range(9))


def test_files_may_lie_in_a_folder_for_each_split(tmp_path):
    make_parquet(tmp_path / "train/0000.parquet", [0, 1])
    make_parquet(tmp_path / "test/0000.parquet", [1], first=5)
    assert numbers(open_dataset(tmp_path, "train")) == [0, 1]
    assert numbers(open_dataset(tmp_path, "test")) == [5]


def test_a_file_or_pattern_that_is_named_is_there_to_test_on(tmp_path):
    make_splits(tmp_path)
    assert numbers(open_dataset(tmp_path / "train-00001-of-00002.parquet")) == [5, 6, 7]
    assert numbers(open_dataset(tmp_path / "train-*.parquet")) == list(range(8))
    assert numbers(open_dataset(tmp_path / "*.parquet")) == [9, 10]  # several splits: the one that was asked for
    with pytest.raises(FileNotFoundError, match="has no train split"):
        open_dataset(tmp_path / "test-00000-of-00001.parquet", "train")


def test_train_files_alone_are_not_tested_on_by_accident(tmp_path):
    make_parquet(tmp_path / "train-00000-of-00001.parquet", [0, 1])
    with pytest.raises(FileNotFoundError, match=r"no test split \(it has train\): expected .*/test-\*.parquet"):
        open_dataset(tmp_path)


def test_features_beside_folders_of_images_are_not_the_set(tmp_path):
    make_folder(tmp_path, {"cats": 1, "dogs": 1})
    make_parquet(tmp_path / "features.parquet", [0])
    assert open_dataset(tmp_path).class_names == ("cats", "dogs")


@pytest.mark.parametrize(
    ("column", "label", "flat"), [("img", "label", False), ("image", "labels", True), ("image", "fine_label", False)]
)
def test_columns_have_the_usual_names(tmp_path, column, label, flat):
    path = make_parquet(tmp_path / "a.parquet", [0, 1], column=column, label=label, flat=flat)
    data = open_dataset(path)
    assert (numbers(data), data.labels) == ([0, 1], (0, 1))


def test_classes_without_names_are_numbered_alike_in_all_splits(tmp_path):
    make_parquet(tmp_path / "train-0.parquet", [0, 3, 1])
    make_parquet(tmp_path / "test-0.parquet", [0])
    assert (
        open_dataset(tmp_path, "train").class_names
        == open_dataset(tmp_path, "test").class_names
        == ("0", "1", "2", "3")
    )
    make_parquet(tmp_path / "words/train-0.parquet", ["dog", "cat"])
    make_parquet(tmp_path / "words/test-0.parquet", ["dog"])
    assert open_dataset(tmp_path / "words").labels == (1,)
    assert open_dataset(tmp_path / "words").class_names == ("cat", "dog")


def test_a_broken_image_is_named_by_file_and_row(tmp_path):
    cells = [b"not an image", b"", None, b"\x89PNG\r\n\x1a\n"]
    make_parquet(tmp_path / "test-0.parquet", [0, 0], names=NAMES)
    make_parquet(tmp_path / "test-1.parquet", [0, 0, 1, 1], names=NAMES, images=cells)
    data = open_dataset(tmp_path)
    reasons = ["not an image", "no bytes of an image", "no bytes of an image", "damaged or truncated"]
    for row, reason in enumerate(reasons):
        with pytest.raises(ImageError, match=rf"test-1.parquet row {row}: .*{reason}"):
            data.image(2 + row)
    assert data.describe(3) == "test-1.parquet row 1"
    for outside in (-1, 6):
        with pytest.raises(IndexError):
            data.image(outside)


def test_files_that_do_not_fit_are_refused_by_name(tmp_path):
    (tmp_path / "bad.parquet").write_bytes(b"version https://git-lfs.github.com/spec/v1")
    with pytest.raises(ValueError, match="bad.parquet cannot be read as parquet: download it again"):
        open_dataset(tmp_path / "bad.parquet")
    with pytest.raises(ValueError, match="no rows"):
        open_dataset(make_parquet(tmp_path / "empty.parquet", [], names=NAMES))
    make_parquet(tmp_path / "two/test-0.parquet", [0], names=NAMES)
    make_parquet(tmp_path / "two/test-1.parquet", [0], names=["dog", "cat"])
    with pytest.raises(ValueError, match="test-1.parquet and test-0.parquet differ"):
        open_dataset(tmp_path / "two")
    with pytest.raises(FileNotFoundError, match="there is no parquet file"):
        open_dataset(tmp_path / "none.parquet")
    make_parquet(tmp_path / "two/other.parquet", [0], names=NAMES)
    with pytest.raises(ValueError, match="such as other.parquet: name all by split, or none"):
        open_dataset(tmp_path / "two")


def test_opening_reads_no_image(tmp_path, monkeypatch):
    make_splits(tmp_path)
    monkeypatch.setattr(RowGroups, "read", lambda *place: pytest.fail("an image was read"))
    data = open_dataset(tmp_path, "train+validation")
    assert len(data.labels) == 9
    assert len(data.fingerprint) == 64
    assert data.describe(7) == "train-00001-of-00002.parquet row 2"


def test_the_fingerprint_changes_with_the_files(tmp_path):
    path = make_parquet(tmp_path / "a.parquet", [0, 1])
    before = open_dataset(path).fingerprint
    assert open_dataset(path).fingerprint == before
    os.utime(path, ns=(1, 1))
    assert open_dataset(path).fingerprint != before


def test_row_groups_are_read_once_and_the_oldest_forgotten(tmp_path, monkeypatch):
    from vitreous.data.sources import parquet

    path = make_parquet(tmp_path / "a.parquet", [0] * 9, group=3)
    reads = []
    original = parquet._File.read
    monkeypatch.setattr(parquet._File, "read", lambda file, group: reads.append(group) or original(file, group))
    groups = RowGroups((path,), "image")
    for row in (0, 8, 1, 3, 2, 7):
        assert groups.read(0, row)
    assert reads == [0, 2, 1]
    reads.clear()
    groups = RowGroups((path,), "image", cache_bytes=1)  # one is always kept, however large
    for row in (0, 1, 3, 4, 0):
        assert groups.read(0, row)
    assert reads == [0, 1, 0]


CUT_SHORT = """
import os, sys
from vitreous.data.datasets import open_dataset
data = open_dataset(sys.argv[1])
data.image(0)
os.truncate(sys.argv[1], 16)
try:
    data.image(len(data) - 1)
except ValueError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_file_cut_short_while_it_is_open_is_named_and_does_not_end_the_process(tmp_path):
    make_parquet(tmp_path / "all.parquet", [0, 1] * 40, names=NAMES, group=2)
    words = [sys.executable, "-c", CUT_SHORT, str(tmp_path / "all.parquet")]
    done = subprocess.run(words, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": ":".join(sys.path)})
    assert (done.returncode, done.stderr) == (0, "")  # a mapped file would end it by SIGBUS
    assert "all.parquet row 79: the parquet file is damaged" in done.stdout


def test_many_threads_read_the_images_of_their_rows(tmp_path):
    data = open_dataset(make_parquet(tmp_path / "a.parquet", [0] * 300, group=7))
    data.image.groups.cache_bytes = 2000  # a few groups, so that they come and go
    order = random.Random(0).choices(range(300), k=1500)
    assert [number_of(image) for image in prefetch(data.image, order, workers=8)] == order


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_another_process_opens_the_files_again(tmp_path, method):
    data = open_dataset(make_splits(tmp_path), "train").take([7, 0, 5])
    assert numbers(data) == [7, 0, 5]
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    lock = data.image.args[0].groups._opened.lock
    with lock:  # as if another thread was reading at the very moment of the fork
        process = context.Process(target=put_numbers, args=(data, queue), daemon=True)
        process.start()
    try:
        assert queue.get(timeout=60) == [7, 0, 5]
    finally:
        process.kill()
        process.join()


def test_a_pickled_dataset_leaves_its_cache_behind(tmp_path):
    data = open_dataset(make_parquet(tmp_path / "a.parquet", [0] * 500, group=500))
    size = len(pickle.dumps(data))
    assert numbers(data)[-1] == 499
    assert len(pickle.dumps(data)) == size
    assert isinstance(pickle.loads(pickle.dumps(data)).image.groups._opened.lock, type(threading.Lock()))


def test_real_cifar10_has_its_images_and_classes(shared):
    train, test = (open_dataset(shared / "data/cifar10", split) for split in ("train", "test"))
    assert (len(train), len(test), train.class_names[3]) == (50000, 10000, "cat")
    assert np.bincount(train.labels).tolist() == [5000] * 10
    assert train.image(49999).size == (32, 32)
    assert train.describe(49999) == "train-00002-of-00003.parquet row 16665"


# --- columns ---

IMAGE, VALUE = {"_type": "Image"}, {"_type": "Value"}


def classes(*names):
    return {"_type": "ClassLabel", "names": list(names)}


def test_cifar100s_fine_classes_are_preferred_to_the_coarse_ones():
    features = {"img": IMAGE, "fine_label": classes("apple", "bear"), "coarse_label": classes("fruit")}
    assert choose_columns(features, "cifar100").label == "fine_label"
    assert choose_columns(features, "cifar100").class_names == ("apple", "bear")


def test_a_column_that_says_it_holds_classes_wins_over_its_name():
    assert choose_columns({"image": IMAGE, "breed": classes("pug"), "text": VALUE}, "dogs").label == "breed"
    assert choose_columns({"photo": IMAGE, "label": VALUE}, "dogs").image == "photo"


def test_a_table_without_such_columns_is_refused_with_what_it_has():
    with pytest.raises(ValueError, match="words has no single column of images: .* image or img; it has text, label"):
        choose_columns({"text": VALUE, "label": classes("good", "bad")}, "words")
    with pytest.raises(ValueError, match="faces has no single column of classes: .*; it has image, age"):
        choose_columns({"image": IMAGE, "age": VALUE}, "faces")
    with pytest.raises(ValueError, match="pairs has no single column of images"):
        choose_columns({"left": IMAGE, "right": IMAGE, "label": VALUE}, "pairs")


def test_missing_and_impossible_classes_are_refused():
    with pytest.raises(ValueError, match="2 of 3 images of zoo have no class"):
        number_labels([None, 0, -1], ("a",), "zoo")
    with pytest.raises(ValueError, match="zoo has class 2, but its description names 2 classes"):
        number_labels([0, 2], ("a", "b"), "zoo")
    with pytest.raises(ValueError, match="whole numbers or words, got float"):
        number_labels([0.5], None, "zoo")
    with pytest.raises(ValueError, match="does not name: 'c'"):
        number_labels(["a", "c"], ("a", "b"), "zoo")
