"""Scores of labels, numbers and masks in a comparison: exchanged answers give the score of exchanged rows."""

import numpy as np
import pytest
import torch

from vitreous.comparison.results import better_images
from vitreous.comparison.statistics import EXCHANGES, exchange_test, images_test
from vitreous.comparison.task_scores import each_of, exchanger, figures_of, image_scores
from vitreous.data.preprocess import default_preprocess
from vitreous.models.variants import variant
from vitreous.predict.mask_scores import mask_rows
from vitreous.predict.scores import SCORES
from vitreous.weights.card import Card

IMAGES, SEEDS, CLASSES = 40, 2, 3
TASKS = ("multilabel", "regress", "segment")
CARD = Card("made up", default_preprocess(variant("vit_pico_patch2_8")))


def answers(task, quality, seed=0):
    """Scores of a made-up model `[s n m]`, better the higher its quality, and the targets `[n k]`."""
    truth, random = np.random.default_rng(9), np.random.default_rng(seed)
    if task == "segment":
        masks = truth.integers(0, CLASSES, (IMAGES, 6, 6))
        masks[:, 0] = 255
        right = random.random((SEEDS, *masks.shape)) < quality
        shown = np.where(right & (masks < 255), masks, random.integers(0, CLASSES, (SEEDS, *masks.shape)))
        logits = torch.nn.functional.one_hot(torch.from_numpy(shown), CLASSES).movedim(-1, 2).float()
        return np.stack([mask_rows(own, torch.from_numpy(masks)).numpy() for own in logits]), np.zeros((IMAGES, 0))
    targets = truth.random((IMAGES, CLASSES)).astype(np.float32)
    if task == "multilabel":
        targets = (targets < 0.4).astype(np.float32)
        targets[:, 2] *= targets[:, 0]
    noise = random.random((SEEDS, IMAGES, CLASSES)).astype(np.float32)
    found = quality * targets + (1 - quality) * noise
    return np.round(found, 2 if task == "multilabel" else 6), targets  # some labels are as probable as others


def mean_score(task, rows, targets):
    return np.mean([figures[SCORES[task].main] for figures in figures_of(task, rows, targets)])


@pytest.mark.parametrize("task", TASKS)
def test_exchanged_answers_give_the_difference_of_scores_of_exchanged_rows(task):
    (one, targets), (other, _) = answers(task, 0.6, 1), answers(task, 0.4, 2)
    if task == "multilabel":  # ranks stand for probabilities: both models have the same ones
        other = np.take_along_axis(np.sort(one, axis=1), other.argsort(axis=1).argsort(axis=1), axis=1)
    chosen = np.random.default_rng(3).random((5, IMAGES)) < 0.5
    chosen[0] = False
    found = exchanger(task, one, other, targets)(chosen)
    for exchanged, difference in zip(chosen, found, strict=True):
        swapped = exchanged[None, :, None]
        first, second = np.where(swapped, other, one), np.where(swapped, one, other)
        wanted = mean_score(task, first, targets) - mean_score(task, second, targets)
        assert difference == pytest.approx(wanted, abs=1e-6)
    assert exchanger(task, one, other, targets)(~chosen) == pytest.approx(-found, abs=1e-9)


def test_probabilities_count_by_their_order_alone():
    (one, targets), (worse, _) = answers("multilabel", 0.5, 1), answers("multilabel", 0.4, 2)
    higher = 0.75 + worse.astype(np.float64) / 4  # the same order, above most of the other model's
    plain, shifted = (exchange_test(exchanger("multilabel", one, each, targets), IMAGES) for each in (worse, higher))
    assert plain == shifted


@pytest.mark.parametrize("task", TASKS)
def test_a_better_model_is_found_and_an_equal_one_is_not(task):
    (one, targets), (worse, _), (equal, _) = (answers(task, q, seed) for q, seed in ((0.8, 1), (0.3, 2), (0.8, 4)))
    assert exchange_test(exchanger(task, one, worse, targets), IMAGES) < 0.01
    assert exchange_test(exchanger(task, one, equal, targets), IMAGES) > 0.05


def test_the_sampled_test_agrees_with_the_exact_one():
    random = np.random.default_rng(0)
    one, other = random.random((1, 60)) < 0.8, random.random((1, 60)) < 0.6
    gains = (one.astype(float) - other)[0]
    sampled = exchange_test(lambda exchanged: np.where(exchanged, -gains, gains).mean(axis=1), 60)
    exact = images_test(one, other)
    assert sampled == pytest.approx(exact, abs=4 * np.sqrt(exact * (1 - exact) / EXCHANGES) + 1 / EXCHANGES)


@pytest.mark.parametrize("task", TASKS)
def test_an_image_is_shown_where_one_model_is_better(task):
    (one, targets), (other, _) = answers(task, 0.5, 1), answers(task, 0.5, 1)
    perfect, _ = answers(task, 1.0, 1)
    other[:, 7] = perfect[:, 7]
    found = better_images(task, targets, {"one": one, "other": other}, dict.fromkeys(("one", "other"), CARD))
    assert (found["one"]["count"], found["other"]["count"]) == (0, 1)
    (image,) = found["other"]["images"]
    assert image["image"] == 7
    if task == "multilabel":
        assert image["other"] == image["target"] == np.flatnonzero(targets[7]).tolist()
    elif task == "regress":
        assert image["other"] == pytest.approx(image["target"], abs=1e-6)
    else:
        assert image["one"] < image["other"] == 1.0


def test_a_class_that_never_occurs_has_no_figure():
    rows, targets = answers("multilabel", 0.5)
    targets[:, 1] = 0
    assert [each is None for each in each_of("multilabel", rows, targets)] == [False, True, False]


def test_an_image_without_a_labelled_pixel_is_neither_good_nor_bad():
    logits, ignored = torch.randn(2, 3, 4, 4), torch.full((2, 4, 4), 255)
    ignored[1] = 1
    found = image_scores("segment", mask_rows(logits, ignored).numpy()[None], np.zeros((2, 0)))
    assert np.isnan(found).tolist() == [[True, False]]


def test_images_of_another_size_count_the_same_when_masks_are_exchanged():
    (one, targets), (other, _) = answers("segment", 0.6, 1), answers("segment", 0.4, 2)
    larger = 16 * other  # the same answers, at four times the resolution
    same = exchange_test(exchanger("segment", one, other, targets), IMAGES)
    assert exchange_test(exchanger("segment", one, larger, targets, (36, 36 * 16)), IMAGES) == same
    chosen = np.random.default_rng(3).random((5, IMAGES)) < 0.5
    wanted = exchanger("segment", one, other, targets)(chosen)
    assert exchanger("segment", one, larger, targets, (36, 36 * 16))(chosen).tolist() == wanted.tolist()
    assert exchanger("segment", one, other, targets, (36, 36))(chosen).tolist() == wanted.tolist()


def test_numbers_that_are_the_same_for_all_images_do_not_count():
    (one, targets), (other, _) = answers("regress", 0.6, 1), answers("regress", 0.4, 2)
    targets[:, 1] = 0.1
    chosen = np.random.default_rng(3).random((5, IMAGES)) < 0.5
    varied = [0, 2]
    found, wanted = (
        exchanger("regress", a, b, t)(chosen)
        for a, b, t in ((one, other, targets), (one[..., varied], other[..., varied], targets[:, varied]))
    )
    assert found == pytest.approx(wanted)
    assert image_scores("regress", one, targets) == pytest.approx(
        image_scores("regress", one[..., varied], targets[:, varied])
    )
    assert [each is None for each in each_of("regress", one, targets)] == [False, True, False]
