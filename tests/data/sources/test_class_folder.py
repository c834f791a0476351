"""A folder with a sub-folder for each class: names of images, fingerprints, splits."""

import os
import pickle

import pytest
from tiny_sets import colour_folder, make_folder, number_of, png

from vitreous.data.datasets import open_dataset
from vitreous.data.sources.class_folder import from_folder


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
