"""Sets decoded once: the model's own view, cached, and honest about what cannot be read."""

import os
import shutil
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from vitreous.data.datasets import open_dataset
from vitreous.data.decoded import array_bytes, decode
from vitreous.data.image_dataset import ImageDataset
from vitreous.data.preprocess import Preprocess

VIEW = Preprocess(size=(6, 6), resize=6, mean=(0.5,) * 3, std=(0.5,) * 3)


@pytest.fixture
def folder(tmp_path):
    chance = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (tmp_path / "zoo" / name).mkdir(parents=True)
        for i in range(4):
            pixels = chance.integers(0, 255, (9, 7, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "zoo" / name / f"{i}.png")
    return tmp_path / "zoo"


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def test_decoded_images_are_the_views_of_the_model(folder, cache):
    data = open_dataset(folder)
    pixels = decode(data, VIEW, cache=cache)
    assert pixels.dtype == torch.uint8
    assert pixels.shape == (8, 3, 6, 6)
    assert pixels.nbytes == array_bytes(data, VIEW)
    for i in range(8):
        view = np.asarray(VIEW.view(Image.open(data.image(i)).convert("RGB")))
        assert np.array_equal(pixels[i].numpy(), view.transpose(2, 0, 1))


def test_the_second_time_nothing_is_decoded(folder, cache):
    data = open_dataset(folder)
    first, seen = decode(data, VIEW, cache=cache), []
    again = decode(replace(data, image=lambda i: pytest.fail("decoded again")), VIEW, cache=cache, progress=seen.append)
    assert torch.equal(first, again)
    assert seen == [8]
    assert [path.suffix for path in cache.iterdir()] == [".npy"]


def test_writing_to_decoded_images_does_not_reach_the_cache(folder, cache):
    data = open_dataset(folder)
    pixels = decode(data, VIEW, cache=cache)
    before = pixels.clone()
    pixels.zero_()
    assert torch.equal(decode(data, VIEW, cache=cache), before)


def test_another_view_a_changed_file_and_other_images_are_decoded_anew(folder, cache):
    decode(open_dataset(folder), VIEW, cache=cache)
    decode(open_dataset(folder), replace(VIEW, size=(4, 4), resize=4), cache=cache)
    decode(open_dataset(folder).take([1, 2]), VIEW, cache=cache)
    Image.new("RGB", (30, 30), "teal").save(folder / "cat/0.png")
    changed = decode(open_dataset(folder), VIEW, cache=cache)
    assert len(list(cache.iterdir())) == 4
    assert changed[0].flatten(1).unique(dim=1).shape == (3, 1)
    decode(open_dataset(folder), replace(VIEW, mean=(0.0,) * 3, std=(1.0,) * 3), cache=cache)
    assert len(list(cache.iterdir())) == 4  # normalisation comes later


@pytest.mark.parametrize("damage", [lambda data: data[:-10], lambda data: b"", lambda data: b"x" * len(data)])
def test_a_cached_file_that_was_cut_short_is_decoded_anew(folder, cache, damage):
    data = open_dataset(folder)
    first = decode(data, VIEW, cache=cache).clone()
    (path,) = cache.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    assert torch.equal(decode(data, VIEW, cache=cache), first)


def test_unreadable_images_are_named_in_one_line_and_nothing_is_left(folder, cache):
    (folder / "cat/1.png").write_bytes(b"")
    (folder / "dog/2.png").write_text("no image")
    with pytest.raises(ValueError, match=r"2 of 8 images cannot be read: .*cat/1.png.*dog/2.png.*Repair them") as error:
        decode(open_dataset(folder), VIEW, cache=cache)
    assert "\n" not in str(error.value)
    assert not list(cache.iterdir())


def test_many_unreadable_images_are_counted(cache):
    data = ImageDataset("zoo", ("cat",), (0,) * 9, lambda i: SimpleNamespace(), name_of=lambda i: f"{i}.png")
    broken = replace(data, image=lambda i: __import__("pathlib").Path(f"/nowhere/{i}.png"))
    with pytest.raises(ValueError, match="9 of 9 images .*and 4 more"):
        decode(broken, VIEW, cache=cache)


def test_too_little_space_is_said_before_it_is_used(folder, cache, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(OSError, match="free some space, or set VITREOUS_CACHE"):
        decode(open_dataset(folder), VIEW, cache=cache)
    assert not list(cache.iterdir())


def test_a_cache_that_cannot_be_made_is_an_error(folder, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="set VITREOUS_CACHE to another folder, or pass --resident no"):
        decode(open_dataset(folder), VIEW, cache=tmp_path / "file/cache")


def test_the_environment_names_the_cache(folder, cache, monkeypatch):
    monkeypatch.setenv("VITREOUS_CACHE", str(cache))
    decode(open_dataset(folder), VIEW)
    assert len(list(cache.iterdir())) == 1


def test_a_dataset_with_a_very_long_name_is_cached(folder, cache):
    decode(replace(open_dataset(folder), name="z" * 250), VIEW, cache=cache)
    (path,) = cache.iterdir()
    assert path.name.startswith("z" * 64 + "-")


def test_progress_reaches_the_end(folder, cache):
    seen = []
    decode(open_dataset(folder), VIEW, cache=cache, progress=seen.append)
    assert seen[-1] == 8


def test_a_reader_that_is_interrupted_leaves_nothing(folder, cache):
    def stop(i):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        decode(replace(open_dataset(folder), image=stop), VIEW, cache=cache)
    assert not list(cache.iterdir())


def test_what_killed_processes_left_long_ago_is_swept(folder, cache):
    cache.mkdir()
    for name, age in (("old", 3 * 24 * 3600), ("new", 60)):
        (cache / f"{name}.123.partial").write_bytes(b"half")
        os.utime(cache / f"{name}.123.partial", (time.time() - age,) * 2)
    decode(open_dataset(folder), VIEW, cache=cache)
    assert [path.name for path in cache.glob("*.partial")] == ["new.123.partial"]


def with_masks(folder):
    """Masks whose values are the images' first colour, 0 to 254."""

    def mask(i):
        pixels = np.asarray(Image.open(data.image(i)))[:, :, 0]
        return Image.fromarray(np.minimum(pixels, 254))

    data = replace(open_dataset(folder), task="segment", mask=mask)
    return data


def test_a_mask_is_the_last_channel(folder, cache):
    data = with_masks(folder)
    view = replace(VIEW, size=(6, 10), resize=None)  # as it is, cropped at one side and padded at the other
    pixels = decode(data, view, cache=cache)
    assert pixels.shape == (8, 4, 6, 10)
    assert pixels.nbytes == array_bytes(data, view)
    inside = slice(1, 8)
    assert torch.equal(pixels[:, 3, :, inside], pixels[:, 0, :, inside].clamp(max=254))
    assert (pixels[:, 3, :, [0, 8, 9]] == 255).all()
    assert torch.equal(pixels[:, :3], decode(open_dataset(folder), view, cache=cache))
    again = decode(replace(data, image=lambda i: pytest.fail("decoded again")), view, cache=cache)
    assert torch.equal(again, pixels)


def test_an_image_whose_mask_cannot_be_used_is_left_out(folder, cache):
    data = with_masks(folder)
    whole, problems = data.mask, {}
    broken = replace(data, mask=lambda i: whole(i) if i != 3 else Image.new("L", (2, 2)))
    decode(broken, VIEW, cache=cache, problems=problems)
    assert problems == {
        3: "its mask is 2×2 pixels, the image 7×9: each pixel needs a class; save the mask at that size"
    }
    with pytest.raises(ValueError, match=r"1 of 8 images cannot be read: .*3.png: its mask is 2×2 pixels"):
        decode(broken, VIEW, cache=cache)
