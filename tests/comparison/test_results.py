"""Results of a study: closed forms of its intervals, and images on which two models disagree."""

import json
from math import sqrt

import numpy as np
import pytest
from tiny_studies import MODELS, budget_of, make_zoo, tiny

from vitreous.comparison.entrants import display_names
from vitreous.comparison.results import disagreements, gather
from vitreous.comparison.runs import Predictions, finish_runs
from vitreous.comparison.study import open_study
from vitreous.comparison.table import verdicts
from vitreous.weights.load import load
from vitreous.weights.save import save


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


def test_among_several_pairs_a_sentence_without_verdict_names_its_pair():
    numbers = {"difference": 0.1, "half_width": None, "p_images": 0.5, "p_seeds": 1.0, "p_corrected": 1.0}
    pairs = [
        {"one": "a", "other": "b", "verdict": "", "reason": "one seed: no verdict", **numbers},
        {"one": "a", "other": "c", "verdict": "a", "reason": "a is better than c", **numbers},
    ]
    said = verdicts({"pairs": pairs, "alike": True})
    assert [line.split(" (")[0] for line in said] == ["a is better than c", "a and b, one seed: no verdict"]
    assert verdicts({"pairs": pairs[:1], "alike": True})[0].startswith("one seed: no verdict")


def test_names_are_cut_only_if_they_stay_different():
    assert display_names(["a/vit", "b/vit"]) == {"a/vit": "a/vit", "b/vit": "b/vit"}
    assert display_names(["a/vit", "b/resnet"]) == {"a/vit": "vit", "b/resnet": "resnet"}
    paths = ["/home/me/a/vit@head", "/home/me/b/vit@head", "timm:resnet18@/home/me/a/mine.pth@head"]
    assert list(display_names(paths).values()) == ["a/vit@head", "b/vit@head", "timm:resnet18@a/mine.pth@head"]
    alone = ["packaged@head", "timm:resnet18@a/mine.pth@head"]
    assert list(display_names(alone).values()) == ["packaged@head", "timm:resnet18@head"]
    twice = ["timm:resnet18@a/mine.pth", "timm:resnet18@b/yours.pth"]
    assert list(display_names(twice).values()) == ["timm:resnet18@mine.pth", "timm:resnet18@yours.pth"]


@pytest.mark.slow
def test_the_folders_of_local_models_are_not_written_to_the_results(tmp_path):
    models = [str(tmp_path / "secret" / name / "model") for name in ("one", "other")]
    for path in models:
        save(load("packaged:cifar10"), path)
    budget = {"image_size": 32, "epochs": 1, "seeds": 1, "batch_size": 8}
    found = tiny(make_zoo(tmp_path / "zoo"), tmp_path / "study", [f"{path}@head" for path in models], **budget)
    names = ["one/model@head", "other/model@head"]
    (table,) = found.tables
    assert [row["model"] for row in table["rows"]] == list(table["curves"]) == names
    assert [table["pairs"][0][side] for side in ("one", "other")] == names
    assert sorted(path.name for path in (tmp_path / "study/runs").iterdir()) == [
        "one-model-head-seed0",
        "other-model-head-seed0",
    ]
    assert json.loads((tmp_path / "study/comparison.json").read_text())["tables"][0]["rows"] == table["rows"]
    for file in ("comparison.json", "comparison.html", "speed.json"):
        assert "secret" not in (tmp_path / "study" / file).read_text()
