"""TrivialAugment and RandAugment on batches: torchvision's bits, whatever the operation, strength, sign and size."""

from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision.transforms.v2 import RandAugment, TrivialAugmentWide

from vitreous.data.augment import randaugment as policies
from vitreous.data.augment.randaugment import (
    BINS,
    OPERATIONS,
    SPACES,
    RandomOperations,
    count_by_sorting,
    count_darker,
    list_strengths,
)
from vitreous.data.counter_random import CounterRandom

THEIRS = {"trivial": TrivialAugmentWide, "rand": RandAugment}
ROWS = [(operation, bin, sign) for operation in OPERATIONS for bin in range(BINS) for sign in (1, -1)]


build = cache(RandomOperations)


def draw_pixels(colours, size, images=4):
    """Noise; dull noise; a ramp with grey in half of it; one tone."""
    noise = torch.randint(0, 256, (images, colours, *size), dtype=torch.uint8)
    noise[1] = noise[1] // 3 + 60
    noise[2] = torch.linspace(0, 255, size[0] * size[1]).reshape(size).to(torch.uint8)
    noise[2, 0, : size[0] // 2] //= 2
    noise[3] = 77
    return noise


def apply_theirs(name, pixels, operation, bin, sign):
    transform = THEIRS[name]()
    strengths, signed = transform._AUGMENTATION_SPACE[operation]
    strengths = strengths(BINS, *pixels.shape[-2:])
    strength = 0.0 if strengths is None else float(strengths[bin]) * (sign if signed else 1)
    return transform._apply_image_or_video_transform(
        pixels, operation, strength, transform.interpolation, transform._fill
    )


@pytest.mark.slow
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("colours", [1, 3])
@pytest.mark.parametrize("size", [(8, 8), (16, 40), (32, 32), (64, 64)])
def test_every_operation_equals_torchvision(name, operation, colours, size):
    policy, pixels = build(name, size), draw_pixels(colours, size)
    changed = False
    for row, (its_operation, bin, sign) in enumerate(ROWS):
        if its_operation == operation and (bin % 3 == 1 or bin in (20, 30)):  # 20 rotates by 90°
            theirs = apply_theirs(name, pixels, operation, bin, sign)
            ours = policy.apply_rows(pixels, torch.full((len(pixels),), row))
            assert torch.equal(ours, theirs), f"{operation} {bin} {sign}"
            changed |= not torch.equal(ours, pixels)
    # too few pixels to equalize; and torchvision leaves the colour of grey images alone
    idle = operation == "Identity" or (operation == "Color" and colours == 1)
    assert changed is not (idle or (operation == "Equalize" and size == (8, 8)))


@pytest.mark.slow
@pytest.mark.parametrize("size", [(2, 2), (1, 9), (3, 3), (17, 40), (33, 33), (256, 256)])
def test_unusual_sizes_equal_torchvision_but_for_its_last_pixels(size):
    """Vector instructions take 32 pixels at a time, and what is left over is rounded in another way.

    There an image of one tone, its contrast changed by torchvision, has two: 77 became 76, and at the end 77.
    """
    policy, pixels = build("trivial", size), draw_pixels(3, size)
    left_over = torch.arange(size[0] * size[1]) >= size[0] * size[1] // 32 * 32
    for row in range(0, len(ROWS), 61):
        theirs = apply_theirs("trivial", pixels, *ROWS[row]).flatten(2).int()
        ours = policy.apply_rows(pixels, torch.full((len(pixels),), row)).flatten(2).int()
        if ROWS[row][0] in policies.BLENDS:
            assert (ours - theirs).abs().max() <= 1
            theirs = torch.where(left_over, ours, theirs)
        assert torch.equal(ours, theirs), ROWS[row]


@pytest.mark.parametrize("name", SPACES)
def test_the_spaces_are_torchvisions(name):
    space = THEIRS[name]._AUGMENTATION_SPACE
    assert tuple(space) == OPERATIONS
    for operation, (strengths, signed) in space.items():
        theirs = strengths(BINS, 20, 30)
        assert list_strengths(name, operation, (20, 30)) == ([0.0] * BINS if theirs is None else theirs.tolist())
        assert signed == (operation in policies.SIGNED)


@given(st.integers(0, 2**32), st.sampled_from([1, 3]))
def test_mixed_rows_in_one_batch_equal_each_row_alone(seed, colours):
    policy = build("trivial", (17, 40))
    pixels = draw_pixels(colours, (17, 40), images=12)
    rows = policy.draw_rows(CounterRandom.of(seed, 0, torch.arange(12)))
    together = policy.apply_rows(pixels, rows)
    for i in range(12):
        assert torch.equal(together[i : i + 1], policy.apply_rows(pixels[i : i + 1], rows[i : i + 1]))


def test_rand_augment_chains_operations_of_one_magnitude():
    policy = RandomOperations("rand", (16, 16), operations=3, magnitude=9)
    pixels, chance = draw_pixels(3, (16, 16), images=32), CounterRandom.of(0, 0, torch.arange(32))
    ours = policy(pixels, chance)
    turns = torch.stack([policy.draw_rows(chance, turn) for turn in range(3)], 1)
    for image, rows, done in zip(pixels, turns.tolist(), ours, strict=True):
        for row in rows:
            image = apply_theirs("rand", image, OPERATIONS[row // 2], 9, 1 - 2 * (row % 2))
        assert torch.equal(done, image)


def test_turns_draw_independent_operations():
    policy, chance = RandomOperations("rand", (8, 8), magnitude=9), CounterRandom.of(0, 0, torch.arange(10_000))
    first, second = (policy.draw_rows(chance, turn) // 2 for turn in range(2))
    pairs = torch.bincount(first * len(OPERATIONS) + second, minlength=len(OPERATIONS) ** 2)
    assert pairs.min() > 20  # 51 are expected of each
    assert pairs.max() < 90


def test_operations_strengths_and_signs_are_equally_likely():
    images = 200_000
    rows = build("trivial", (8, 8)).draw_rows(CounterRandom.of(0, 0, torch.arange(images)))
    counts = torch.bincount(rows, minlength=len(ROWS)).reshape(len(OPERATIONS), BINS, 2).double()
    for kept in range(3):
        share = counts.sum([axis for axis in range(3) if axis != kept]) / images
        expected = 1 / counts.shape[kept]
        spread = (expected * (1 - expected) / images) ** 0.5
        assert (share - expected).abs().max() < 5 * spread
    assert (counts > 0).all()


def test_large_batches_go_piece_by_piece_with_the_same_result(monkeypatch):
    policy, pixels = build("trivial", (17, 40)), draw_pixels(3, (17, 40), images=11)
    rows = torch.arange(11) * 77
    whole = policy.apply_rows(pixels, rows)
    monkeypatch.setattr(policies, "PIECE_ON_CPU", 3 * pixels[0].numel())
    sizes, count = [], policies.count_darker
    monkeypatch.setattr(policies, "count_darker", lambda channels: sizes.append(len(channels) // 3) or count(channels))
    assert torch.equal(policy.apply_rows(pixels, rows), whole)
    assert sizes == [3, 3, 3, 2]


@given(st.integers(1, 300), st.integers(1, 256))
def test_counting_and_sorting_find_the_same_numbers_of_darker_pixels(pixels, tones):
    bytes = torch.randint(0, tones, (3, pixels)).to(torch.uint8)
    expected = (bytes[:, :, None] < torch.arange(256)).sum(1)
    assert torch.equal(count_darker(bytes), expected)
    assert torch.equal(count_by_sorting(bytes), expected)


@pytest.mark.parametrize(("options", "complaint"), [({"name": "wide"}, "wide"), ({"magnitude": 31}, "31")])
def test_a_wrong_policy_is_refused(options, complaint):
    with pytest.raises(ValueError, match=complaint):
        RandomOperations(**{"name": "rand", "size": (8, 8)} | options)
