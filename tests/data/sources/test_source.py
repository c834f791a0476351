from pathlib import Path

import pytest

from vitreous.data.image_dataset import ImageDataset
from vitreous.data.sources.source import DatasetSource, split_parts


def dataset(name):
    return lambda: ImageDataset(name, ("cat", "dog"), (0, 1), Path)


def test_a_split_is_found_by_its_usual_names():
    source = DatasetSource("zoo", {"training": dataset("a"), "val": dataset("b")})
    assert source.open("train").name == "a"
    assert source.open("test").name == source.open("validation").name == "b"
    assert source.open("train+validation").name == "a+b"
    assert source.spelled("test", without=["val"]) is None


def test_a_source_without_splits_is_a_test_split():
    source = DatasetSource("zoo", {}, dataset("all"))
    assert source.open("test").name == "all"
    with pytest.raises(FileNotFoundError, match="^zoo has no train split$"):
        source.open("train")


def test_a_missing_split_is_named_with_those_there_are_and_where_it_is_expected():
    source = DatasetSource("zoo", {"train": dataset("a")}, part="{}/ folder", layout="zoo/{}/<class>/<image>")
    with pytest.raises(FileNotFoundError, match=r"no test/ folder \(it has train\): expected zoo/test/<class>"):
        source.open("test")


@pytest.mark.parametrize(("split", "reason"), [("dev", "must be one of train"), ("test+test", "names a part twice")])
def test_other_splits_are_refused(split, reason):
    with pytest.raises(ValueError, match=reason):
        split_parts(split)
