import pytest

from vitreous.runtime.wording import accuracy, count, duration, percent


def test_percent():
    assert [percent(share) for share in (0, 0.0004, 0.05, 0.999, 1)] == ["0 %", "< 0.1 %", "5.0 %", "99.9 %", "100 %"]


@pytest.mark.parametrize(("seconds", "words"), [(0, "0.0 s"), (59.7, "1 min 00 s"), (3599.8, "1 h 00 min")])
def test_durations_roll_over(seconds, words):
    assert duration(seconds) == words


def test_only_all_images_are_a_hundred_percent():
    assert [accuracy(share) for share in (0, 0.99999, 1)] == ["0.00 %", "99.99 %", "100 %"]


def test_one_thing_alone_is_singular():
    assert [count(number, "step") for number in (0, 1, 2)] == ["0 steps", "1 step", "2 steps"]
