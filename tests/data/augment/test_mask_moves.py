"""A mask moves with its image, pixel by pixel: colours say which image and which pixel each new pixel comes from."""

import pytest
import torch

from vitreous.data.augment.geometry import Box, crop_nearest
from vitreous.data.augment.mixing import MixUpCutMix
from vitreous.data.augment.pipeline import Augment
from vitreous.data.augment.randaugment import GEOMETRY, OPERATIONS, RandomOperations
from vitreous.data.counter_random import CounterRandom
from vitreous.data.masks import IGNORE

SIDE, IMAGES, STEP, FIRST = 24, 20, 9, 20
MEAN, STD = (0.501, 0.402, 0.303), (0.2, 0.3, 0.25)  # no pixel is exactly the mean, which fills an erased box
PLAIN = {"size": (SIDE, SIDE), "mean": MEAN, "std": STD, "classes": 7}


def class_of(image, y, x):
    """The class of a pixel, another in each block of 3×4 pixels; some are ignored."""
    found = (x // 3 + 2 * (y // 4) + image) % 8
    return torch.where(found == 7, IGNORE, found)


def make_batch(height=SIDE, width=SIDE):
    """Pixels `[b 4 h w]`: red and green grow with x and y, blue numbers the image, and the mask follows from them."""
    image, y, x = torch.meshgrid(torch.arange(IMAGES), torch.arange(height), torch.arange(width), indexing="ij")
    colours = [FIRST + STEP * x, FIRST + STEP * y, FIRST + STEP * image]
    return torch.stack([*colours, class_of(image, y, x)], dim=1).to(torch.uint8)


def read_back(images):
    """Where each pixel of normalised images comes from: number of the image, y and x, and whether it is a gap."""
    colours = images * torch.tensor(STD)[:, None, None] + torch.tensor(MEAN)[:, None, None]
    red, green, blue = (colours * 255).round().unbind(1)
    gap = (images == 0).all(1) | (blue == 0)  # erased, or beyond the edges
    return ((blue - FIRST) / STEP).round().long(), (green - FIRST) / STEP, (red - FIRST) / STEP, gap


def check(images, targets):
    """Compare masks with what the images' pixels say, but for those half-way between two; return the share compared."""
    number, y, x, gap = read_back(images)
    expected = class_of(number, (y + 0.5).floor().long(), (x + 0.5).floor().long()).masked_fill(gap, IGNORE)
    sure = gap | (((y + 0.5) % 1 - 0.5).abs() < 0.4) & (((x + 0.5) % 1 - 0.5).abs() < 0.4)
    assert torch.equal(targets[sure], expected[sure])
    return sure.double().mean().item()


def augmented(pixels, **ways):
    numbers = torch.arange(len(pixels))
    return Augment(**PLAIN, **ways, masks=True)(pixels, numbers, CounterRandom.of(3, 5, numbers))


@pytest.mark.parametrize(
    "ways", [{}, {"flip": True}, {"shift": 0.3}, {"erasing": 1.0}, {"cutmix": 1.0}, {"shift": 0.2, "cutmix": 0.5}]
)
def test_what_copies_pixels_moves_each_with_its_class(ways):
    pixels = make_batch()
    images, targets = augmented(pixels, **ways)
    assert (targets.dtype, targets.shape) == (torch.int64, (IMAGES, SIDE, SIDE))
    assert check(images, targets) == 1.0
    assert torch.equal(targets, pixels[:, 3].long()) == (not ways)  # else nothing was tested
    if "shift" in ways:
        assert (images[:, 2] < (FIRST / 255 - MEAN[2]) / STD[2] - 0.01).any()  # a gap, which is ignored


@pytest.mark.parametrize("area", [(0.2, 0.5), (0.3, 1.0), (1.0, 1.0)])
@pytest.mark.parametrize("size", [(SIDE, SIDE), (26, 23), (18, 25)])
def test_a_crop_takes_the_nearest_pixels_class(area, size):
    images, targets = augmented(make_batch(*size), crop=area)
    assert check(images, targets) > 0.5


def test_all_ways_at_once_agree():
    images, targets = augmented(make_batch(26, 25), crop=(0.3, 1.0), shift=0.2, flip=True, erasing=0.6, cutmix=1.0)
    assert check(images, targets) > 0.5
    number, _, _, gap = read_back(images)
    assert ((number != number[:, :1, :1]) & ~gap).any()  # pixels of the neighbour
    assert (gap & (targets == IGNORE)).any()


@pytest.mark.parametrize("policy", ["trivial", "rand"])
def test_each_geometric_operation_moves_the_mask_and_each_colour_leaves_it(policy):
    operations = RandomOperations(policy, (SIDE, SIDE), masks=True)
    pixels = make_batch()[:1]
    negative = torch.cat([pixels[:, :3], IGNORE - pixels[:, 3:]], dim=1)
    rows = torch.arange(len(operations.operation))
    moved = operations.apply_rows(negative.expand(len(rows), -1, -1, -1), rows)
    mask = (IGNORE - moved[:, 3]).long()
    alone = RandomOperations(policy, (SIDE, SIDE)).apply_rows(pixels[:, :3].expand(len(rows), -1, -1, -1), rows)
    assert torch.equal(moved[:, :3], alone)
    shapes = torch.tensor([OPERATIONS[i] in GEOMETRY for i in operations.operation.tolist()])
    assert torch.equal(mask[~shapes], pixels[:, 3].long().expand(int((~shapes).sum()), -1, -1))
    x, y, number = ((moved[:, i].long() - FIRST) // STEP for i in range(3))
    expected = class_of(number, y, x).masked_fill(moved[:, 2] == 0, IGNORE)
    assert torch.equal(mask[shapes], expected[shapes])
    assert len({tuple(each.flatten().tolist()) for each in mask}) > 50  # operations, strengths and signs


@pytest.mark.parametrize("policy", ["trivial", "rand"])
def test_a_policy_in_the_pipeline_fills_gaps_with_ignored_pixels(policy):
    pixels = make_batch()
    images, targets = augmented(pixels, policy=policy)
    gap = read_back(images)[3]
    assert gap.any()
    assert (targets[gap] == IGNORE).all()


@pytest.mark.parametrize(
    "ways",
    [
        {"flip": True, "shift": 0.2},
        {"crop": (0.3, 1.0)},
        {"policy": "trivial", "erasing": 0.5},
        {"policy": "rand", "crop": (0.3, 1.0), "cutmix": 1.0, "mix_share": 0.7},
    ],
)
@pytest.mark.parametrize("colours", [1, 3])
def test_a_mask_does_not_change_what_becomes_of_its_image(ways, colours):
    pixels = torch.randint(0, 256, (IMAGES, colours + 1, 26 if "crop" in ways else SIDE, SIDE), dtype=torch.uint8)
    numbers = torch.arange(IMAGES)
    options = {"size": (SIDE, SIDE), "mean": MEAN[:colours], "std": STD[:colours], "classes": 7} | ways
    images, _ = Augment(**options, masks=True)(pixels, numbers, CounterRandom.of(3, 5, numbers))
    alone, _ = Augment(**options)(pixels[:, :-1], numbers % 7, CounterRandom.of(3, 5, numbers))
    assert torch.equal(images, alone)


def test_a_crop_by_nearest_neighbour_takes_the_pixel_in_which_a_new_ones_middle_lies():
    pixels = torch.arange(7 * 9).reshape(1, 1, 7, 9)
    box: Box = tuple(torch.tensor([side]) for side in (1, 2, 6, 5))
    taken = crop_nearest(pixels, box, (4, 10))[0, 0]
    rows = [1 + int((i + 0.5) * 6 / 4) for i in range(4)]
    columns = [2 + int((i + 0.5) * 5 / 10) for i in range(10)]
    assert torch.equal(taken, pixels[0, 0][rows][:, columns])


def test_evaluation_takes_the_mask_from_the_pixels_and_drops_it():
    pixels, augment = make_batch(), Augment(**PLAIN, masks=True)
    assert torch.equal(augment.plain(pixels), Augment(**PLAIN).plain(pixels[:, :3]))
    assert torch.equal(augment.plain(pixels[:, :3]), augment.plain(pixels))
    assert torch.equal(augment.mask_of(pixels), pixels[:, 3].long())
    for wrong in (augment.mask_of, lambda p: augment(p, None, CounterRandom.of(0, 0, torch.arange(IMAGES)))):
        with pytest.raises(ValueError, match=r"expected uint8 pixels \[b 4 24 24\], got .* \[20, 3, 24, 24\]"):
            wrong(pixels[:, :3])
    with pytest.raises(ValueError, match=r"expected uint8 pixels \[b 3 24 24\]"):
        Augment(**PLAIN).plain(pixels)


@pytest.mark.parametrize(
    ("ways", "message"),
    [
        ({"mixup": 0.2}, "mixup would blend the classes of a mask.*cut with cutmix"),
        ({"mixup": 0.2, "cutmix": 1.0}, "mixup would blend"),
        ({"label_smoothing": 0.1}, "label_smoothing would blend.*smooth in the loss"),
        ({"soft": True}, "soft or masks, not both"),
    ],
)
def test_what_would_blend_classes_is_refused(ways, message):
    with pytest.raises(ValueError, match=message):
        Augment(**PLAIN, masks=True, **ways)


def test_smoothing_of_soft_targets_is_refused():
    with pytest.raises(ValueError, match="label_smoothing spreads a class over all, and soft targets are none"):
        Augment(**PLAIN, soft=True, label_smoothing=0.1)


def test_soft_targets_are_returned_as_they_are_or_mixed():
    pixels, numbers = make_batch()[:, :3], torch.arange(IMAGES)
    targets, rng = torch.randn(IMAGES, 2), CounterRandom.of(3, 5, numbers)
    assert torch.equal(Augment(**PLAIN, soft=True, flip=True)(pixels, targets, rng)[1], targets)
    mixed = Augment(**PLAIN, soft=True, mixup=1.0)(pixels, targets, rng)
    images, expected = MixUpCutMix(1.0, 0.0)(Augment(**PLAIN).plain(pixels), targets, rng)
    assert torch.equal(mixed[0], images)
    assert torch.equal(mixed[1], expected)
    assert not torch.equal(expected, targets)


@pytest.mark.slow
def test_compiled_it_gives_the_same_bits():
    ways = {"crop": (0.3, 1.0), "shift": 0.2, "flip": True, "policy": "rand", "erasing": 0.5, "cutmix": 1.0}
    augment, pixels, numbers = Augment(**PLAIN, **ways, masks=True), make_batch(26, 25), torch.arange(IMAGES)
    compiled = torch.compile(augment, fullgraph=True, backend="aot_eager")
    rng = CounterRandom.of(3, 5, numbers)
    for ours, theirs in zip(compiled(pixels, numbers, rng), augment(pixels, numbers, rng), strict=True):
        assert torch.equal(ours, theirs)
