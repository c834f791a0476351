"""Random numbers as functions: the same for the same question, and otherwise as random as they should be."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vitreous.data.counter_random import CounterRandom, hash32, permutation

SEEDS = st.integers(0, 2**63 - 1)


@given(SEEDS, st.integers(0, 10_000), st.lists(st.integers(0, 2**31), min_size=1, max_size=20), st.integers(0, 9))
def test_a_number_depends_on_seed_epoch_image_copy_and_purpose_alone(seed, epoch, images, copy):
    indices = torch.tensor(images)
    together = CounterRandom.of(seed, epoch, indices, copy).uniform("flip")
    alone = [
        CounterRandom.of(seed, torch.tensor(epoch), torch.tensor([i]), torch.tensor([copy])).uniform("flip")
        for i in images
    ]
    assert torch.equal(together, torch.cat(alone))
    assert ((together >= 0) & (together < 1)).all()


@pytest.mark.parametrize("change", [{"seed": 1}, {"seed": 1 << 32}, {"epoch": 1}, {"copy": 1}, {"purpose": "flop"}])
def test_any_change_of_the_question_gives_other_numbers(change):
    def ask(seed=0, epoch=0, copy=0, purpose="flip"):
        return CounterRandom.of(seed, epoch, torch.arange(1000), copy).uniform(purpose)

    plain, changed = ask(), ask(**change)
    assert (plain == changed).float().mean() < 0.01
    assert torch.corrcoef(torch.stack([plain, changed]))[0, 1].abs() < 0.1


@given(SEEDS, st.integers(0, 1000), st.integers(0, 300))
def test_an_order_is_a_permutation(seed, epoch, images):
    assert permutation(seed, epoch, images).sort().values.tolist() == list(range(images))


def test_the_numbers_are_uniform():
    found = CounterRandom.of(3, 7, torch.arange(100_000)).uniform("flip")
    counts = torch.histc(found, 50, 0, 1)
    assert ((counts - 2000) ** 2 / 2000).sum() < 90  # chi-squared with 49 degrees of freedom: 1 in 4,000 is above
    assert len(found.unique()) > 99_000


@pytest.mark.slow
def test_an_images_position_in_the_order_is_uniform_over_epochs():
    positions = torch.stack([permutation(0, epoch, 10).argsort() for epoch in range(2000)])  # [epochs images]
    counts = torch.stack([torch.bincount(positions[:, i], minlength=10) for i in range(10)]).float()
    assert ((counts - 200) ** 2 / 200).sum(1).max() < 35  # 9 degrees of freedom


def test_whole_numbers_reach_both_ends_and_no_further():
    found = CounterRandom.of(0, 0, torch.arange(5000)).integers("x", -2, 3)
    assert found.unique().tolist() == [-2, -1, 0, 1, 2, 3]
    assert torch.bincount(found + 2).min() > 700


@given(st.integers(1, 2**20))
def test_the_largest_draw_stays_below_its_bound(count):
    class Largest(CounterRandom):
        def uniform(self, purpose):
            return torch.tensor([1.0 - 2.0**-24])

    assert Largest(torch.zeros(1)).integers("x", 0, count - 1).item() == count - 1


def test_scrambling_is_one_to_one_and_stays_within_32_bits():
    numbers = torch.cat([torch.arange(200_000), torch.arange(2**32 - 200_000, 2**32)])
    hashed = hash32(numbers)
    assert len(hashed.unique()) == len(numbers)
    assert hashed.min() >= 0
    assert hashed.max() < 2**32


def test_every_input_bit_moves_every_output_bit_half_of_the_time():
    numbers = torch.randint(0, 2**32, (20_000,))
    for bit in range(32):
        changed = hash32(numbers) ^ hash32(numbers ^ (1 << bit))
        flips = (changed[:, None] >> torch.arange(32) & 1).double().mean(0)  # [output bits]
        assert (flips - 0.5).abs().max() < 0.02


def test_the_numbers_are_those_of_every_version():
    """A run that began with another version goes on with it, and a recipe gives what it gave."""
    assert CounterRandom.of(0, 0, torch.arange(3)).keys.tolist() == [937280048, 375522967, 1071807247]
    assert permutation(1, 2, 8).tolist() == [3, 2, 4, 7, 1, 0, 5, 6]
