"""A log gets lines of progress that become rarer, and times are written in their usual units."""

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
