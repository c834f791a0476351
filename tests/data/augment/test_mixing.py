"""MixUp and CutMix: torchvision's images and targets for the same share and box."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torchvision.transforms.v2 import CutMix, MixUp

from vitreous.data.augment.geometry import fill_box
from vitreous.data.augment.mixing import MixUpCutMix, cutmix_box, list_quantiles
from vitreous.data.counter_random import CounterRandom


def make_batch(images=6, size=(9, 14), classes=5):
    labels = torch.arange(images) % classes
    return torch.randn(images, 3, *size), labels, torch.eye(classes)[labels]


@given(st.floats(0, 1))
def test_mixup_equals_torchvision(kept):
    images, labels, targets = make_batch()
    theirs = MixUp(num_classes=5)
    parameters = {"lam": kept, "labels": labels, "batch_size": len(labels)}
    share = torch.full((len(labels),), kept, dtype=torch.float64)
    mixed, mixed_targets = MixUpCutMix(1.0, 0.0).blend(images, targets, share)
    assert torch.equal(mixed, theirs.transform(images, parameters))
    assert torch.equal(mixed_targets, theirs.transform(labels, parameters))


@given(st.floats(0, 1), st.integers(0, 13), st.integers(0, 8))
def test_cutmix_equals_torchvision(kept, x, y):
    size = (9, 14)
    images, labels, targets = make_batch(size=size)
    # torchvision's `make_params`, which draws x and y itself
    reach = 0.5 * math.sqrt(1.0 - kept)
    across, along = int(reach * size[1]), int(reach * size[0])
    box = (max(x - across, 0), max(y - along, 0), min(x + across, size[1]), min(y + along, size[0]))
    truly = 1.0 - (box[2] - box[0]) * (box[3] - box[1]) / (size[0] * size[1])
    parameters = {"box": box, "lam_adjusted": truly, "labels": labels, "batch_size": len(labels)}
    theirs = CutMix(num_classes=5)

    fixed = FixedRandom({"mix x": x / size[1] + 1e-3, "mix y": y / size[0] + 1e-3}, len(labels))
    mix = MixUpCutMix(0.0, 1.0)
    cut, share = mix.draw_cut(torch.full((len(labels),), kept, dtype=torch.float64), size, fixed)
    mixed = torch.where(cut, images.roll(1, 0), images)
    assert torch.equal(mixed, theirs.transform(images, parameters))
    assert torch.equal(mix.blend_targets(targets, share), theirs.transform(labels, parameters))


class FixedRandom(CounterRandom):
    """CounterRandom that says what it is told to."""

    def __init__(self, numbers, images):
        self.numbers = numbers
        self.keys = torch.arange(images)

    def uniform(self, purpose):
        return torch.full((len(self.keys),), self.numbers[purpose])


@pytest.mark.parametrize(("mixup", "cutmix"), [(0.8, 0.0), (0.0, 1.0), (0.8, 1.0)])
def test_targets_say_how_much_of_each_image_is_there(mixup, cutmix):
    """Images that hold their own number everywhere: their mean tells the mix."""
    images = torch.arange(64.0)[:, None, None, None].expand(64, 1, 16, 16)
    mixed, targets = MixUpCutMix(mixup, cutmix)(images, torch.eye(64), CounterRandom.of(0, 0, torch.arange(64)))
    torch.testing.assert_close(targets.sum(1), torch.ones(64))
    torch.testing.assert_close(mixed.mean((1, 2, 3)), targets @ torch.arange(64.0))
    partner = torch.arange(64).roll(1)
    elsewhere = targets.clone()
    elsewhere[torch.arange(64), torch.arange(64)] = 0
    assert (elsewhere.sum(1) > 0).float().mean() > 0.5
    elsewhere[torch.arange(64), partner] = 0
    assert elsewhere.abs().max() == 0


def test_each_image_has_a_mix_of_its_own():
    images = torch.arange(64.0)[:, None, None, None].expand(64, 1, 16, 16)
    _, targets = MixUpCutMix(1.0, 0.0)(images, torch.eye(64), CounterRandom.of(0, 0, torch.arange(64)))
    assert targets.diagonal().unique().numel() > 50


def test_a_missed_image_keeps_itself():
    images, _, targets = make_batch(images=400, classes=400)
    chance = CounterRandom.of(0, 0, torch.arange(400))
    for mix in (MixUpCutMix(1.0, 0.0, 0.25), MixUpCutMix(0.0, 1.0, 0.25), MixUpCutMix(1.0, 1.0, 0.25)):
        mixed, mixed_targets = mix(images, targets, chance)
        missed = chance.uniform("mix at all") >= 0.25
        assert torch.equal(mixed[missed], images[missed])
        assert torch.equal(mixed_targets[missed], targets[missed])
        same = (mixed == images).flatten(1).all(1)
        assert 0.7 < same.float().mean() < 0.85


def test_with_both_a_coin_decides_for_each_image():
    images = torch.arange(1000.0)[:, None, None, None].expand(1000, 1, 16, 16)
    mixed, _ = MixUpCutMix(1.0, 1.0)(images, torch.ones(1000, 2) / 2, CounterRandom.of(0, 0, torch.arange(1000)))
    own = mixed == images
    cut = own.flatten(1).any(1)  # a cut image has pixels of its own left, a blended one none
    assert 0.45 < cut.float().mean() < 0.55
    foreign = mixed[cut] == images.roll(1, 0)[cut]
    assert (own[cut] | foreign).all()


@pytest.mark.parametrize("alpha", [0.2, 0.8, 1.0, 3.0])
def test_shares_are_beta_distributed(alpha):
    chance = CounterRandom.of(0, 0, torch.arange(20_000))
    rank = (chance.uniform("mix quantile") * 4096).long()
    assert stats.kstest(list_quantiles(alpha)[rank].numpy(), stats.beta(alpha, alpha).cdf).statistic < 0.015


@given(st.floats(0, 1), st.integers(1, 40), st.integers(1, 40), st.data())
def test_a_box_stays_inside_and_is_filled_as_large_as_it_says(kept, height, width, data):
    x, y = data.draw(st.integers(0, width - 1)), data.draw(st.integers(0, height - 1))
    box = cutmix_box(torch.tensor([kept]).double(), torch.tensor([x]), torch.tensor([y]), (height, width))
    assert fill_box(box, (height, width)).sum() == box[2] * box[3]


def test_mixing_with_nothing_is_refused():
    with pytest.raises(ValueError, match="above 0"):
        MixUpCutMix(0.0, 0.0)
