"""Intervals and tests against closed forms, against scipy, and against counting all cases."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from vitreous.comparison.statistics import compare_pairs, holm, images_test, seed_interval, seeds_test


def test_the_interval_over_seeds_is_scipys():
    values = [0.91, 0.935, 0.92, 0.9]
    mean, half = seed_interval(values)
    low, high = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert (mean - half, mean + half) == pytest.approx((low, high))


def test_the_test_over_seeds_is_scipys_and_sure_where_seeds_do_not_differ():
    values = [0.01, 0.03, -0.01]
    assert seeds_test(values) == pytest.approx(stats.ttest_1samp(values, 0).pvalue)
    assert (seeds_test([0.1, 0.1]), seeds_test([0.0, 0.0])) == (0.0, 1.0)


def test_one_seed_has_no_interval():
    assert seed_interval([0.9]) == (0.9, None)


def test_with_one_seed_the_test_over_images_is_mcnemars_exact_test():
    random = np.random.default_rng(0)
    one, other = random.random(400) < 0.9, random.random(400) < 0.85
    first, second = int((one & ~other).sum()), int((other & ~one).sum())
    assert images_test(one, other) == pytest.approx(stats.binomtest(first, first + second).pvalue)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=9))
def test_with_several_seeds_it_counts_every_choice_of_signs(counts):
    rows = np.arange(3)[:, None]
    one, other = (rows < np.array([pair[side] for pair in counts]) for side in (0, 1))
    differences = np.array([a - b for a, b in counts])
    seen = abs(differences.sum())
    sums = [abs(np.dot(signs, differences)) for signs in product((-1, 1), repeat=len(counts))]
    assert images_test(one, other) == pytest.approx(np.mean([each >= seen for each in sums]))


def test_the_test_over_images_keeps_its_promise_where_nothing_differs():
    random = np.random.default_rng(1)
    alike = [images_test(*(random.random((2, 3, 200)) < 0.8)) for _ in range(400)]
    assert np.mean(np.array(alike) < 0.05) < 0.09  # 5 % of 400 is 20, give or take 4.4


def test_ten_thousand_images_are_tested_in_a_moment():
    random = np.random.default_rng(2)
    one, other = random.random((3, 10_000)) < 0.80, random.random((3, 10_000)) < 0.78
    assert images_test(one, other) < 1e-4


def test_unlike_shapes_are_refused():
    with pytest.raises(ValueError, match="as many seeds"):
        images_test(np.ones((2, 5)), np.ones((3, 5)))


def test_holm_never_lowers_and_keeps_the_order():
    assert holm([0.2, 0.001, 0.04]) == pytest.approx([0.2, 0.003, 0.08])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def rows(*shares, images=1000):
    """Right answers with these shares, one seed each, always the same images first."""
    return np.stack([np.arange(images) < share * images for share in shares])


def test_a_verdict_needs_both_the_seeds_and_the_images():
    scratch = {"a": "from scratch", "b": "from scratch"}
    (clear,) = compare_pairs({"a": rows(0.90, 0.91, 0.90), "b": rows(0.80, 0.81, 0.81)}, scratch)
    assert clear.verdict == "a"
    assert "a is better than b by 9.67 points with this budget" in clear.reason
    (shaky,) = compare_pairs({"a": rows(0.90, 0.70, 0.99), "b": rows(0.80, 0.81, 0.81)}, scratch)
    assert shaky.verdict == ""
    assert shaky.p_images < 0.05
    assert "interval over seeds holds zero; 30 seeds like these would do" in shaky.reason
    (few,) = compare_pairs({"a": rows(0.9, 0.9, 1.0, images=10), "b": rows(0.7, 0.7, 0.8, images=10)}, scratch)
    assert few.verdict == ""
    assert "test over images" in few.reason


def test_no_verdict_of_one_seed_or_of_different_starts():
    better, worse = rows(0.9), rows(0.5)
    (alone,) = compare_pairs({"a": better, "b": worse}, {"a": "from scratch", "b": "from scratch"})
    assert (alone.verdict, alone.half_width) == ("", None)
    assert alone.reason == "one seed: no verdict, because the spread over seeds is unknown; 3 seeds would do"
    (two,) = compare_pairs({"a": rows(0.9, 0.7), "b": rows(0.5, 0.6)}, {"a": "from scratch", "b": "from scratch"})
    assert (two.verdict, two.half_width) == ("", None)
    assert two.reason.startswith("two seeds: no verdict")
    (unlike,) = compare_pairs({"a": rows(0.9, 0.9), "b": rows(0.5, 0.5)}, {"a": "fine-tuned", "b": "from scratch"})
    assert (unlike.verdict, unlike.reason) == ("", "different starts: no verdict")
