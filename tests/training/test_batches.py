"""Where images come from: the same whether they are kept or decoded on the fly, and chance is a function."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from tiny_runs import make_images, plain

from vitreous.data.augment.geometry import draw_crop
from vitreous.data.augment.pipeline import Augment
from vitreous.data.counter_random import CounterRandom
from vitreous.data.datasets import open_dataset
from vitreous.data.image_dataset import ImageDataset
from vitreous.data.images import ImageError
from vitreous.data.preprocess import Preprocess
from vitreous.data.splits import open_split
from vitreous.training.batches import BatchSource, balanced_order, cropped, epoch_order, with_margin

VIEW = Preprocess(size=(8, 8), resize=8, mean=(0.5,) * 3, std=(0.5,) * 3)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("zoo") / "zoo", size=14)


def source_of(zoo, view=VIEW, *, training=True, **changes):
    return BatchSource(open_split(zoo)[0], view, plain(zoo, **changes), CPU, training=training)


def shown(source, epoch, size=8, first=0):
    """Numbers, copies and pixels of an epoch's batches."""
    batches = list(source.epoch(epoch, size, first))
    pixels = [source.pixels[b.indices] if b.pixels is None else b.pixels for b in batches]
    return [torch.cat(part) for part in ([b.indices for b in batches], [b.copies for b in batches], pixels)]


@given(st.integers(0, 2**40), st.integers(0, 1000), st.integers(1, 200))
def test_an_epoch_shows_every_image_once(seed, epoch, images):
    indices, copies = epoch_order(seed, epoch, images)
    assert indices.sort().values.tolist() == list(range(images))
    assert not copies.any()


@given(st.integers(1, 120), st.integers(2, 5))
def test_repeats_show_an_image_side_by_side_with_another_copy_each(images, repeats):
    indices, copies = epoch_order(0, 1, images, repeats)
    assert len(indices) == len(copies) == images
    counts = Counter(indices.tolist())
    assert max(counts.values()) <= repeats
    assert sum(count < repeats for count in counts.values()) <= 1  # where the epoch ends
    assert len(set(zip(indices.tolist(), copies.tolist(), strict=True))) == images
    assert (indices[:-1] == indices[1:])[torch.arange(images - 1) % repeats < repeats - 1].all()


def test_another_epoch_or_seed_is_another_order():
    first = epoch_order(0, 0, 50)[0]
    assert torch.equal(first, epoch_order(0, 0, 50)[0])
    assert not torch.equal(first, epoch_order(0, 1, 50)[0])
    assert not torch.equal(first, epoch_order(1, 0, 50)[0])


def test_kept_and_streamed_images_are_the_same(zoo):
    kept, streamed = (source_of(zoo, resident=choice) for choice in ("yes", "no"))
    assert kept.resident
    assert not streamed.resident
    for epoch in (0, 3):
        for one, other in zip(shown(kept, epoch), shown(streamed, epoch), strict=True):
            assert torch.equal(one, other)
    for (pixels, labels), (others, theirs) in zip(kept.all(5), streamed.all(5), strict=True):
        assert torch.equal(pixels, others)
        assert torch.equal(labels, theirs)


@pytest.mark.parametrize("resident", ["yes", "no"])
def test_an_epoch_can_be_entered_in_the_middle(zoo, resident):
    source = source_of(zoo, resident=resident)
    whole, late = shown(source, 2), shown(source, 2, first=2)
    assert len(whole[0]) == len(source.data) // 8 * 8
    for one, other in zip(whole, late, strict=True):
        assert torch.equal(one[16:], other)


def test_a_streamed_crop_depends_on_seed_epoch_image_and_copy_alone(zoo):
    def crops(epoch=0, size=8, **changes):
        source = source_of(zoo, resident="no", crop=(0.3, 0.9), **changes)
        indices, copies, pixels = shown(source, epoch, size)
        assert pixels.shape[1:] == (3, 8, 8)
        return dict(zip(zip(indices.tolist(), copies.tolist(), strict=True), pixels, strict=True))

    first = crops()
    again = crops(size=4, workers=1)  # other batches, another number of threads
    shared = first.keys() & again.keys()
    assert len(shared) > 16
    assert all(torch.equal(first[key], again[key]) for key in shared)
    for other in (crops(epoch=1), crops(seed=1)):
        shared = first.keys() & other.keys()
        assert sum(torch.equal(first[key], other[key]) for key in shared) < 0.2 * len(shared)
    copies = crops(repeats=2)
    pairs = [(copies[i, 0], copies[i, 1]) for i, copy in copies if copy == 1]
    assert pairs
    assert not any(torch.equal(one, other) for one, other in pairs)


def test_images_to_be_cropped_are_kept_with_a_margin_and_test_images_are_not(zoo):
    assert source_of(zoo, resident="yes", crop=(0.3, 0.9)).pixels.shape[2:] == (10, 10)
    assert source_of(zoo, resident="yes", crop=(0.3, 0.9), training=False).pixels.shape[2:] == (8, 8)
    assert with_margin(Preprocess(size=(224, 224), resize=256, mean=VIEW.mean, std=VIEW.std)).size == (256, 256)


@pytest.mark.parametrize("resident", ["yes", "no"])
def test_unreadable_images_are_left_out_and_known_by_name_each_time(tmp_path, resident):
    folder = make_images(tmp_path / "zoo")
    whole = source_of(folder, resident=resident)
    i = next(i for i in range(len(whole.data)) if "dog" in whole.data.describe(i))
    name = whole.data.describe(i)
    kept = [j for j in range(len(whole.data)) if j != i]
    Path(name).write_bytes(b"no image")
    for _ in range(2):  # decoded, then from the cache
        source = source_of(folder, resident=resident)
        assert [str(problem).startswith(f"{name}: ") for problem in source.unreadable] == [True]
        assert source.data.labels == tuple(whole.data.labels[j] for j in kept)
        assert torch.equal(source.some([0, len(kept) - 1]), whole.some([0, len(whole.data) - 1]))
        assert torch.equal(torch.cat([pixels for pixels, _ in source.all(5)]), whole.some(kept))


def test_an_image_that_becomes_readable_is_used_although_its_time_is_the_same(tmp_path, monkeypatch):
    folder = make_images(tmp_path / "zoo")

    def forbid(*arguments):
        raise ImageError("zoo", "permission denied")

    with monkeypatch.context() as patch:
        patch.setattr("vitreous.data.masks.read_image", forbid)
        assert len(source_of(folder, resident="yes").data) == 0
    assert source_of(folder, resident="yes").unreadable == []


def test_an_image_that_goes_bad_on_the_fly_is_named(tmp_path):
    folder = make_images(tmp_path / "zoo")
    source = source_of(folder, resident="no")
    (folder / "dog/003.png").write_bytes(b"no image")
    with pytest.raises(ImageError, match="dog/003.png"):
        shown(source, 0, 1)


@pytest.mark.parametrize("labels", [[0] * 9 + [1] * 3, [0] * 7 + [1] * 2 + [2], [0, 1]])
@given(seed=st.integers(0, 2**40), epoch=st.integers(0, 9))
def test_balanced_sampling_gives_each_class_its_share_and_counts_copies(labels, seed, epoch):
    indices, copies = balanced_order(seed, epoch, labels)
    assert len(indices) == len(labels)
    drawn = torch.bincount(torch.tensor(labels)[indices])
    assert drawn.max() - drawn.min() <= 1
    for i in set(indices.tolist()):  # 0, 1, 2, … for each image: its augmentations differ
        assert sorted(copies[indices == i].tolist()) == list(range(int((indices == i).sum())))
    assert torch.equal(indices, balanced_order(seed, epoch, labels)[0])


def test_a_balanced_run_samples_a_rare_class_as_often(tmp_path):
    folder = make_images(tmp_path / "zoo", each=20)
    for path in sorted((folder / "owl").iterdir())[3:]:
        path.unlink()
    source = source_of(folder, balance="sampling", resident="yes")
    seen = torch.cat([source.labels[batch.indices] for batch in source.epoch(0, 8)])
    assert torch.bincount(seen).min() >= len(seen) // 3 - 3
    assert torch.bincount(source.labels)[2] <= 3


def test_a_reader_that_stops_early_does_not_wait_for_all_images(zoo):
    source, read = source_of(zoo, resident="no", workers=1), []
    opened = source.data.image
    source.data = replace(source.data, image=lambda i: (read.append(i), opened(i))[1])
    batches = source.epoch(0, 2)
    next(batches)
    batches.close()
    assert 2 <= len(read) <= 9  # a batch, the six images that are decoded ahead, and one that was begun
    assert len(source.data) > 20


def test_grey_models_get_one_channel(zoo):
    view = Preprocess(size=(8, 8), resize=8, mean=(0.5,), std=(0.5,))
    kept, streamed = (shown(source_of(zoo, view, resident=choice), 0)[2] for choice in ("yes", "no"))
    assert kept.shape[1] == 1
    assert torch.equal(kept, streamed)


def test_large_sets_are_not_kept_unless_asked_to(monkeypatch):
    data = ImageDataset("huge", ("a",), (0,) * 10, lambda i: Image.new("RGB", (8, 8)))
    monkeypatch.setattr("vitreous.training.batches.array_bytes", lambda data, view: 1 << 60)
    monkeypatch.setattr("vitreous.training.batches.decode", lambda *a, **k: torch.zeros(10, 3, 8, 8, dtype=torch.uint8))
    assert not BatchSource(data, VIEW, plain("x"), CPU, training=True).resident
    assert BatchSource(data, VIEW, plain("x", resident="yes"), CPU, training=True).resident


# --- labels, numbers, masks -------------------------------------------------------------------------------------------


def ramps(tmp_path, images=6):
    """Photos whose red and green say where each pixel is, and masks of blocks of 16 pixels, 0 to 5."""
    y, x = np.mgrid[:64, :48]
    for kind in ("images", "masks"):
        (tmp_path / kind).mkdir(parents=True)
    for i in range(images):
        pixels = np.stack([20 + 4 * x, 20 + 3 * y, np.full_like(x, 20 + 30 * i)], -1).astype(np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"images/{i}.png")
        Image.fromarray(blocks(y, x, i).astype(np.uint8)).save(tmp_path / f"masks/{i}.png")
    return tmp_path


def blocks(y, x, image):
    return (y // 16 + 2 * (x // 16) + image) % 6


def check_blocks(pixels):
    """Compare a mask with what its image says, away from the blocks' edges; return how many pixels were compared."""
    red, green, blue, mask = pixels.long().unbind(1)
    x, y, image = (red - 20) / 4, (green - 20) / 3, (blue - 20) // 30
    sure = (((x + 8) % 16 - 8).abs() > 1.5) & (((y + 8) % 16 - 8).abs() > 1.5) & (blue >= 20)
    expected = blocks(y.long(), x.long(), image)
    assert torch.equal(mask[sure], expected[sure])
    return int(sure.sum())


@pytest.mark.parametrize("crop", [None, (0.2, 1.0)])
@pytest.mark.parametrize("resident", ["yes", "no"])
def test_a_mask_is_cropped_with_its_image(tmp_path, crop, resident):
    data = open_dataset(ramps(tmp_path))
    view = replace(VIEW, size=(40, 40), resize=44, interpolation="bilinear")
    config = plain(tmp_path, crop=crop, resident=resident)
    source = BatchSource(data, view, config, CPU, training=True)
    _, _, pixels = shown(source, 0, 6)
    assert pixels.shape == (6, 4, *(source.stored.size if source.resident else view.size))
    assert check_blocks(pixels) > 0.5 * pixels[:, 0].numel()
    assert crop is None or not torch.equal(shown(source, 1, 6)[2], pixels)
    if crop and source.resident:  # then the crop is augmentation's
        augment = Augment(size=view.size, mean=view.mean, std=view.std, classes=6, crop=crop, masks=True)
        images, masks = augment(pixels, source.labels, CounterRandom.of(0, 0, torch.arange(6)))
        back = ((images * 0.5 + 0.5) * 255).round().to(torch.uint8)
        assert check_blocks(torch.cat([back, masks[:, None].to(torch.uint8)], 1)) > 0.5 * masks.numel()


def test_masks_are_the_same_kept_or_decoded_on_the_fly(tmp_path):
    data = open_dataset(ramps(tmp_path))
    view = replace(VIEW, size=(40, 60), resize=(40, 60), pad=True)
    sources = [BatchSource(data, view, plain(tmp_path, resident=kept), CPU, training=False) for kept in ("yes", "no")]
    ours, theirs = ([torch.cat(part) for part in zip(*source.all(4), strict=True)] for source in sources)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert torch.equal(sources[0].some([4, 1]), sources[1].some([4, 1]))
    assert (ours[0][:, 3, :, 0] == 255).all()  # beyond the edges
    assert torch.equal(ours[1], torch.zeros(6, dtype=torch.int64))


@pytest.mark.parametrize("resident", ["yes", "no"])
def test_targets_of_labels_and_numbers_are_floats(tmp_path, resident):
    folder = ramps(tmp_path)
    rows = [f"images/{i}.png,{i / 2},{-i}" for i in range(6)]
    (folder / "my.csv").write_text("\n".join(["image,age,height", *rows]))
    (folder / "images/3.png").write_bytes(b"damaged")
    source = BatchSource(open_dataset(folder / "my.csv"), VIEW, plain(folder, resident=resident), CPU, training=True)
    assert len(source.unreadable) == 1
    assert source.labels.dtype == torch.float32
    assert source.labels.tolist() == [[i / 2, -i] for i in range(6) if i != 3]
    given = torch.cat([labels for _, labels in source.all(2)])
    assert torch.equal(given, source.labels)


def test_balance_is_for_classes(tmp_path):
    with pytest.raises(ValueError, match="--balance sampling is for classes, and the task is segment: leave it out"):
        BatchSource(open_dataset(ramps(tmp_path)), VIEW, plain(tmp_path, balance="sampling"), CPU, training=True)


def wide_images(folder, images=8):
    """Images of 96×32 px: a dark third, a third of class 0, a bright third; class 1 and 2 are at the sides."""
    mask = np.repeat(np.repeat(np.array([[1, 0, 0, 0, 2]], np.uint8), [20, 19, 18, 19, 20], axis=1), 32, axis=0)
    for kind, pixels in (("images", 100 * mask), ("masks", mask)):
        (folder / kind).mkdir(parents=True)
        for i in range(images):
            Image.fromarray(pixels).save(folder / kind / f"{i}.png")
    return folder


def trained_masks(source, crop, epochs=6):
    """The masks that a model of 16 px learns from in some epochs, `[n h w]`."""
    view, found = source.preprocess, []
    augment = Augment(
        size=view.size, mean=view.mean, std=view.std, classes=3, crop=crop if source.resident else None, masks=True
    )
    for epoch in range(epochs):
        indices, _, pixels = shown(source, epoch)
        found.append(augment(pixels, source.labels, CounterRandom.of(0, epoch, indices))[1])
    return torch.cat(found)


def test_the_sides_of_wide_images_are_learned_by_a_model_that_squashes_them(tmp_path):
    data, crop, masks = open_dataset(wide_images(tmp_path)), (0.4, 1.0), {}
    view = replace(VIEW, size=(16, 16)).with_fit("squash")
    tested = BatchSource(data, view, plain(tmp_path), CPU, training=False).pixels[:, -1]
    for resident in ("yes", "no"):
        source = BatchSource(data, view, plain(tmp_path, crop=crop, resident=resident), CPU, training=True)
        masks[resident] = trained_masks(source, crop)
        for side in (1, 2):
            assert (masks[resident] == side).float().mean() > 0.6 * (tested == side).float().mean() > 0.1
    assert (masks["yes"] == masks["no"]).float().mean() > 0.9  # the same boxes, but for rounding


@pytest.mark.parametrize("view", [VIEW, replace(VIEW, resize=(9, 9), cover=True)])
def test_the_crop_of_a_model_that_crops_is_drawn_in_the_images_own_pixels(view):
    image, random = Image.effect_noise((60, 40), 90).convert("RGB"), CounterRandom.of(3, 1, torch.tensor([5]))
    top, left, height, width = (edge.item() for edge in draw_crop(random, (40, 60), (0.2, 0.9)))
    expected = image.resize((8, 8), Image.Resampling.BICUBIC, box=(left, top, left + width, top + height))
    assert np.array_equal(cropped(image, view, (0.2, 0.9), random).permute(1, 2, 0).numpy(), np.asarray(expected))
    assert with_margin(view) == replace(view, size=(10, 10), resize=(10, 10), cover=True)
