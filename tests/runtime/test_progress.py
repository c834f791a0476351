"""A log gets lines of progress that become rarer, and times are written in their usual units."""

import io

from rich.console import Console

from vitreous.runtime import progress


def test_a_log_gets_its_first_line_early_and_fewer_lines_later(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    pace, lines = progress.LogPace(), []
    for second in range(36_001):  # ten hours
        clock[0] = float(second)
        if pace.is_due():
            lines.append(second)
    assert lines[:4] == [5, 20, 35, 50]
    assert lines[-1] - lines[-2] > 3000
    assert len(lines) < 100


def test_the_time_left_is_rounded_up_to_seconds_or_minutes():
    assert progress.time_left(3.0, 2, 3) == "about 2 s left"
    assert progress.time_left(30.0, 1, 100) == "about 49 min 30 s left"


def test_a_log_gets_a_line_with_an_estimate_now_and_then(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])  # the one clock of all modules
    log = io.StringIO()
    estimate = progress.Estimate(Console(file=log, soft_wrap=True), "trust")
    for done in range(1, 11):
        clock[0] += 3.0
        estimate(done, 10)
    assert log.getvalue().splitlines() == ["trust: 2 of 10, about 24 s left", "trust: 7 of 10, about 9 s left"]
    estimate(1, 10)  # once more from the start: the estimate begins anew
    clock[0] += 40.0
    estimate(2, 10)
    assert log.getvalue().splitlines()[-1] == "trust: 2 of 10, about 2 min 40 s left"
