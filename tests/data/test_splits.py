"""Train and test images: reproducible, without overlap, with the same classes."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_sets import make_folder, make_parquet, number_of, png

from vitreous.data.image_dataset import ImageDataset
from vitreous.data.splits import divide, open_split


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
    make_folder(tmp_path / "deep/images", {"cats": 5, "dogs": 5})
    assert refused(tmp_path / "deep").endswith(f"has only 'images'; did you mean --data {tmp_path / 'deep/images'}?")
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
