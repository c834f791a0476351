"""Budgets of epochs, and of minutes that become epochs."""

import pytest
from tiny_studies import MODELS, Heard, make_zoo, tiny, tiny_run

from vitreous.comparison import budget
from vitreous.comparison.budget import Budget


@pytest.mark.slow
def test_minutes_become_epochs_that_are_written_down_and_stay(tmp_path, monkeypatch):
    zoo, folder = make_zoo(tmp_path / "zoo"), tmp_path / "study"
    monkeypatch.setattr(budget, "time_update", lambda parts: 0.5 if parts.config.model == MODELS[0] else 1.0)
    monkeypatch.setattr(budget, "time_evaluation", lambda parts: 0.5)
    monkeypatch.setattr(budget.time, "monotonic", lambda: 0.0)  # getting ready takes no time
    found = tiny(zoo, folder, epochs=None, minutes=0.1, seeds=1)  # 6 s; three updates an epoch and an evaluation
    assert [row["epochs"] for row in found.tables[0]["rows"]] == [3, 1]
    assert found.tables[0]["minutes"] == 0.1
    monkeypatch.setattr(budget, "time_update", lambda parts: pytest.fail("timed again"))
    again = tiny(zoo, folder, epochs=None, minutes=0.1, seeds=1)
    assert [row["epochs"] for row in again.tables[0]["rows"]] == [3, 1]


def test_real_updates_are_timed(tmp_path):
    heard = Heard()
    config = budget.epochs_for(tiny_run(make_zoo(tmp_path / "zoo"), epochs=10, warmup=1), 0.05, None, heard)
    assert config.epochs >= 1
    assert config.warmup == pytest.approx(config.epochs / 10, abs=1e-3)
    assert "updates of" in heard.lines[-1]


def test_a_budget_is_of_epochs_or_of_minutes():
    with pytest.raises(ValueError, match="not both"):
        Budget("x", epochs=1, minutes=1)
    with pytest.raises(ValueError, match="above 0, got 0"):
        Budget("x", minutes=0)
