import pytest

from vitreous.benchmarking.timing import MIN_ROUNDS, interleave, noise, rotated, summarise


class Clock:
    """Time that passes only when a call says so."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def spend(self, seconds):
        def call():
            self.now += seconds

        return call


def test_one_slow_moment_does_not_move_the_median():
    summary = summarise([1.0, 1.0, 1.0, 1.0, 50.0])
    assert (summary.median, summary.spread, summary.rounds) == (1.0, 0.0, 5)


def test_the_spread_is_the_middle_half_over_the_median():
    assert summarise([8.0, 9.0, 10.0, 11.0, 12.0]).spread == pytest.approx(0.2)


def test_one_time_has_no_spread():
    assert summarise([2.0]).spread == 0.0


def test_every_call_has_one_turn_a_round_and_another_goes_first():
    clock, order = Clock(), []

    def call(name):
        def run():
            order.append(name)
            clock.now += 1.0

        return run

    interleave({name: call(name) for name in "abc"}, seconds=1e9, rounds=6, clock=clock)
    rounds = ["".join(order[6:])[i : i + 6] for i in range(0, 36, 6)]  # two calls of each came before
    assert all(sorted(each) == list("aabbcc") for each in rounds)
    assert all(each[0::2] == each[1::2] for each in rounds), "a call that does not count, and one that does"
    assert sorted(each[0] for each in rounds) == list("aabbcc")


def test_the_first_call_of_a_turn_is_not_counted():
    clock, last = Clock(), []

    def call(name):
        def run():
            clock.now += 1.0 if last[-1:] == [name] else 9.0  # slow after another
            last.append(name)

        return run

    times = interleave({name: call(name) for name in "ab"}, seconds=1e9, rounds=4, clock=clock)
    assert times == {"a": [1.0] * 4, "b": [1.0] * 4}


def test_two_calls_take_turns_in_going_first():
    assert sorted(rotated("ab", turn)[0] for turn in range(4)) == list("aabb")


def test_times_are_those_of_one_call_however_often_a_turn_repeats_it():
    clock = Clock()
    times = interleave({"quick": clock.spend(0.001), "slow": clock.spend(2.0)}, seconds=1e9, rounds=4, clock=clock)
    assert times["quick"] == pytest.approx([0.001] * 4)
    assert times["slow"] == pytest.approx([2.0] * 4)


def test_it_stops_when_the_time_is_used_up_but_not_before_three_rounds():
    clock = Clock()
    assert len(interleave({"a": clock.spend(1.0)}, seconds=10.0, rounds=100, clock=clock)["a"]) == 5
    assert len(interleave({"a": clock.spend(9.0)}, seconds=5.0, rounds=100, clock=clock)["a"]) == MIN_ROUNDS


def test_scattered_times_are_said_to_be_noisy():
    (said,) = noise({"timm": 0.11, "vitreous": 0.4, "openvino": 0.09}, load=0.0, cores=2)
    assert said.startswith("noisy: the interquartile range of vitreous is 40% of the median and 1 more")


def test_a_load_of_others_is_said_to_be_busy():
    (said,) = noise({"timm": 0.0}, load=5.7, cores=2)
    assert said.startswith("busy: the load average was 5.7 on 2 cores")


def test_a_quiet_machine_or_one_that_does_not_tell_is_not_warned_about():
    assert noise({"timm": 0.1}, load=0.5, cores=2) == []
    assert noise({"timm": 0.1}, load=None, cores=2) == []
