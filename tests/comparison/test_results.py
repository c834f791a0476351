"""Results of a study: closed forms of its intervals, and images on which two models disagree."""

from math import sqrt

import numpy as np
import pytest
from tiny_studies import MODELS, budget_of, make_zoo

from vitreous.comparison.results import disagreements, display_names, gather
from vitreous.comparison.runs import Predictions, finish_runs
from vitreous.comparison.study import open_study


@pytest.mark.slow
def test_the_interval_of_one_seed_is_wilsons(tmp_path):
    study = open_study(tmp_path / "study", MODELS, budget_of(make_zoo(tmp_path / "zoo")), 1, device="cpu")
    finish_runs(study)
    z = 1.959963984540054
    for row in gather(study, compiled=False, say=print)["rows"]:
        share, spread = row["accuracy"], z * z / 11
        middle = (share + spread / 2) / (1 + spread)
        half = z / (1 + spread) * sqrt(share * (1 - share) / 11 + spread / 11 / 4)
        assert row["interval"] == pytest.approx([max(0.0, middle - half), min(1.0, middle + half)], abs=1e-12)
        assert row["interval_over"] == "images"


def predictions(predicted, probability):
    return Predictions(np.array([0, 1, 2, 0]), np.array(predicted), np.array(probability, dtype=np.float32))


def test_disagreements_are_sorted_by_probability_and_hold_both_answers():
    one = [predictions([0, 1, 2, 1], [0.5, 0.9, 0.6, 0.9])]
    other = [predictions([1, 2, 2, 0], [0.5, 0.9, 0.6, 0.9])]
    found = disagreements(one, other)
    assert [each["image"] for each in found["one"]["images"]] == [1, 0]  # the surest first
    assert found["one"]["images"][0] == {
        "image": 1,
        "label": 1,
        "one": [1, pytest.approx(0.9)],
        "other": [2, pytest.approx(0.9)],
    }
    assert (found["one"]["count"], found["other"]["count"]) == (2, 1)
    assert disagreements([*one, *other], other)["one"]["count"] == 0  # a seed of the first is wrong as well


def test_names_are_cut_only_if_they_stay_different():
    assert display_names(["a/vit", "b/vit"]) == {"a/vit": "a/vit", "b/vit": "b/vit"}
    assert display_names(["a/vit", "b/resnet"]) == {"a/vit": "vit", "b/resnet": "resnet"}
