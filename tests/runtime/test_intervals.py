"""Wilson's interval against scipy's."""

import pytest
from scipy import stats

from vitreous.runtime.intervals import wilson


@pytest.mark.parametrize("level", [0.95, 0.5])
@pytest.mark.parametrize(("hits", "count"), [(95, 100), (0, 10), (10, 10), (5013, 10000)])
def test_wilsons_interval_is_scipys(hits, count, level):
    theirs = stats.binomtest(hits, count).proportion_ci(level, method="wilson")
    assert wilson(hits, count, level) == pytest.approx((theirs.low, theirs.high), abs=1e-12)


def test_nothing_counted_says_nothing():
    assert wilson(0, 0) == (0.0, 1.0)
