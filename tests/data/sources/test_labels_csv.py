"""Tables of labels: labels.csv, and the Hub's metadata.csv and metadata.jsonl."""

import json
import pickle
import zipfile

import pytest
from tiny_sets import number_of, png

from vitreous.data.datasets import open_dataset
from vitreous.data.images import ImageError, read_image
from vitreous.data.splits import open_split


def photos(folder, count=6):
    (folder / "photos").mkdir(parents=True, exist_ok=True)
    for i in range(count):
        (folder / "photos" / f"{i}.png").write_bytes(png(i))
    return folder


def write(path, *lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def rows(*words, start=0):
    return [f"photos/{i}.png,{word}" for i, word in enumerate(words, start)]


def seen(data):
    return [(number_of(read_image(data.image(i))), data.class_names[label]) for i, label in enumerate(data.labels)]


def test_a_table_without_splits_is_a_dataset(tmp_path):
    table = write(photos(tmp_path) / "labels.csv", "image,label", *rows("dog", "cat", "dog", "cat", "dog", "dog"))
    data = open_dataset(table)
    assert data.class_names == ("cat", "dog")
    assert seen(data) == [(0, "dog"), (1, "cat"), (2, "dog"), (3, "cat"), (4, "dog"), (5, "dog")]
    assert data.describe(1) == "photos/1.png"
    assert pickle.loads(pickle.dumps(data)).describe(1) == "photos/1.png"
    assert seen(open_dataset(tmp_path)) == seen(data)  # the folder of that table
    train, test = open_split(table)
    assert sorted(seen(train) + seen(test)) == sorted(seen(data))


def test_the_division_does_not_depend_on_where_the_table_lies(tmp_path):
    parts = []
    for name in ("one", "two"):
        table = write(photos(tmp_path / name) / "labels.csv", "image,label", *rows(*["dog", "cat"] * 3))
        parts.append([seen(part) for part in open_split(table)])
    assert parts[0] == parts[1]


def test_a_column_divides_the_splits(tmp_path):
    lines = ["photos/0.png,cat,train", "photos/1.png,dog,Train", "photos/2.png,cat,val"]
    table = write(photos(tmp_path) / "my.csv", "image,label,split", *lines)
    assert seen(open_dataset(table, "train")) == [(0, "cat"), (1, "dog")]
    assert seen(open_dataset(table)) == [(2, "cat")]
    assert open_dataset(table).class_names == ("cat", "dog")  # those of all splits
    train, test = open_split(table)
    assert (len(train), len(test)) == (2, 1)


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_columns_are_found_whatever_their_order_and_spelling(tmp_path, delimiter):
    lines = [delimiter.join(words) for words in (("ID", " Label", "File_Name"), ("7", "cat", "photos/0.png"))]
    table = write(photos(tmp_path) / "my.csv", "\ufeff" + lines[0], *lines[1:])
    assert seen(open_dataset(table)) == [(0, "cat")]


def test_the_hubs_metadata_beside_images_and_in_the_folders_of_splits(tmp_path):
    lines = [json.dumps({"file_name": f"photos/{i}.png", "label": i % 2}) for i in range(4)]
    write(photos(tmp_path / "whole") / "metadata.jsonl", *lines)
    whole = open_dataset(tmp_path / "whole")
    assert whole.class_names == ("0", "1")
    assert [number for number, _ in seen(whole)] == [0, 1, 2, 3]
    for split, word in (("train", "dog"), ("test", "cat")):
        write(photos(tmp_path / "split" / split) / "metadata.csv", "file_name,label", *rows("cat", word))
    assert seen(open_dataset(tmp_path / "split", "train")) == [(0, "cat"), (1, "dog")]
    assert seen(open_dataset(tmp_path / "split", "test")) == [(0, "cat"), (1, "cat")]


def test_a_table_of_captions_leaves_the_folders_as_they_are(tmp_path):
    write(photos(tmp_path) / "metadata.csv", "file_name,text", "photos/0.png,a cat")
    assert open_dataset(tmp_path).class_names == ("photos",)


def test_labels_that_are_numbers_are_sorted_as_numbers(tmp_path):
    table = write(photos(tmp_path) / "labels.csv", "image,label", *rows("10", "9", "100"))
    assert open_dataset(table).class_names == ("9", "10", "100")


def test_images_may_lie_in_an_archive(tmp_path):
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as file:
        file.writestr("0.png", png(0))
    table = write(tmp_path / "labels.csv", "image,label", "photos.zip/0.png,cat")
    data = open_dataset(table)
    assert seen(data) == [(0, "cat")]
    assert len(data.fingerprint) == 64


def test_the_fingerprint_follows_the_images(tmp_path):
    table = write(photos(tmp_path) / "labels.csv", "image,label", *rows("dog", "cat"))
    before = open_dataset(table).fingerprint
    assert open_dataset(table).fingerprint == before
    (tmp_path / "photos/1.png").write_bytes(png(1) + b"more")
    assert open_dataset(table).fingerprint != before


def test_a_missing_image_is_the_readers_problem_unless_all_are_missing(tmp_path):
    table = write(photos(tmp_path, 1) / "labels.csv", "image,label", *rows("dog", "cat"))
    data = open_dataset(table)
    assert len(data.fingerprint) == 64
    with pytest.raises(ImageError, match=r"1\.png: no such file"):
        read_image(data.image(1))
    lost = write(tmp_path / "elsewhere" / "labels.csv", "image,label", *rows("dog", "cat"))
    with pytest.raises(FileNotFoundError, match=r"none of the 2 images .* photos/0.png: its paths are relative"):
        open_dataset(lost)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["picture,label", "a,b"], r"has no column image \(or file_name\): its columns are picture, label"),
        (["image,text", "a,b"], "has no column label: its columns are image, text"),
        (["image,label"], "has no rows"),
        (["image,label", "photos/0.png,"], "row 0 of my.csv has no label"),
        (["image,label", "photos/0.png,cat", ",dog"], "row 1 of my.csv has no image"),
        (["image,label,split", "photos/0.png,cat,west"], "row 0 of my.csv has split 'west': expected train, training"),
        (["image,label", "photos/0.png,cat", "photos/0.png,dog"], "gives photos/0.png two labels, 'cat' and 'dog'"),
        (
            ["image,label,split", "photos/0.png,cat,train", "photos/0.png,cat,test"],
            "my.csv has photos/0.png in the splits train and test: keep one of the rows",
        ),
        (["image,label", "https://example.org/0.png,cat"], "row 0 of my.csv is a URL: download the images"),
    ],
)
def test_what_a_table_lacks_is_said(tmp_path, lines, message):
    with pytest.raises(ValueError, match=message):
        open_dataset(write(photos(tmp_path) / "my.csv", *lines))


@pytest.mark.parametrize(
    ("row", "cells"),
    [
        ("photos/1.png,cat,dog", "3 cells for 2 columns: put a cell with ',' in quotes"),
        ("photos/1.png,cat,,owl", "4 cells for 2 columns: put a cell with"),
        ("photos/1.png", "1 cell for 2 columns: fill in the others"),
    ],
)
def test_a_row_with_other_cells_than_columns_is_an_error(tmp_path, row, cells):
    table = write(photos(tmp_path) / "my.csv", "image,labels", "photos/0.png,cat;dog", row)
    with pytest.raises(ValueError, match=f"row 1 of my.csv has {cells}"):
        open_dataset(table, task="multilabel")


def test_empty_cells_after_the_last_column_are_harmless(tmp_path):
    assert seen(open_dataset(write(photos(tmp_path) / "my.csv", "image,label", "photos/0.png,cat,,"))) == [(0, "cat")]


def test_what_cannot_be_read_as_a_table_is_said(tmp_path):
    (tmp_path / "my.csv").write_bytes(b"\xff\xfe\x00image")
    (tmp_path / "my.jsonl").write_text("{not json\n")
    (tmp_path / "list.jsonl").write_text("[1, 2]\n")
    for name in ("my.csv", "my.jsonl", "list.jsonl"):
        with pytest.raises(ValueError, match="cannot be read as"):
            open_dataset(tmp_path / name)
    with pytest.raises(FileNotFoundError, match="there is no csv file data/none.csv: check the path"):
        open_dataset("data/none.csv")
