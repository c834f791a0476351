"""The whole augmentation: what an image gets depends on its seed, epoch and index, and on nothing else."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision.transforms import v2

from vitreous.data.augment.pipeline import Augment, soft_targets
from vitreous.data.counter_random import CounterRandom

COLOUR = {"size": (16, 16), "mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.25), "classes": 7}
GREY = {"size": (16, 16), "mean": (0.13,), "std": (0.31,), "classes": 7}
VARIED = {"shift": 0.2, "flip": True, "policy": "trivial", "erasing": 0.5, "label_smoothing": 0.1}
MIXED = VARIED | {"mixup": 0.8, "cutmix": 1.0, "mix_share": 0.9}
WAYS = [
    {},
    {"shift": 0.2},
    {"flip": True},
    {"crop": (0.3, 1.0)},
    {"policy": "trivial"},
    {"policy": "rand"},
    {"erasing": 0.7},
    VARIED | {"crop": (0.3, 1.0)},
]


def make_batch(colours=3, images=24, size=(16, 16)):
    pixels = torch.randint(1, 256, (images, colours, *size), dtype=torch.uint8)
    return pixels, torch.arange(images) % 7, torch.arange(images)


@pytest.mark.slow
@pytest.mark.parametrize("ways", WAYS)
@pytest.mark.parametrize("options", [GREY, COLOUR])
def test_an_image_does_not_depend_on_its_batch(ways, options):
    augment = Augment(**options, **ways)
    pixels, labels, indices = make_batch(len(options["mean"]))
    images, targets = augment(pixels, labels, CounterRandom.of(3, 5, indices))
    for part in (torch.tensor([4]), torch.tensor([20, 1, 7]), torch.randperm(24)):
        alone, its_targets = augment(pixels[part], labels[part], CounterRandom.of(3, 5, indices[part]))
        assert torch.equal(alone, images[part])
        assert torch.equal(its_targets, targets[part])


@pytest.mark.parametrize("ways", [*WAYS[1:], MIXED, {"mixup": 1.0}, {"cutmix": 1.0}])
def test_the_same_seed_gives_the_same_bits_and_another_epoch_others(ways):
    augment = Augment(**COLOUR, **ways)
    pixels, labels, indices = make_batch()
    images, targets = augment(pixels, labels, CounterRandom.of(3, 5, indices))
    again, same_targets = augment(pixels, labels, CounterRandom.of(3, 5, indices))
    assert torch.equal(again, images)
    assert torch.equal(same_targets, targets)
    for other in (
        CounterRandom.of(3, 6, indices),
        CounterRandom.of(4, 5, indices),
        CounterRandom.of(3, 5, indices, copy=1),
    ):
        assert not torch.equal(augment(pixels, labels, other)[0], images)


def test_without_options_it_only_normalises_as_torchvision():
    augment = Augment(**COLOUR)
    pixels, labels, indices = make_batch()
    scale = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(COLOUR["mean"], COLOUR["std"])])
    assert torch.equal(augment.plain(pixels), scale(pixels))
    images, targets = augment(pixels, labels, CounterRandom.of(0, 0, indices))
    assert torch.equal(images, scale(pixels))
    assert torch.equal(targets, torch.eye(7)[labels])
    assert images.dtype == targets.dtype == torch.float32


def test_about_half_of_the_images_are_mirrored():
    augment = Augment(**{**GREY, "size": (2, 3)}, flip=True)
    pixels = torch.arange(6, dtype=torch.uint8).reshape(1, 1, 2, 3).repeat(4000, 1, 1, 1)
    images, _ = augment(pixels, torch.zeros(4000, dtype=torch.int64), CounterRandom.of(0, 0, torch.arange(4000)))
    plain = augment.plain(pixels)
    mirrored = (images == plain.flip(-1)).flatten(1).all(1)
    assert ((images == plain).flatten(1).all(1) ^ mirrored).all()
    assert 0.47 < mirrored.float().mean() < 0.53


def test_without_flip_none_is_mirrored():
    augment = Augment(**GREY, shift=0.2)
    ramp = torch.arange(1, 17, dtype=torch.uint8).expand(500, 1, 16, 16)
    pixels = augment.vary(ramp, CounterRandom.of(0, 0, torch.arange(500))).int()
    steps = pixels.diff(dim=-1)[(pixels[..., 1:] > 0) & (pixels[..., :-1] > 0)]
    assert (steps == 1).all()


def test_shifts_down_and_right_are_independent():
    augment = Augment(**GREY, shift=0.125)
    dot = torch.zeros(2000, 1, 16, 16, dtype=torch.uint8)
    dot[:, :, 8, 8] = 255
    places = augment.vary(dot, CounterRandom.of(0, 0, torch.arange(2000))).flatten(1).int().argmax(1)
    rows, columns = (places // 16).unique().tolist(), (places % 16).unique().tolist()
    assert rows == columns == [6, 7, 8, 9, 10]
    assert places.unique().numel() == 25


def test_the_gap_of_a_shift_is_black_and_what_is_erased_is_the_mean():
    augment, pixels = Augment(**GREY, shift=0.3), torch.full((200, 1, 16, 16), 255, dtype=torch.uint8)
    labels, chance = torch.zeros(200, dtype=torch.int64), CounterRandom.of(0, 0, torch.arange(200))
    black, white = augment.plain(torch.tensor([0, 255], dtype=torch.uint8).reshape(2, 1, 1, 1).expand(2, 1, 16, 16))
    assert augment(pixels, labels, chance)[0].unique().tolist() == [black[0, 0, 0], white[0, 0, 0]]
    erased, _ = Augment(**GREY, erasing=0.5)(pixels, labels, chance)
    assert erased.unique().tolist() == [0.0, white[0, 0, 0]]
    assert 0.4 < (erased == 0).flatten(1).any(1).float().mean() < 0.6


def test_crops_resize_to_the_size_asked_for():
    augment = Augment(**COLOUR, crop=(0.1, 0.9))
    pixels, labels, indices = make_batch(size=(20, 31))
    images, _ = augment(pixels, labels, CounterRandom.of(0, 0, indices))
    assert images.shape == (24, 3, 16, 16)


def test_a_crop_of_everything_is_the_image():
    augment = Augment(**COLOUR, crop=(1.0, 1.0))
    pixels, labels, indices = make_batch()
    images, _ = augment(pixels, labels, CounterRandom.of(0, 0, indices))
    whole = (images == augment.plain(pixels)).flatten(1).all(1)
    assert whole.any()  # where the shape drawn is nearly square, or none fits


@given(st.sampled_from([{}, {"mixup": 0.8}, {"cutmix": 1.0}]), st.integers(0, 2**40), st.floats(0, 1))
def test_targets_are_shares_that_sum_to_one(ways, seed, smoothing):
    augment = Augment(**COLOUR, **ways, label_smoothing=smoothing)
    pixels, labels, indices = make_batch()
    _, targets = augment(pixels, labels, CounterRandom.of(seed, 0, indices))
    torch.testing.assert_close(targets.sum(1), torch.ones(24))
    assert (targets >= 0).all()


def test_smoothing_comes_before_mixing():
    soft = soft_targets(torch.tensor([2, 0]), 4, 0.2)
    torch.testing.assert_close(soft, torch.tensor([[0.05, 0.05, 0.85, 0.05], [0.85, 0.05, 0.05, 0.05]]))
    pixels, labels, indices = make_batch()
    _, targets = Augment(**COLOUR, mixup=1.0, label_smoothing=0.7)(pixels, labels, CounterRandom.of(0, 0, indices))
    assert targets.min() >= 0.1 - 1e-6
    assert targets.max() <= 0.4 + 1e-6


def test_mixing_takes_the_augmented_neighbour():
    pixels, labels, indices = make_batch()
    chance = CounterRandom.of(0, 0, indices)
    alone, _ = Augment(**COLOUR, **VARIED)(pixels, labels, chance)
    mixed, _ = Augment(**COLOUR, **VARIED, cutmix=1.0)(pixels, labels, chance)
    own, neighbours = mixed == alone, mixed == alone.roll(1, 0)
    assert (own | neighbours).all()
    assert not own.all()


@pytest.mark.slow
@pytest.mark.parametrize("ways", [MIXED, VARIED | {"policy": "rand", "crop": (0.3, 1.0)}])
def test_compiled_it_gives_the_same_bits(ways):
    augment = Augment(**COLOUR, **ways)
    pixels, labels, indices = make_batch()
    compiled = torch.compile(augment, fullgraph=True, backend="aot_eager")
    for epoch in (0, 1):
        chance = CounterRandom.of(0, epoch, indices)
        for ours, theirs in zip(compiled(pixels, labels, chance), augment(pixels, labels, chance), strict=True):
            assert torch.equal(ours, theirs)


def test_pixels_handed_in_are_left_as_they_are():
    pixels, labels, indices = make_batch()
    kept = pixels.clone()
    for ways in (*WAYS, MIXED):
        Augment(**COLOUR, **ways)(pixels, labels, CounterRandom.of(0, 0, indices))
        assert torch.equal(pixels, kept)


def test_nothing_is_saved_with_a_model():
    assert not Augment(**COLOUR, **MIXED).state_dict()


@pytest.mark.cuda
@pytest.mark.parametrize("ways", [*WAYS, MIXED])
def test_a_cuda_graph_in_deterministic_mode_gives_the_processors_bits(ways):
    augment = Augment(**COLOUR, **ways)
    pixels, labels, indices = make_batch()
    expected = augment(pixels, labels, CounterRandom.of(0, 1, indices))
    augment, pixels, labels, indices = augment.cuda(), pixels.cuda(), labels.cuda(), indices.cuda()
    epoch = torch.zeros((), dtype=torch.int64, device="cuda")
    torch.use_deterministic_algorithms(True)
    try:
        augment(pixels, labels, CounterRandom.of(0, epoch, indices))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            images, targets = augment(pixels, labels, CounterRandom.of(0, epoch, indices))
        epoch.fill_(1)
        graph.replay()
    finally:
        torch.use_deterministic_algorithms(False)
    torch.testing.assert_close(images.cpu(), expected[0], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(targets.cpu(), expected[1], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"policy": "auto"}, "auto"),
        ({"mean": (0.5, 0.5)}, "2 and std 3"),
        ({"crop": (0.9, 0.1)}, "smaller first"),
        ({"shift": 1.5}, "shift is 1.5"),
        ({"mixup": -1.0}, "above 0"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options, complaint):
    with pytest.raises(ValueError, match=complaint):
        Augment(**COLOUR | options)


@pytest.mark.parametrize("pixels", [torch.zeros(2, 3, 16, 17, dtype=torch.uint8), torch.zeros(2, 3, 16, 16)])
def test_pixels_of_another_size_or_kind_are_refused(pixels):
    with pytest.raises(ValueError, match=r"expected uint8 pixels \[b 3 16 16\]"):
        Augment(**COLOUR).plain(pixels)
