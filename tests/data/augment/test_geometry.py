"""Shift, mirror, crop and erased box: against loops, and against torchvision's crop."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision.transforms.v2 import RandomResizedCrop
from torchvision.transforms.v2 import functional as torchvision

from vitreous.data.augment import geometry as framing
from vitreous.data.augment.geometry import (
    crop_and_resize,
    draw_box,
    draw_crop,
    draw_erasure,
    draw_shift,
    fill_box,
    move,
)
from vitreous.data.counter_random import CounterRandom


def same(*values):
    return tuple(torch.tensor([value]) for value in values)


@given(st.integers(1, 9), st.integers(1, 9), st.data())
def test_moving_equals_a_loop_over_pixels(height, width, data):
    down, right = data.draw(st.integers(-height, height)), data.draw(st.integers(-width, width))
    mirrored = data.draw(st.booleans())
    pixels = torch.randint(1, 256, (1, 2, height, width), dtype=torch.uint8)
    expected = torch.zeros_like(pixels)
    for y in range(height):
        for x in range(width):
            if 0 <= y + down < height and 0 <= x + right < width:
                expected[..., y + down, x + right] = pixels[..., y, x]
    expected = expected.flip(-1) if mirrored else expected
    assert torch.equal(move(pixels, *same(down, right, mirrored)), expected)


def test_each_image_moves_by_itself():
    pixels = torch.randint(1, 256, (3, 1, 5, 5), dtype=torch.uint8)
    down, right, mirrored = torch.tensor([1, 0, -2]), torch.tensor([0, -1, 3]), torch.tensor([False, True, True])
    together = move(pixels, down, right, mirrored)
    for i in range(3):
        part = slice(i, i + 1)
        assert torch.equal(together[part], move(pixels[part], down[part], right[part], mirrored[part]))


def test_shifts_reach_their_bound_both_ways_and_round_like_torchvision():
    shifts = draw_shift(CounterRandom.of(0, 0, torch.arange(100_000)), "shift", 0.1, 32)
    counts = torch.bincount(shifts + 3) / len(shifts)
    assert shifts.min() == -3
    assert shifts.max() == 3
    # 6.4 pixels of room; the outermost rounds from 2.5 to 3.2
    torch.testing.assert_close(counts, torch.tensor([0.7, 1, 1, 1, 1, 1, 0.7]) / 6.4, atol=0.006, rtol=0)


@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 3))
def test_a_crop_of_everything_to_the_same_size_changes_nothing(height, width, colours):
    pixels = torch.randint(0, 256, (2, colours, height, width), dtype=torch.uint8)
    whole = tuple(torch.full((2,), value) for value in (0, 0, height, width))
    assert torch.equal(crop_and_resize(pixels, whole, (height, width)), pixels)


@pytest.mark.parametrize("side", [224, 256, 1024])
def test_a_crop_of_everything_changes_nothing_in_large_images(side):
    pixels = torch.randint(0, 256, (1, 1, side, side), dtype=torch.uint8)
    assert torch.equal(crop_and_resize(pixels, same(0, 0, side, side), (side, side)), pixels)


@given(st.data())
def test_a_crop_equals_torchvision(data):
    height, width = data.draw(st.integers(2, 40)), data.draw(st.integers(2, 40))
    tall, wide = data.draw(st.integers(1, height)), data.draw(st.integers(1, width))
    top, left = data.draw(st.integers(0, height - tall)), data.draw(st.integers(0, width - wide))
    size = (data.draw(st.integers(1, 40)), data.draw(st.integers(1, 40)))
    pixels = torch.randint(0, 256, (1, 3, height, width), dtype=torch.uint8)
    ours = crop_and_resize(pixels, same(top, left, tall, wide), size)
    theirs = torchvision.resized_crop(pixels.float(), top, left, tall, wide, list(size), antialias=False)
    assert (ours - theirs).abs().max() <= 0.5 + 1e-2  # ours is rounded


def draw_many(images=50_000):
    return CounterRandom.of(0, 0, torch.arange(images))


def test_crops_have_the_area_and_shape_asked_for():
    size, share = (200, 200), (0.25, 0.5)
    top, left, tall, wide = draw_crop(draw_many(), size, share)
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (top + tall <= 200).all()
    assert (left + wide <= 200).all()
    area, ratio = tall * wide / 200**2, wide / tall
    # uniform between the two, up to the rounding of sides
    assert area.min() == pytest.approx(0.25, abs=0.01)
    assert area.max() == pytest.approx(0.5, abs=0.01)
    assert area.mean() == pytest.approx(0.375, abs=0.005)
    assert ratio.min() == pytest.approx(3 / 4, abs=0.02)
    assert ratio.max() == pytest.approx(4 / 3, abs=0.02)
    assert ratio.log().mean() == pytest.approx(0, abs=0.005)
    assert (top / (200 - tall)).mean() == pytest.approx(0.5, abs=0.01)
    assert (left / (200 - wide)).mean() == pytest.approx(0.5, abs=0.01)


def test_a_box_that_does_not_fit_is_drawn_again():
    """Nearly the whole area and any shape: most first attempts are too wide or too tall."""
    (_, _, tall, wide), found = draw_box(draw_many(), "test", (100, 100), (0.8, 1.0), (3 / 4, 4 / 3))
    assert found.float().mean() > 0.9
    assert (tall[found] * wide[found] / 1e4).min() > 0.78


@pytest.mark.parametrize(("size", "middle"), [((10, 100), (0, 43, 10, 13)), ((100, 10), (43, 0, 13, 10))])
def test_a_crop_that_never_fits_is_the_middle(size, middle):
    """In an image ten times as wide as tall, all of the area at 4/3 does not fit."""
    box = draw_crop(draw_many(8), size, (1.0, 1.0))
    assert [side.unique().tolist() for side in box] == [[value] for value in middle]
    assert RandomResizedCrop(8, scale=(1.0, 1.0)).make_params([torch.zeros(1, *size)]) == {
        "top": middle[0],
        "left": middle[1],
        "height": middle[2],
        "width": middle[3],
    }


def test_erased_boxes_are_torchvisions_in_size_and_frequency():
    (top, left, tall, wide), erased = draw_erasure(draw_many(), (100, 100), 0.25)
    assert erased.float().mean() == pytest.approx(0.25, abs=0.01)
    area, ratio = (tall * wide / 1e4)[erased], (tall / wide)[erased]
    assert area.min() == pytest.approx(0.02, abs=0.005)
    assert area.max() == pytest.approx(0.33, abs=0.01)
    assert ratio.min() == pytest.approx(0.3, abs=0.03)
    assert ratio.max() == pytest.approx(3.3, abs=0.3)
    assert (top + tall <= 100).all()
    assert (left + wide <= 100).all()
    assert tall[erased].max() < 100


def test_a_box_fills_its_pixels_alone():
    mask = fill_box(same(1, 2, 3, 1), (5, 4))[0, 0]
    expected = torch.zeros(5, 4, dtype=torch.bool)
    expected[1:4, 2:3] = True
    assert torch.equal(mask, expected)


def test_attempts_differ_from_each_other(monkeypatch):
    chance = draw_many(2000)
    once = draw_crop(chance, (50, 50), (0.8, 1.0))
    monkeypatch.setattr(framing, "ATTEMPTS", 1)
    assert not torch.equal(once[2], draw_crop(chance, (50, 50), (0.8, 1.0))[2])
