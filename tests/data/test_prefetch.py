"""Work done prefetch: in order, within bounds, and no more of it than somebody reads."""

import threading
import time

import pytest

from vitreous.data.prefetch import batched, prefetch


def test_results_come_in_order_whoever_is_ready_first():
    def slow_at_first(i):
        time.sleep(0.05 if i == 0 else 0)
        return i

    assert list(prefetch(slow_at_first, range(20), workers=4, waiting=8)) == list(range(20))


def test_the_reader_is_never_more_than_so_many_results_behind():
    taken = []

    def items():
        for i in range(50):
            taken.append(i)
            yield i

    results = prefetch(str, items(), workers=4, waiting=5)
    for place in range(10):
        assert next(results) == str(place)
        assert len(taken) == place + 5
    results.close()


def test_a_reader_that_stops_waits_for_what_runs_and_not_for_what_is_queued():
    begun, go_on = [], threading.Event()

    def work(i):
        begun.append(i)
        if i:
            go_on.wait(10)
        return i

    results = prefetch(work, range(100), workers=2, waiting=80)
    assert next(results) == 0
    timer = threading.Timer(0.05, go_on.set)  # while `close` waits for the two that run
    timer.start()
    results.close()
    assert len(begun) <= 3


def test_an_error_reaches_the_reader_in_the_order_of_its_item():
    results = prefetch(lambda i: 6 // i, [3, 2, 0, 1], workers=2)
    assert [next(results), next(results)] == [2, 3]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_a_batch_of_nothing_is_refused():
    for size in (0, "8", 1.5):
        with pytest.raises(ValueError, match=f"at least one image, got batch size {size!r}"):
            next(batched([1], size))
