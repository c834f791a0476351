import pytest

from conftest import VIT_TI
from vitreous.data.datasets import open_dataset
from vitreous.predict.preprocess_check import PreprocessCheck, PreprocessTrial, check_preprocess, p_value
from vitreous.weights.load import load


def test_the_verdict_needs_a_significant_difference():
    def trial(name, correct, count):
        return PreprocessTrial(name, None, tuple(i < correct for i in range(count)))

    used, better, same = trial("in use", 40, 100), trial("other", 70, 100), trial("third", 42, 100)
    assert p_value(used, better) == pytest.approx(2 / 2**30)
    check = PreprocessCheck((used, same, better), (trial("crop", 71, 100),))
    assert check.chosen is better
    statistics, crop = check.verdict()
    assert statistics.startswith("other fits better than what is in use: 70.0% against 40.0% of 100 images")
    assert crop == "no other crop is clearly better than the one in use"
    kept = PreprocessCheck((used, same), (trial("crop", 90, 100),))
    assert kept.chosen is used
    assert "no other is clearly better" in kept.verdict()[0]
    assert kept.verdict()[1].startswith("crop fits better than the crop in use: 90.0% against 40.0%")


@pytest.mark.slow
@pytest.mark.skipif(not VIT_TI.exists(), reason="the real ViT-Ti is not on this machine")
def test_real_images_tell_which_statistics_fit(shared):
    from dataclasses import replace

    from vitreous.data.preprocess import STATISTICS

    model = load(VIT_TI)
    mean, std = STATISTICS["imagenet"]
    model.card.preprocess = replace(model.card.preprocess, mean=mean, std=std)
    check = check_preprocess(model, open_dataset(shared / "data/imagenet-val-500").spread(60))
    assert check.chosen.name == "mean 0.5, std 0.5"
    assert "fits better" in check.verdict()[0]


def test_equal_trials_do_not_differ():
    same = PreprocessTrial("same", None, (True, False))
    assert p_value(same, same) == 1.0
