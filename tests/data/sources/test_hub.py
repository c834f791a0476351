"""Sets on the Hub: read through Hugging Face datasets, and plain words where they, or the network, are missing."""

import pickle
import shutil
import sys
from unittest.mock import MagicMock

import pytest
from tiny_sets import make_parquet, number_of

from vitreous.data.datasets import open_dataset
from vitreous.data.images import ImageError
from vitreous.data.prefetch import prefetch
from vitreous.data.sources.hub import is_hub_name
from vitreous.data.splits import open_split

NAMES = ["cat", "dog"]


@pytest.fixture
def zoo(tmp_path):
    """A dataset's folder as it lies on the Hub, which the library opens without a network."""
    pytest.importorskip("datasets")
    make_parquet(tmp_path / "zoo/data/train-00000-of-00001.parquet", [0, 1, 0, 1, 0], names=NAMES)
    make_parquet(tmp_path / "zoo/data/test-00000-of-00001.parquet", [1, 0], first=5, names=NAMES)
    return tmp_path / "zoo"


@pytest.fixture
def offline(monkeypatch):
    from huggingface_hub import HfApi

    def refuse(*request, **options):
        raise OSError("no network")

    monkeypatch.setattr(HfApi, "dataset_info", refuse)


def test_a_dataset_is_the_same_as_its_parquet_files(zoo, tmp_path):
    for split in ("train", "test"):
        hub, plain = open_dataset(f"hf:{zoo}", split, tmp_path / "cache"), open_dataset(zoo, split)
        assert (hub.class_names, hub.labels) == (plain.class_names, plain.labels)
        assert [number_of(p) for p in prefetch(hub.image, range(len(hub)))] == [
            number_of(plain.image(i)) for i in range(len(plain))
        ]
    assert hub.describe(1) == f"{zoo} test #1"


def test_a_dataset_can_be_pickled_and_has_a_lasting_fingerprint(zoo, tmp_path):
    data, again = (open_dataset(f"hf:{zoo}", "train", tmp_path / "cache") for _ in range(2))
    copy = pickle.loads(pickle.dumps(data))
    assert number_of(copy.image(3)) == 3
    assert copy.fingerprint == again.fingerprint != open_dataset(f"hf:{zoo}", "test", tmp_path / "cache").fingerprint


def test_splits_are_divided_joined_or_missing_as_elsewhere(zoo, tmp_path):
    train, test = open_split(f"hf:{zoo}", tmp_path / "cache")
    assert (len(train), len(test)) == (5, 2)
    with pytest.raises(FileNotFoundError, match=r"no validation split \(it has train, test\)"):
        open_dataset(f"hf:{zoo}", "validation", tmp_path / "cache")


def test_a_broken_image_is_named(tmp_path):
    pytest.importorskip("datasets")
    make_parquet(tmp_path / "zoo/test.parquet", [0, 1, 1], names=NAMES, images=[b"", None, b"not an image"])
    data = open_dataset(f"hf:{tmp_path}/zoo", "test", tmp_path / "cache")
    for i in range(3):
        with pytest.raises(ImageError, match=f"zoo test #{i}: "):
            data.image(i)


def test_files_that_cannot_be_converted_are_one_line(tmp_path):
    pytest.importorskip("datasets")
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo/test.parquet").write_bytes(b"not parquet")
    with pytest.raises(FileNotFoundError, match="^hf:.*zoo could not be downloaded: .*; run again to continue$"):
        open_dataset(f"hf:{tmp_path}/zoo", "test", tmp_path / "cache")


def test_offline_one_line_says_what_to_do_and_does_not_wait(tmp_path, offline):
    pytest.importorskip("datasets")
    for name in ("org/zoo", "hf:org/zoo", "hf:zoo"):
        with pytest.raises(FileNotFoundError) as caught:
            open_dataset(name, "train", tmp_path / "cache")
        text = str(caught.value)
        assert text.startswith(f"{name.removeprefix('hf:')} is neither a folder here nor in the cache, and the Hub ")
        assert "go online to download it once, or give a folder of images or parquet files" in text
        assert "\n" not in text


def test_what_was_downloaded_before_is_opened_offline(zoo, tmp_path, offline):
    kept = open_dataset(f"hf:{zoo}", "train", tmp_path / "cache")
    assert len(kept) == 5
    (tmp_path / "cache/huggingface/zoo").rename(tmp_path / "cache/huggingface/org___zoo")
    shutil.rmtree(zoo)
    data = open_dataset("org/zoo", "train", tmp_path / "cache")
    assert (data.class_names, data.labels, number_of(data.image(4))) == (("cat", "dog"), kept.labels, 4)


def test_a_name_that_the_hub_does_not_have_is_said_so(tmp_path, monkeypatch):
    pytest.importorskip("datasets")
    from huggingface_hub import HfApi, errors

    def missing(*request, **options):
        raise errors.RepositoryNotFoundError("404", response=MagicMock())

    monkeypatch.setattr(HfApi, "dataset_info", missing)
    with pytest.raises(FileNotFoundError, match="pics/cats is neither a folder here .* the Hub has no such dataset"):
        open_dataset("pics/cats", root=tmp_path)


def test_without_the_library_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    needs = r"needs Hugging Face datasets: pip install 'vitreous\[hub\]'"
    with pytest.raises(ImportError, match=f"^hf:org/zoo {needs}$"):
        open_dataset("hf:org/zoo")
    with pytest.raises(ImportError, match=f"^there is no folder pics/cats here; as a dataset on the Hub it {needs}$"):
        open_dataset("pics/cats")


def test_only_what_can_be_a_hub_name_is_asked_for(tmp_path, monkeypatch):
    assert is_hub_name("uoft-cs/cifar10")
    assert is_hub_name("org/name:config")
    (tmp_path / "org/name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for name in (
        "org/name",
        "./name",
        "../a/b",
        "~/pics",
        "pics",
        "pics/",
        "a/b/c",
        "a/b.parquet",
        "C:\\pics",
        tmp_path / "a/b",
    ):
        assert not is_hub_name(name), name
