"""Datasets by name: what a name means, and torchvision's datasets with and without a network."""

import os
import pickle
import struct
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_sets import colour_folder, make_folder, make_parquet, number_of, png

from vitreous.data.datasets import DATASETS, divide, from_folder, open_dataset, open_split
from vitreous.data.image_dataset import ImageDataset


@pytest.fixture
def offline(monkeypatch):
    def refuse(*request, **options):
        raise urllib.error.URLError("no network")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)


@pytest.mark.parametrize("name", [name for name in DATASETS if name != "digits"])
def test_without_a_network_one_line_says_what_is_missing(name, tmp_path, offline, capfd):
    with pytest.raises(FileNotFoundError) as caught:
        open_dataset(name, root=tmp_path)
    text = str(caught.value)
    assert str(tmp_path) in text
    assert "\n" not in text
    assert "has to be put there" in text if name == "imagenet" else "check the network, or name a folder" in text
    assert capfd.readouterr().out == ""


def write_mnist(root):
    """The four files of MNIST with three images each."""
    folder = root / "MNIST/raw"
    folder.mkdir(parents=True)
    for part, first in (("train", 0), ("t10k", 50)):
        pixels = np.repeat(np.arange(first, first + 3, dtype=np.uint8), 28 * 28)
        (folder / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">4i", 0x803, 3, 28, 28) + pixels.tobytes())
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">2i", 0x801, 3) + bytes([7, 8, 9]))


def test_what_is_already_there_is_opened_without_a_network(tmp_path, offline):
    write_mnist(tmp_path)
    train, test = (open_dataset("mnist", split, tmp_path) for split in ("train", "test"))
    assert test.labels == (7, 8, 9)
    assert (train.image(1).getpixel((0, 0)), test.image(2).getpixel((0, 0))) == (1, 52)
    assert test.describe(2) == "MNIST test #2"
    assert train.fingerprint != test.fingerprint == open_dataset("mnist", "test", tmp_path).fingerprint
    assert pickle.loads(pickle.dumps(test)).image(2).getpixel((0, 0)) == 52


class Flowers:
    """Stands in for torchvision's Flowers102: files and labels, and an image is never opened."""

    classes = ("rose", "lily")

    def __init__(self, root, split, download):
        files = sorted((Path(root) / split).rglob("*.png"))
        self._image_files, self._labels = files, [i % 2 for i in range(len(files))]

    def __getitem__(self, i):
        pytest.fail("opened by torchvision, although the file is known")


def test_named_flowers_join_train_and_validation(tmp_path, monkeypatch):
    import torchvision.datasets

    monkeypatch.setattr(torchvision.datasets, "Flowers102", Flowers)
    for split, first in (("train", 0), ("val", 2), ("test", 4)):
        make_folder(tmp_path / split, {"flowers": 2}, first)
    data = open_dataset("flowers102", "train+validation", tmp_path)
    assert data.labels == (0, 1, 0, 1)
    assert [number_of(data.image(i)) for i in range(4)] == [0, 1, 2, 3]
    assert data.describe(2) == str(tmp_path / "val/flowers/2.png")
    with pytest.raises(FileNotFoundError, match=r"pets has no validation split \(it has train, test\)"):
        open_dataset("pets", "train+validation", tmp_path)


def test_a_folder_comes_before_a_dataset_of_the_same_name(tmp_path, monkeypatch):
    make_folder(tmp_path / "digits", {"a": 1, "b": 1})
    monkeypatch.chdir(tmp_path)
    assert open_dataset("digits").class_names == ("a", "b")


def test_names_that_mean_nothing_are_refused_in_one_line(tmp_path):
    for split in ("dev", "", "train+", "train+train"):
        with pytest.raises(ValueError, match="split"):
            open_dataset("digits", split)
    with pytest.raises(FileNotFoundError, match="neither a folder nor a known dataset .*cifar10"):
        open_dataset("cifar11")
    (tmp_path / "cat.jpg").write_bytes(b"")
    with pytest.raises(ValueError, match="is a single file"):
        open_dataset(tmp_path / "cat.jpg")


def test_digits_are_named_by_their_index_and_can_be_pickled():
    data = open_dataset("digits")
    assert data.describe(1) == "digits #5"
    copy = pickle.loads(pickle.dumps(data))
    assert copy.image(1).tobytes() == data.image(1).tobytes()
    assert copy.fingerprint == open_dataset("digits").fingerprint != open_dataset("digits", "train").fingerprint


def test_the_list_of_datasets_says_what_else_can_be_named(capsys):
    from vitreous.cli.listing import datasets

    datasets()
    text = capsys.readouterr().out
    assert all(name in text for name in (*DATASETS, ".parquet", "org/name", "sub-folder"))


def test_folders_and_splits(tmp_path):
    with pytest.raises(FileNotFoundError, match="neither a folder nor a known dataset"):
        open_dataset(tmp_path / "nothing")
    with pytest.raises(ValueError, match="no sub-folders"):
        open_dataset(tmp_path)
    (tmp_path / "cat").mkdir()
    with pytest.raises(ValueError, match="no images"):
        open_dataset(tmp_path)
    with pytest.raises(FileNotFoundError, match="no train/ folder"):
        open_dataset(tmp_path, "train")
    colour_folder(tmp_path / "whole", ["a", "b"], each=5)
    found = open_dataset(tmp_path / "whole")
    assert (len(found), found.class_names, found.labels) == (10, ("a", "b"), (0,) * 5 + (1,) * 5)
    assert found.spread(4).labels == (0, 0, 1, 1)


def test_digits_are_split_without_overlap():
    train, test = DATASETS["digits"](None, "train"), DATASETS["digits"](None, "test")
    assert len(train) + len(test) == 1797
    seen = {np.asarray(train.image(i)).tobytes() for i in range(len(train))}
    assert sum(np.asarray(test.image(i)).tobytes() in seen for i in range(len(test))) == 0
    assert test.image(0).size == (8, 8)


# --- folders ---


def test_an_image_is_named_by_its_file(tmp_path):
    data = from_folder(make_folder(tmp_path / "pics", {"cats": 2, "dogs": 1}))
    assert data.describe(2) == str(tmp_path / "pics/dogs/2.png") == str(data.image(2))
    assert pickle.loads(pickle.dumps(data)).image(2) == data.image(2)


def test_the_fingerprint_of_a_folder_sees_every_change(tmp_path):
    folder = make_folder(tmp_path / "pics", {"cats": 2, "dogs": 2})
    seen = [from_folder(folder).fingerprint]

    def changed():
        seen.append(from_folder(folder).fingerprint)
        return len(set(seen)) == len(seen)

    assert from_folder(folder).fingerprint == seen[0]
    os.utime(folder / "cats/0.png", ns=(1, 1))
    assert changed()  # a later time
    (folder / "cats/0.png").write_bytes(png(0) + b"\0")
    os.utime(folder / "cats/0.png", ns=(1, 1))
    assert changed()  # the same time, another size
    (folder / "cats/0.png").rename(folder / "cats/00.png")
    assert changed()  # another name
    (folder / "cats/00.png").rename(folder / "dogs/00.png")
    assert changed()  # another class
    (folder / "dogs/00.png").unlink()
    assert changed()  # one image less
    folder = folder.rename(tmp_path / "moved")
    assert changed()  # another place: archives may be unpacked with equal names, sizes and times


def test_splits_are_found_by_their_usual_names(tmp_path):
    for part, first in (("training", 0), ("val", 10), ("test", 20)):
        make_folder(tmp_path / part, {"a": 1, "b": 1}, first)
    assert number_of(open_dataset(tmp_path, "train").image(0)) == 0
    assert number_of(open_dataset(tmp_path, "validation").image(0)) == 10
    assert number_of(open_dataset(tmp_path, "test").image(0)) == 20
    both = open_dataset(str(tmp_path), "train+validation")
    assert [number_of(both.image(i)) for i in range(4)] == [0, 1, 10, 11]


def test_a_validation_folder_is_the_test_split_if_there_is_no_other(tmp_path):
    make_folder(tmp_path / "train", {"a": 1, "b": 1})
    with pytest.raises(FileNotFoundError, match=r"no test/ folder \(it has train\): expected .*/test/<class>/<image>"):
        open_dataset(tmp_path, "test")
    make_folder(tmp_path / "val", {"a": 1, "b": 1}, 10)
    assert number_of(open_dataset(tmp_path, "test").image(0)) == 10


# --- train and test images: reproducible, without overlap, with the same classes ---


def names(data):
    return {Path(data.describe(i)).name for i in range(len(data))}


def test_a_folder_of_classes_is_divided_without_overlap_or_loss(tmp_path):
    folder = make_folder(tmp_path / "pics", {"cats": 60, "dogs": 40})
    train, test = open_split(folder)
    assert train.class_names == test.class_names == ("cats", "dogs")
    assert names(train) | names(test) == {f"{i}.png" for i in range(100)}
    assert not names(train) & names(test)
    assert 10 <= len(test) <= 30
    assert set(train.labels) == set(test.labels) == {0, 1}
    assert len(open_split(folder, held_out=0.5)[1]) > len(test)


def test_the_division_hangs_on_names_and_seed_alone(tmp_path):
    one = make_folder(tmp_path / "one", {"cats": 30, "dogs": 30})
    other = make_folder(tmp_path / "deep/other", {"cats": 30, "dogs": 30})
    assert names(open_split(one)[1]) == names(open_split(str(other) + "/")[1])
    assert names(open_split(one)[1]) != names(open_split(one, seed=1)[1])


def test_a_new_image_does_not_move_the_others(tmp_path):
    folder = make_folder(tmp_path, {"cats": 50, "dogs": 50})
    before = [names(part) for part in open_split(folder)]
    for number in range(20):
        (folder / "cats" / f"a{number}.png").write_bytes(png(500))
    after = [names(part) for part in open_split(folder)]
    assert before[0] <= after[0]
    assert before[1] <= after[1]
    assert len(after[1]) > len(before[1])


def test_the_division_is_the_same_for_good():
    """Pinned: another hash would silently put images that a model has seen among those it is tested on."""
    data = ImageDataset("zoo", ("cat", "dog"), (0,) * 10 + (1,) * 10, Path)
    _, test = divide(data, [f"{name}/{i}.png" for name in ("cat", "dog") for i in range(10)], 0.3)
    assert [test.describe(i) for i in range(len(test))] == [f"zoo #{i}" for i in (1, 4, 5, 7, 12, 13, 18, 19)]


@given(st.lists(st.integers(0, 4), min_size=2, max_size=40), st.floats(0.01, 0.99), st.integers(0, 3))
def test_each_class_of_two_images_is_on_both_sides(labels, held_out, seed):
    data = ImageDataset("zoo", tuple("abcde"), tuple(labels), Path)
    keys = [str(i) for i in range(len(labels))]
    counts = {label: labels.count(label) for label in labels}
    if max(counts.values()) == 1:
        with pytest.raises(ValueError, match="one image a class"):
            divide(data, keys, held_out, seed)
        return
    train, test = divide(data, keys, held_out, seed)
    assert sorted(train.labels + test.labels) == sorted(labels)
    for label, count in counts.items():
        assert label in train.labels
        assert (label in test.labels) == (count > 1)


def test_a_dataset_with_two_splits_keeps_them(tmp_path):
    make_folder(tmp_path / "train", {"a": 3, "b": 3})
    make_folder(tmp_path / "val", {"a": 1, "b": 1}, 100)
    train, test = open_split(tmp_path)
    assert (len(train), len(test)) == (6, 2)
    assert number_of(test.image(0)) == 100


def test_what_is_learned_from_is_not_tested_on(tmp_path):
    make_folder(tmp_path / "train", {"a": 20, "b": 20})
    make_folder(tmp_path / "val", {"a": 20, "b": 20}, 100)
    train, test = open_split(tmp_path, train="train+validation")
    assert len(train) + len(test) == 80
    assert not names(train) & names(test)
    make_folder(tmp_path / "test", {"a": 1, "b": 1}, 200)
    train, test = open_split(tmp_path, train="train+validation")
    assert (len(train), len(test)) == (80, 2)


def test_a_train_folder_alone_is_divided(tmp_path):
    make_folder(tmp_path / "train", {"a": 20, "b": 20})
    train, test = open_split(tmp_path)
    assert len(train) + len(test) == 40


def test_test_labels_are_counted_in_the_classes_to_learn(tmp_path):
    make_folder(tmp_path / "train", {"a": 1, "b": 1, "c": 1})
    make_folder(tmp_path / "test", {"c": 2, "a": 1})
    train, test = open_split(tmp_path)
    assert train.class_names == test.class_names == ("a", "b", "c")
    assert test.labels == (0, 2, 2)


def test_parquet_files_of_one_split_are_divided(tmp_path):
    for part in range(3):
        labels = [i % 2 for i in range(20)]
        make_parquet(tmp_path / f"train-0000{part}-of-00003.parquet", labels, first=20 * part, names=["a", "b"])
    for name in (tmp_path, tmp_path / "train-*.parquet"):
        train, test = open_split(name)
        numbers = [{number_of(part.image(i)) for i in range(len(part))} for part in (train, test)]
        assert numbers[0] | numbers[1] == set(range(60))
        assert not numbers[0] & numbers[1]
        assert len(test) > 3
    make_parquet(tmp_path / "test-00000-of-00001.parquet", [0, 1], first=90, names=["a", "b"])
    train, test = open_split(tmp_path)
    assert (len(train), len(test)) == (60, 2)


def test_what_cannot_be_learned_from_is_refused_in_one_line(tmp_path):
    def refused(folder, **options):
        with pytest.raises(ValueError, match=".") as caught:
            open_split(folder, **options)
        text = str(caught.value)
        assert "\n" not in text
        return text

    only = make_folder(tmp_path / "only", {"cats": 5})
    assert refused(only) == f"training needs at least two classes: {only} has only 'cats'; add another"
    empty = make_folder(tmp_path / "empty", {"cats": 5, "dogs": 0, "emus": 0})
    assert "2 of 3 classes" in refused(empty)
    assert "'dogs', 'emus'" in refused(empty)
    assert "no images" in refused(make_folder(tmp_path / "none", {"cats": 0, "dogs": 0}))
    (only / "train.csv").write_text("image,label\n")
    assert refused(only).endswith(f"add another, or name the table of labels: --data {only / 'train.csv'}")
    assert "no sub-folders" in refused(make_folder(tmp_path / "nothing", {}))
    assert "one image a class" in refused(make_folder(tmp_path / "few", {"cats": 1, "dogs": 1}))
    make_folder(tmp_path / "strange/train", {"cats": 2, "dogs": 2})
    make_folder(tmp_path / "strange/test", {"cats": 2, "emus": 2})
    assert "test/ folder" in refused(tmp_path / "strange")
    assert "'emus'" in refused(tmp_path / "strange")
    assert "share between 0 and 1, got 1.5" in refused(only, held_out=1.5)
    assert "split must be one of" in refused(only, train="everything")
    one = make_parquet(tmp_path / "one.parquet", [1, 1, 1], names=["a", "b"])
    assert refused(one) == f"training needs at least two classes: {one} has only 'b'; add another"


def test_digits_keep_their_own_split():
    train, test = open_split("digits")
    assert (len(train), len(test)) == (1437, 360)
    with pytest.raises(FileNotFoundError, match=r"digits has no validation split \(it has train, test\)"):
        open_split("digits", train="train+validation")


def test_real_flowers_can_be_learned_from_train_and_validation(shared):
    folder = shared / "data/flowers102"
    assert [len(part) for part in open_split(folder)] == [1020, 6149]
    train, test = open_split(folder, train="train+validation")
    assert (len(train), len(test), len(set(test.labels))) == (2040, 6149, 102)
    assert train.describe(1020) == "validation-00000-of-00001.parquet row 0"


def test_a_folder_of_almost_that_name_is_suggested_before_a_dataset(tmp_path, monkeypatch):
    (tmp_path / "images").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"did you mean images\?$"):
        open_dataset("image/", "train")
