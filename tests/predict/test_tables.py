"""Answers in files: .csv, .json and .parquet say the same."""

import csv
import json

import pyarrow.parquet
import pytest

from vitreous.data.images import ImageError
from vitreous.predict.classify import Answer, Prediction
from vitreous.predict.tables import printable, write_answers

ROWS = [
    Answer("a.jpg", (Prediction(3, "cat, tabby", 0.75, 2.0), Prediction(5, "dog", 0.25, 1.0))),
    ImageError("caf\udce9.jpg", "empty file"),
    Answer("b.jpg", (Prediction(5, "dog", 1.0, 4.0),)),
]


def test_a_csv_has_a_row_an_image(tmp_path):
    path = write_answers(tmp_path / "new" / "answers.csv", ROWS, "tiny", top=2)
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["image", "class_name", "index", "probability", "class_name_2", "probability_2", "error"]
    assert list(rows[0].values()) == ["a.jpg", "cat, tabby", "3", "0.750000", "dog", "0.250000", ""]
    assert list(rows[1].values()) == ["caf\\udce9.jpg", "", "", "", "", "", "empty file"]
    assert list(rows[2].values()) == ["b.jpg", "dog", "5", "1.000000", "", "", ""]


def test_json_has_what_the_command_prints(tmp_path):
    found = json.loads(write_answers(tmp_path / "answers.json", ROWS, "tiny", top=2).read_text())
    assert [row["image"] for row in found] == ["a.jpg", "caf\\udce9.jpg", "b.jpg"]
    assert found[0]["predictions"][1] == {"index": 5, "class_name": "dog", "probability": 0.25, "logit": 1.0}
    assert found[1] == {"image": "caf\\udce9.jpg", "error": "empty file"}


def test_parquet_has_the_columns_of_a_folder_of_parts(tmp_path):
    table = pyarrow.parquet.read_table(write_answers(tmp_path / "answers.parquet", ROWS, "tiny", top=2))
    columns = ["image", "class_name", "index", "probability", "class_names", "probabilities", "error"]
    assert table.column_names == columns
    assert table.schema.metadata[b"vitreous.model"] == b"tiny"
    assert table.column("class_name").to_pylist() == ["cat, tabby", None, "dog"]
    assert table.column("probabilities").to_pylist() == [[0.75, 0.25], None, [1.0]]
    assert table.column("error").to_pylist() == [None, "empty file", None]
    one = pyarrow.parquet.read_table(write_answers(tmp_path / "one.parquet", ROWS, "tiny", top=1))
    assert one.column_names == ["image", "class_name", "index", "probability", "error"]


def test_other_suffixes_are_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match=r"answers go to \.csv, \.json or \.parquet, or to a folder .* got a\.txt"):
        write_answers(tmp_path / "a.txt", ROWS, "tiny", top=2)
    assert printable("ok") == "ok"
