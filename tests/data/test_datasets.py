"""Datasets by name: what a name means."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from tiny_sets import make_folder

from vitreous.data.datasets import DATASETS, open_dataset


def test_a_name_that_is_a_dataset_and_a_folder_is_asked_about(tmp_path, monkeypatch):
    make_folder(tmp_path / "digits", {"a": 1, "b": 1})
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"digits is a dataset, and a folder here: write \./digits for the folder"):
        open_dataset("digits")
    for folder in ("./digits", "digits/", Path("digits")):
        assert open_dataset(folder).class_names == ("a", "b")


@pytest.mark.parametrize(
    "holds",
    [(), ("run.lock", "config.json"), ("study.json",), ("digits/study.json",)],
    ids=["nothing", "a run", "a study", "a study of several datasets"],
)
def test_a_run_or_study_that_is_called_like_its_dataset_does_not_hide_it(holds, tmp_path, monkeypatch):
    (tmp_path / "digits").mkdir()
    for name in holds:
        (tmp_path / "digits" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "digits" / name).write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert len(open_dataset("digits").class_names) == 10


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


def test_digits_are_split_without_overlap():
    train, test = DATASETS["digits"](None, "train"), DATASETS["digits"](None, "test")
    assert len(train) + len(test) == 1797
    seen = {np.asarray(train.image(i)).tobytes() for i in range(len(train))}
    assert sum(np.asarray(test.image(i)).tobytes() in seen for i in range(len(test))) == 0
    assert test.image(0).size == (8, 8)


def test_a_folder_of_almost_that_name_is_suggested_before_a_dataset(tmp_path, monkeypatch):
    (tmp_path / "images").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"did you mean images\?$"):
        open_dataset("image/", "train")
