"""What is said of a run's images before it starts."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from tiny_runs import LogKeeper, make_images, make_task, tiny

from vitreous.data.image_dataset import ImageDataset
from vitreous.data.images import ImageError
from vitreous.data.splits import open_split
from vitreous.training.data_check import (
    are_unequal,
    check_images_left,
    data_remarks,
    find_copies,
    spell_counts,
    typical_image,
)
from vitreous.training.loop import train


def of_labels(*labels, names=("cat", "dog", "owl")):
    return ImageDataset("zoo", names, labels, lambda i: b"")


def test_equal_classes_of_readable_images_need_no_remark(tmp_path):
    assert data_remarks(*open_split(make_images(tmp_path / "zoo"))) == []


def test_unreadable_images_are_counted_and_the_first_few_named():
    problems = [ImageError(f"{i}.png", "empty file") for i in range(7)]
    (line,) = data_remarks(of_labels(0, 1), of_labels(0, 1), problems)
    assert line.startswith("7 of 11 images cannot be read and are left out: 0.png: empty file; 1.png")
    assert line.endswith("4.png: empty file; and 2 more")


@pytest.mark.parametrize(
    ("balance", "advice"), [("none", "try --balance sampling"), ("sampling", "equally often"), ("loss", "weighs more")]
)
def test_unequal_classes_are_listed_with_what_is_done_about_them(balance, advice):
    (line,) = data_remarks(of_labels(0, 0, 0, 0, 1, 1), of_labels(0, 1), balance=balance)
    assert line.startswith("classes are unequal: cat 4, dog 2: ")
    assert advice in line


def test_of_many_classes_the_largest_and_smallest_are_listed():
    names = tuple("abcdefghijkl")
    data = of_labels(*(label for label in range(12) for _ in range(label + 1)), names=names)
    assert spell_counts(data) == "l 12, k 11, j 10, i 9, … 4 more …, d 4, c 3, b 2, a 1"
    assert are_unequal(data.labels)


def test_a_class_of_one_image_is_named():
    lines = data_remarks(of_labels(0, 0, 1, 1, 2), of_labels(0, 1))
    assert "1 class has a single image: 'owl'; add some, it cannot be tested" in lines


@pytest.mark.parametrize(
    ("held_out", "line"),
    [
        ((0,), "no held-out image of 'dog', 'owl': their accuracy is unknown"),
        ((0, 2), "no held-out image of 'dog': its accuracy is unknown"),
    ],
)
def test_classes_without_a_held_out_image_are_named(held_out, line):
    assert data_remarks(of_labels(0, 0, 1, 1, 2, 2), of_labels(*held_out)) == [line]


def test_of_many_classes_without_a_held_out_image_a_few_are_named():
    data = of_labels(*range(12), *range(12), names=tuple("abcdefghijkl"))
    assert data_remarks(data, data.take([0])) == [
        "no held-out image of 'b', 'c', 'd' and 8 more: their accuracy is unknown"
    ]


def test_folders_below_those_of_the_classes_are_named(tmp_path):
    for year in ("2024", "2025"):
        make_images(tmp_path / "nested" / year, ("lily", "rose"), seed=int(year))
    train_data, test_data = open_split(tmp_path / "nested")
    (line,) = data_remarks(train_data, test_data)
    assert line == (
        "the folders 'lily', 'rose' below the classes are not classes: for those pass "
        f"--data {tmp_path / 'nested/2024'} or a table of labels"
    )
    for i in range(5):  # images beside such folders: these may be of the class too
        Image.new("RGB", (8, 8), (i, 0, 0)).save(tmp_path / f"nested/2024/{i}.png")
    assert data_remarks(*open_split(tmp_path / "nested")) == []


def test_folders_of_one_name_below_the_classes_need_no_remark(tmp_path):
    for name in ("lily", "rose"):
        make_images(tmp_path / "flowers" / name, ("images",), seed=len(name) + ord(name[0]))
    assert data_remarks(*open_split(tmp_path / "flowers")) == []


def test_folders_with_a_class_each_send_to_a_table(tmp_path):
    make_images(tmp_path / "animals/cats", ("siamese",))
    make_images(tmp_path / "animals/dogs", ("poodle",), seed=1)
    (line,) = data_remarks(*open_split(tmp_path / "animals"))
    assert line == (
        "the folders 'poodle', 'siamese' below the classes are not classes: for those pass a table of labels"
    )


def test_held_out_copies_of_training_images_are_found_by_their_bytes(tmp_path):
    folder = make_images(tmp_path / "zoo")
    train_data, test_data = open_split(folder)
    assert find_copies(train_data, test_data) == []
    shutil.copyfile(train_data.image(4), test_data.image(1))  # of another class, if need be: the label is wrong then
    assert find_copies(train_data, test_data) == [(1, 4)]
    (line,) = data_remarks(train_data, test_data)
    assert f"({test_data.describe(1)} = {train_data.describe(4)})" in line
    assert "is a copy of a training image" in line


def test_held_out_copies_are_found_in_tables_too(tmp_path):
    train_data, test_data = open_split(make_task(tmp_path / "zoo", "regress"))
    assert find_copies(train_data, test_data) == []
    shutil.copyfile(train_data.image(4), test_data.image(1))
    assert find_copies(train_data, test_data) == [(1, 4)]
    assert "the result is too good by as much" in data_remarks(train_data, test_data)[-1]


def test_images_that_are_no_files_are_not_compared():
    image = Image.new("RGB", (4, 4))
    data = ImageDataset("zoo", ("cat",), (0, 0), lambda i: image)
    assert find_copies(data, data) == []


def test_the_typical_image_ignores_what_cannot_be_read():
    images = [Image.new("L", (40, 30)), b"no image", Image.new("L", (60, 30)), Image.new("L", (50, 90))]
    data = ImageDataset("zoo", ("cat",), (0,) * 4, images.__getitem__)
    assert typical_image(data) == (50, 30, False)
    images[0] = Image.new("RGB", (50, 30), (200, 10, 10))
    assert typical_image(data)[2]
    with pytest.raises(ValueError, match="none of the images of zoo can be read"):
        typical_image(ImageDataset("zoo", ("cat",), (0,), lambda i: b"no image"))


def test_a_run_says_everything_once_and_before_its_first_epoch(tmp_path):
    folder, listener = make_images(tmp_path / "zoo"), LogKeeper()
    for path in sorted((folder / "owl").iterdir())[4:]:
        path.unlink()
    (folder / "cat/000.png").write_bytes(b"")
    train(tiny(folder), tmp_path / "run", listeners=[listener])
    assert sum("cannot be read" in line for line in listener.lines) == 1
    assert sum("classes are unequal" in line for line in listener.lines) == 1
    assert all(0 <= row["test_balanced"] <= 1 for row in listener.rows)


# --- labels, numbers, masks -------------------------------------------------------------------------------------------


def of_targets(task, names, *rows):
    targets = np.array(rows, np.float32)
    return ImageDataset("zoo", names, (0,) * len(rows), lambda i: b"", task=task, targets=targets)


def test_labels_are_counted():
    train = of_targets("multilabel", ("cat", "dog", "owl"), (1, 0, 0), (1, 1, 0), (0, 0, 0), (1, 0, 1))
    test = of_targets("multilabel", ("cat", "dog", "owl"), (1, 0, 0))
    assert data_remarks(train, test) == [
        "labels of 4 training images: cat 3, dog 1, owl 1; without any: 1",
        "no held-out image has the 2 labels 'dog', 'owl': they are not tested",
    ]


def test_numbers_are_told_by_their_range():
    data = of_targets("regress", ("age", "height"), (3, 1.5), (90, 1.25))
    assert data_remarks(data, data) == [
        "numbers of 2 training images: age 3 to 90 (mean 46.5), height 1.25 to 1.5 (mean 1.375)"
    ]


@pytest.mark.parametrize(("images", "which"), [(4, "4"), (300, "200 of 300")])
def test_classes_of_masks_are_told_by_their_share_of_pixels(images, which):
    def mask(i):
        return Image.frombytes("L", (4, 1), bytes([0, 0, i % 2, 255]))

    data = ImageDataset("zoo", ("cat", "sky"), (0,) * images, lambda i: b"", task="segment", mask=mask)
    (line,) = data_remarks(data, data)
    assert line.startswith(f"pixels of {which} training masks: cat 6")
    assert line.endswith(" %, ignored 25.0 %")


def test_unreadable_images_may_leave_too_little_for_other_tasks():
    problem = [ImageError("1.png", "empty file")]
    some, none = of_targets("regress", ("age",), (3,), (4,)), of_targets("regress", ("age",), (3,)).take([])
    check_images_left(some, some, problem)
    with pytest.raises(ValueError, match=r"no readable image to test on: 1 cannot be read, such as 1.png: empty file"):
        check_images_left(some, none, problem)
    with pytest.raises(ValueError, match="no readable image to learn from"):
        check_images_left(none, some, problem)
    with pytest.raises(ValueError, match="the number 'age' is 3 for all 1 images to learn from"):
        check_images_left(some.take([0]), some, problem)


def test_a_copied_image_makes_the_result_too_good(tmp_path):
    for name in ("a", "b"):
        Image.new("RGB", (4, 4), "red").save(tmp_path / f"{name}.png")
    paths = (tmp_path / "a.png", tmp_path / "b.png")
    data = replace(of_targets("regress", ("age",), (3,), (4,)), image=paths.__getitem__)
    lines = data_remarks(data.take([0]), data.take([1]))
    assert "the result is too good by as much" in lines[-1]
