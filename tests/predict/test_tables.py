"""Answers in files: .csv, .json and .parquet say the same; so do .parquet, .npy and .npz of patch features."""

import csv
import json

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch

from vitreous.data.images import ImageError
from vitreous.data.preprocess import default_preprocess
from vitreous.models.vit_config import ViTConfig
from vitreous.predict import tables
from vitreous.predict.classify import Answer, Prediction
from vitreous.predict.tables import printable, write_answers, write_tokens
from vitreous.weights.card import Card

CARD = Card("tiny", default_preprocess(ViTConfig()))
ROWS = [
    Answer("a.jpg", (Prediction(3, "cat, tabby", 0.75, 2.0), Prediction(5, "dog", 0.25, 1.0))),
    ImageError("caf\udce9.jpg", "empty file"),
    Answer("b.jpg", (Prediction(5, "dog", 1.0, 4.0),)),
]


def test_a_csv_has_a_row_an_image(tmp_path):
    path = write_answers(tmp_path / "new" / "answers.csv", ROWS, CARD, top=2)
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["image", "class_name", "index", "probability", "class_name_2", "probability_2", "error"]
    assert list(rows[0].values()) == ["a.jpg", "cat, tabby", "3", "0.750000", "dog", "0.250000", ""]
    assert list(rows[1].values()) == ["caf\\udce9.jpg", "", "", "", "", "", "empty file"]
    assert list(rows[2].values()) == ["b.jpg", "dog", "5", "1.000000", "", "", ""]


def test_json_has_what_the_command_prints(tmp_path):
    found = json.loads(write_answers(tmp_path / "answers.json", ROWS, CARD, top=2).read_text())
    assert [row["image"] for row in found] == ["a.jpg", "caf\\udce9.jpg", "b.jpg"]
    assert found[0]["predictions"][1] == {"index": 5, "class_name": "dog", "probability": 0.25, "logit": 1.0}
    assert found[1] == {"image": "caf\\udce9.jpg", "error": "empty file"}


def test_parquet_has_the_columns_of_a_folder_of_parts(tmp_path):
    table = pyarrow.parquet.read_table(write_answers(tmp_path / "answers.parquet", ROWS, CARD, top=2))
    columns = ["image", "class_name", "index", "probability", "class_names", "probabilities", "error"]
    assert table.column_names == columns
    assert table.schema.metadata[b"vitreous.model"] == b"tiny"
    assert table.column("class_name").to_pylist() == ["cat, tabby", None, "dog"]
    assert table.column("probabilities").to_pylist() == [[0.75, 0.25], None, [1.0]]
    assert table.column("error").to_pylist() == [None, "empty file", None]
    one = pyarrow.parquet.read_table(write_answers(tmp_path / "one.parquet", ROWS, CARD, top=1))
    assert one.column_names == ["image", "class_name", "index", "probability", "error"]


def test_other_suffixes_are_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match=r"answers go to \.csv, \.json or \.parquet, or to a folder .* got a\.txt"):
        write_answers(tmp_path / "a.txt", ROWS, CARD, top=2)
    assert printable("ok") == "ok"


# --- features of patches ----------------------------------------------------------------------------------------------

NAMES = ["b.jpg", "a.jpg", "caf\\udce9.jpg", "d.jpg", "e.jpg"]


def grids(count=5):
    """So many images of 2×3 patches with 4 features, every number another."""
    features = torch.arange(count * 24).view(count, 2, 3, 4) / 7
    return list(
        zip(["b.jpg", "a.jpg", "caf\udce9.jpg", "d.jpg", "e.jpg"][:count], features, strict=True)
    ), features.numpy()


@pytest.mark.parametrize("values", [1, 50, 1 << 24])
def test_a_table_of_patches_has_a_row_an_image_and_its_shape(tmp_path, monkeypatch, values):
    monkeypatch.setattr(tables, "GROUP_VALUES", values)
    rows, features = grids()
    assert write_tokens(tmp_path / "new" / "f.parquet", iter(rows), "tiny") == (5, 2, 3, 4)
    table = pyarrow.parquet.read_table(tmp_path / "new" / "f.parquet")
    assert table.column_names == ["image", "rows", "columns", "features"]
    assert table["image"].to_pylist() == NAMES
    assert (set(table["rows"].to_pylist()), set(table["columns"].to_pylist())) == ({2}, {3})
    assert table.schema.field("features").type == pyarrow.list_(pyarrow.float32(), 24)
    shape = json.loads(table.schema.metadata[b"vitreous.shape"])
    assert np.array_equal(np.array(table["features"].to_pylist(), np.float32).reshape(-1, *shape), features)
    assert table.schema.metadata[b"vitreous.model"] == b"tiny"
    groups = pyarrow.parquet.ParquetFile(tmp_path / "new" / "f.parquet").num_row_groups
    assert groups == {1: 5, 50: 3, 1 << 24: 1}[values]  # an image has 24


def test_an_npy_is_a_memory_map_with_its_names_beside_it(tmp_path):
    rows, features = grids()
    assert write_tokens(tmp_path / "f.npy", iter(rows), "tiny") == (5, 2, 3, 4)
    found = np.load(tmp_path / "f.npy", mmap_mode="r")
    assert isinstance(found, np.memmap)
    assert np.array_equal(found, features)
    about = json.loads((tmp_path / "f.npy.json").read_text())
    assert about == {"model": "tiny", "shape": [5, 2, 3, 4], "images": NAMES}
    write_tokens(tmp_path / "f.npz", iter(rows), "tiny")
    with np.load(tmp_path / "f.npz") as arrays:
        assert arrays["image"].tolist() == NAMES
        assert np.array_equal(arrays["features"], features)


@pytest.mark.parametrize("suffix", [".npy", ".parquet"])
def test_images_are_written_while_others_are_computed(tmp_path, monkeypatch, suffix):
    monkeypatch.setattr(tables, "GROUP_VALUES", 1 << 18)
    sizes = []

    def slowly():
        for i in range(8):
            yield f"{i}.jpg", torch.randn(16, 16, 1024)  # 1 MB
            sizes.extend(path.stat().st_size for path in tmp_path.glob(f".f{suffix}.*/*"))

    write_tokens(tmp_path / f"f{suffix}", slowly(), "tiny")
    assert [size >> 20 for size in sizes] == list(range(1, 9))


def test_half_floats_are_stored_as_such(tmp_path):
    rows, features = grids()
    rows = [(name, row.half().float()) for name, row in rows]
    for suffix in (".npy", ".npz", ".parquet"):
        write_tokens(tmp_path / f"f{suffix}", iter(rows), "tiny", "fp16")
    wanted = features.astype(np.float16)
    found = np.load(tmp_path / "f.npy")
    assert found.dtype == np.float16
    assert np.array_equal(found, wanted)
    assert np.array_equal(np.load(tmp_path / "f.npz")["features"], wanted)
    column = pyarrow.parquet.read_table(tmp_path / "f.parquet")["features"]
    assert column.type == pyarrow.list_(pyarrow.float16(), 24)
    assert np.array_equal(np.array(column.to_pylist(), np.float16).reshape(wanted.shape), wanted)


@pytest.mark.parametrize("suffix", tables.TOKEN_FILES)
def test_a_run_that_fails_leaves_the_old_file_and_no_other(tmp_path, suffix):
    rows, _ = grids()
    assert write_tokens(tmp_path / f"f{suffix}", iter(()), "tiny") == ()
    assert not list(tmp_path.iterdir())
    write_tokens(tmp_path / f"f{suffix}", iter(rows), "tiny")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def failing():
        yield from rows[:2]
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        write_tokens(tmp_path / f"f{suffix}", failing(), "other")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    with pytest.raises(ValueError, match=r"features of patches go to \.parquet, \.npy or \.npz"):
        write_tokens(tmp_path / "f.csv", iter(rows), "tiny")


def test_an_array_never_stands_beside_the_names_of_another(tmp_path, monkeypatch):
    rows, _ = grids()
    write_tokens(tmp_path / "f.npy", iter(rows), "tiny")

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(tables, "write_json", killed)
    with pytest.raises(KeyboardInterrupt):
        write_tokens(tmp_path / "f.npy", iter(rows[:2]), "tiny")
    assert [path.name for path in tmp_path.iterdir()] == ["f.npy"]
