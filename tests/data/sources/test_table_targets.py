"""Tables of several labels or of numbers: how they are read, guessed, and what is wrong with them in one line."""

import json
import pickle

import numpy as np
import pytest
from tiny_sets import png

from vitreous.data.datasets import find_source, open_dataset
from vitreous.data.splits import open_split


def photos(folder, count=8):
    (folder / "photos").mkdir(parents=True, exist_ok=True)
    for i in range(count):
        (folder / "photos" / f"{i}.png").write_bytes(png(i))
    return folder


def write(folder, header, *cells, name="my.csv"):
    """A table with a row of cells for each image."""
    path = photos(folder) / name
    lines = [f"image,{header}", *(f"photos/{i}.png,{cell}" for i, cell in enumerate(cells))]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def labels_of(data):
    return [{name for name, there in zip(data.class_names, row, strict=True) if there} for row in data.targets]


@pytest.mark.parametrize("separator", [";", "|", " ; "])
def test_several_labels_stand_in_one_cell(tmp_path, separator):
    data = open_dataset(write(tmp_path, "labels", f"cat{separator}outdoor", "", "dog", f"dog{separator}cat;"))
    assert (data.task, data.class_names, data.labels) == ("multilabel", ("cat", "dog", "outdoor"), (0, 0, 0, 0))
    assert labels_of(data) == [{"cat", "outdoor"}, set(), {"dog"}, {"dog", "cat"}]
    assert data.targets.dtype == np.float32
    assert labels_of(pickle.loads(pickle.dumps(data))) == labels_of(data)
    assert repr(data) == "ImageDataset('my.csv': 4 images, 3 labels)"


def test_lists_of_labels_stand_in_lines_of_json(tmp_path):
    lines = [{"file_name": "photos/0.png", "label": ["b", "a"]}, {"file_name": "photos/1.png", "label": []}]
    path = photos(tmp_path) / "my.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    data = open_dataset(path)
    assert labels_of(data) == [{"a", "b"}, set()]


def test_a_column_of_0_and_1_for_each_label(tmp_path):
    data = open_dataset(write(tmp_path, "split,zebra,cat,id", "test,1,0,7", "test,1.0,true,8", "test,0,0,9"))
    assert (data.task, data.class_names) == ("multilabel", ("zebra", "cat"))  # in their order, without the id
    assert labels_of(data) == [{"zebra"}, {"zebra", "cat"}, set()]


def test_columns_of_numbers_are_read_in_their_own_units(tmp_path):
    data = open_dataset(write(tmp_path, "age, height", "31,1.75", "42,-1.8e0", "1,0"))
    assert (data.task, data.class_names) == ("regress", ("age", "height"))
    assert np.array_equal(data.targets, np.array([[31, 1.75], [42, -1.8], [1, 0]], np.float32))
    assert open_dataset(write(tmp_path, "age,legs", "31,2", "42,0", "40,1")).task == "regress"  # counts, mostly 0 or 1


def test_a_column_of_labels_stays_a_class_unless_the_task_is_named(tmp_path):
    table = write(tmp_path, "label,age", "1.5,3", "2.5,4", "1.5,5", "2.5,6")
    assert (open_dataset(table).task, open_dataset(table).class_names) == ("classify", ("1.5", "2.5"))
    assert open_dataset(table, task="regress").class_names == ("label", "age")
    for header, cells in (("labels", ["cat", "dog", "a, b"]), ("label", ["cat;dog", "cat", "dog"])):
        named = write(tmp_path, header, *(f'"{cell}"' for cell in cells))
        assert open_dataset(named).task == "classify"
        assert open_dataset(named).class_names == tuple(sorted(cells))
        assert open_dataset(named, task="multilabel").task == "multilabel"
    assert open_dataset(write(tmp_path, "labels", "cat;dog", "cat"), task="classify").class_names == ("cat", "cat;dog")


def test_a_table_of_labels_or_numbers_makes_a_folder_a_dataset_unless_it_has_classes(tmp_path):
    write(tmp_path, "age", "3", "4.5", name="labels.csv")
    assert open_dataset(tmp_path).task == "regress"
    (tmp_path / "drawings").mkdir()
    assert open_dataset(tmp_path).class_names == ("drawings", "photos")  # two folders are classes
    assert open_dataset(tmp_path, task="regress").class_names == ("age",)


def test_tables_of_splits_have_the_same_columns(tmp_path):
    for part, cells in (("train", ("1,2.5", "3,4")), ("test", ("5,6", "7,8"))):
        write(tmp_path / part, "age,height", *cells, name="metadata.csv")
    train, test = open_split(tmp_path)
    assert (train.targets.tolist(), test.targets.tolist()) == ([[1, 2.5], [3, 4]], [[5, 6], [7, 8]])
    write(tmp_path / "test", "height,age", "5,6", name="metadata.csv")
    with pytest.raises(ValueError, match=r"train.metadata.csv and .*test.metadata.csv have different columns"):
        open_split(tmp_path)


def test_labels_without_an_image_in_one_split_are_named_alike_in_all(tmp_path):
    cells = ("train,cat;dog", "train,dog", "test,cat", "train,", "test,dog")
    train, test = open_split(write(tmp_path, "split,labels", *cells))
    assert train.class_names == test.class_names == ("cat", "dog")
    assert (labels_of(train), labels_of(test)) == ([{"cat", "dog"}, {"dog"}, set()], [{"cat"}, {"dog"}])


@pytest.mark.parametrize(
    ("task", "header", "cells", "message"),
    [
        (None, "age", ["3", "", "5"], r"row 1 of my.csv is empty in column 'age': fill in a number, or remove the row"),
        (None, "age,size", ["3,4", "5,old"], r"row 1 of my.csv has 'old' in column 'size': expected a number"),
        (None, "age", ["3", "nan"], r"row 1 of my.csv has 'nan' in column 'age': expected a number"),
        (None, "age", ["3", "1e999"], r"has '1e999' in column 'age'"),
        (None, "age", ['"3,5"', "4"], r"row 0 of my.csv has '3,5' in column 'age': expected a number"),
        (
            None,
            "age,by",
            ["3,Ann", "5,Bob"],
            r"column 'by' of my.csv holds values such as 'Ann': expected numbers",
        ),
        (None, "age,by", ["3,", "5,"], r"column 'by' of my.csv is empty: expected numbers; remove the column"),
        ("regress", "label", ["cat", "dog"], r"column 'label' of my.csv holds values such as 'cat': expected numbers"),
        (None, "age,age", ["3,4", "5,6"], r"my.csv has two columns 'age': rename one"),
        ("regress", "id", ["3", "5"], r"my.csv has no column of numbers: its columns are image, id"),
        (
            None,
            "cat,dog",
            ["1,0", "0,1", "1,2"],
            r"row 2 of my.csv has '2' in column 'dog': expected 0 or 1; for",
        ),
        (None, "cat,dog", ["1,0", "0,1", "1,"], r"row 2 of my.csv is empty in column 'dog': fill in 0 or 1"),
        (None, "cat,dog", ["1,0", "0,x", "1,1"], r"row 1 of my.csv has 'x' in column 'dog': expected 0 or 1$"),
        (None, "cat,dog,page", ["1,0,17", "0,1,18"], r"columns of 0 and 1, such as 'cat', and others, such as 'page'"),
        ("multilabel", "age", ["3", "5"], r"column 'age' of my.csv holds values such as '3': expected 0 and 1"),
        ("multilabel", "labels", ["", ""], r"my.csv has no label in any row"),
        (None, "labels", ["cat", ""], r"row 1 of my.csv has no label: .* or pass --task multilabel"),
        ("segment", "labels", ["cat"], r"my.csv is a table, and masks are not read from it: name a folder"),
        ("detect", "labels", ["cat"], r"unknown task 'detect': choose from classify, multilabel, regress, segment"),
    ],
)
def test_what_is_wrong_with_a_table_is_one_line(tmp_path, task, header, cells, message):
    with pytest.raises(ValueError, match=message) as caught:
        open_dataset(write(tmp_path, header, *cells), task=task)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("header", "cell", "other", "message"),
    [
        ("labels", "cat;dog", "dog", r"my.csv gives photos/0.png two sets of labels, 'cat;dog' and 'dog': keep one"),
        ("age", "3", "4.5", r"my.csv gives photos/0.png two rows of numbers, '3' and '4.5': keep one of them"),
    ],
)
def test_an_image_has_one_row_or_equal_ones(tmp_path, header, cell, other, message):
    table = write(tmp_path, header, cell, other)
    again = f"photos/0.png,{cell}\n"
    table.write_text(table.read_text() + again)
    assert len(open_dataset(table)) == 3
    table.write_text(table.read_text() + f"photos/0.png,{other}\n")
    with pytest.raises(ValueError, match=message):
        open_dataset(table)


@pytest.mark.parametrize("header", ["labels", "age"])
def test_a_missing_file_is_an_error_before_training(tmp_path, header):
    cells = ["a;b", "b", "a"] if header == "labels" else ["3", "4", "5"]
    table = write(tmp_path, header, *cells)
    (tmp_path / "photos/1.png").unlink()
    with pytest.raises(FileNotFoundError, match=r"1 of 3 images of .*my.csv does not exist, such as photos/1.png"):
        open_split(table)


def test_a_number_that_never_changes_cannot_be_learned(tmp_path):
    with pytest.raises(ValueError, match=r"the number 'size' is 4 for all \d images to learn from: remove it"):
        open_split(write(tmp_path, "age,size", *(f"{i},4" for i in range(8))))


def test_numbers_that_differ_by_little_more_than_float32_holds_are_refused(tmp_path):
    times = [1_700_000_000 + 900 * i for i in range(8)]
    with pytest.raises(
        ValueError, match=r"'time' is about 1.7e\+09 and kept as float32, in steps of 128; .*: subtract"
    ):
        open_split(write(tmp_path, "age,time", *(f"{i},{time}" for i, time in enumerate(times))))
    train, _ = open_split(write(tmp_path, "time", *(f"{time - times[0]}" for time in times)))
    assert set(train.targets[:, 0]) <= set(range(0, 8 * 900, 900))


def test_only_one_label_that_all_images_have_cannot_be_learned(tmp_path):
    with pytest.raises(ValueError, match="all images have the label 'cat' and no other: add images without it"):
        open_split(write(tmp_path, "labels", *["cat"] * 8), task="multilabel")
    train, _ = open_split(write(tmp_path, "cat", *"01010101"))  # one that some have can be
    assert (train.task, train.class_names) == ("multilabel", ("cat",))
    assert 0 < train.targets.sum() < len(train)


def test_a_label_without_an_image_to_learn_from_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="no image to learn from has the label 'owl': add some, or remove the label"):
        open_split(write(tmp_path, "split,labels", "train,cat;dog", "train,dog", "test,owl"))


def test_each_label_has_images_on_both_sides_of_a_division(tmp_path):
    rare = {0: "a;b", 1: "a;b", 2: "c", 3: "d", 4: "d;e", 5: "f;g", 6: "f", 7: "g"}
    for seed in range(30):
        train, test = open_split(write(tmp_path, "labels", *rare.values()), seed=seed)
        assert len(train) + len(test) == 8
        assert train.targets.sum(0).min() >= 1
        tested = {name for row in labels_of(test) for name in row}
        assert tested >= {"a", "b", "d", "f", "g"}  # c and e have one image
        assert not tested & {"c", "e"}


def test_a_division_does_not_move_with_new_images(tmp_path):
    cells = [f"{i}.5" for i in range(8)]
    before = open_split(write(tmp_path, "age", *cells[:6]))[1]
    after = open_split(write(tmp_path, "age", *cells))[1]
    held = [{data.describe(i) for i in range(len(data))} for data in (before, after)]
    assert held[0]
    assert held[0] <= held[1]


@pytest.mark.parametrize("task", ["multilabel", "regress", "segment"])
def test_other_data_cannot_serve_the_task(tmp_path, task):
    for i in range(2):
        photos(tmp_path / "zoo" / str(i))
    for name in ("digits", tmp_path / "zoo"):
        with pytest.raises(ValueError, match=rf"has classes, and --task {task} needs a "):
            find_source(name, task=task)


def test_the_fingerprint_follows_the_targets(tmp_path):
    first = open_dataset(write(tmp_path, "age", "3", "4")).fingerprint
    assert open_dataset(write(tmp_path, "age", "3", "4")).fingerprint != first  # images were written again
    table = tmp_path / "my.csv"
    first = open_dataset(table).fingerprint
    table.write_text(table.read_text().replace(",4", ",5"))
    assert open_dataset(table).fingerprint != first
    table.write_text(table.read_text().replace(",5", ",4"))
    assert open_dataset(table).fingerprint == first
