"""torchvision's datasets, with and without a network."""

import pickle
import struct
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from tiny_sets import make_folder, number_of

from vitreous.data.datasets import DATASETS, open_dataset


@pytest.fixture
def offline(monkeypatch):
    def refuse(*request, **options):
        raise urllib.error.URLError("no network")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)


@pytest.mark.parametrize("name", [name for name in DATASETS if name != "digits"])
def test_without_a_network_one_line_says_what_is_missing(name, tmp_path, offline, capfd):
    with pytest.raises(FileNotFoundError) as caught:
        open_dataset(name, root=tmp_path)
    text = str(caught.value)
    assert str(tmp_path) in text
    assert "\n" not in text
    assert "has to be put there" in text if name == "imagenet" else "check the network, or name a folder" in text
    assert capfd.readouterr().out == ""


def write_mnist(root):
    """The four files of MNIST with three images each."""
    folder = root / "MNIST/raw"
    folder.mkdir(parents=True)
    for part, first in (("train", 0), ("t10k", 50)):
        pixels = np.repeat(np.arange(first, first + 3, dtype=np.uint8), 28 * 28)
        (folder / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">4i", 0x803, 3, 28, 28) + pixels.tobytes())
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">2i", 0x801, 3) + bytes([7, 8, 9]))


def test_what_is_already_there_is_opened_without_a_network(tmp_path, offline):
    write_mnist(tmp_path)
    train, test = (open_dataset("mnist", split, tmp_path) for split in ("train", "test"))
    assert test.labels == (7, 8, 9)
    assert (train.image(1).getpixel((0, 0)), test.image(2).getpixel((0, 0))) == (1, 52)
    assert test.describe(2) == "MNIST test #2"
    assert train.fingerprint != test.fingerprint == open_dataset("mnist", "test", tmp_path).fingerprint
    assert pickle.loads(pickle.dumps(test)).image(2).getpixel((0, 0)) == 52


class Flowers:
    """Stands in for torchvision's Flowers102: files and labels, and an image is never opened."""

    classes = ("rose", "lily")

    def __init__(self, root, split, download):
        files = sorted((Path(root) / split).rglob("*.png"))
        self._image_files, self._labels = files, [i % 2 for i in range(len(files))]

    def __getitem__(self, i):
        pytest.fail("opened by torchvision, although the file is known")


def test_named_flowers_join_train_and_validation(tmp_path, monkeypatch):
    import torchvision.datasets

    monkeypatch.setattr(torchvision.datasets, "Flowers102", Flowers)
    for split, first in (("train", 0), ("val", 2), ("test", 4)):
        make_folder(tmp_path / split, {"flowers": 2}, first)
    data = open_dataset("flowers102", "train+validation", tmp_path)
    assert data.labels == (0, 1, 0, 1)
    assert [number_of(data.image(i)) for i in range(4)] == [0, 1, 2, 3]
    assert data.describe(2) == str(tmp_path / "val/flowers/2.png")
    with pytest.raises(FileNotFoundError, match=r"pets has no validation split \(it has train, test\)"):
        open_dataset("pets", "train+validation", tmp_path)
