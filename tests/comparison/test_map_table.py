import numpy as np
import pytest

from vitreous.comparison.map_table import faithfulness_table, map_verdict
from vitreous.inside.methods import METHODS

OPERATORS = ("blur", "mean", "removed")


def table(gains):
    """Make the table of faithfulness of methods whose gain over each operator is the same on three images."""
    columns = {
        f"insertion_{way}": np.tile([each[k] for each in gains.values()], (3, 1)) for k, way in enumerate(OPERATORS)
    }
    zeros = np.zeros((3, len(gains)))
    columns |= {f"deletion_{way}": zeros for way in OPERATORS} | dict.fromkeys(("seconds", "road", "saco"), zeros)
    columns |= {"target": np.zeros(3), "correct": np.ones(3), "sanity": zeros * np.nan}
    return faithfulness_table(columns, {name: METHODS[name] for name in gains}, OPERATORS)


def test_a_method_is_compared_with_the_baselines_over_its_own_operators():
    gains = {"occlusion": (0.2, 0.2, 0.2), "relevance": (0.5, 0.9, 0.5), "centre": (0.3, 0.3, 0.3), "random": (0, 0, 0)}
    found = table(gains)
    rows = {row["name"]: row for row in found["methods"]}
    assert rows["occlusion"]["fitted"] == ["mean"]
    assert rows["occlusion"]["over"]["mean"] > rows["centre"]["over"]["mean"]  # of other operators
    assert rows["occlusion"]["bar"] == pytest.approx(-0.2)
    assert rows["relevance"]["bar"] == pytest.approx(-1 / 3)
    weak = "No better than a map that knows nothing of the model: occlusion."
    assert map_verdict(found["methods"]) == f"Most faithful: relevance. {weak}"


def test_without_baselines_no_method_is_called_weak():
    found = table({"relevance": (0.5, 0.5, 0.5), "occlusion": (0, 0, 0)})
    assert [row["bar"] for row in found["methods"]] == [None, None]
    assert map_verdict(found["methods"]) == "Most faithful: relevance."
