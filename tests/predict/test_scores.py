"""Figures of every task against closed forms and scikit-learn."""

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, f1_score, r2_score

from vitreous.predict.mask_scores import boundary, class_ious, mask_figures, mask_rows
from vitreous.predict.scores import SCORES, average_precisions, best_thresholds, number_figures


def in_parts(task, outputs, targets):
    """The rows of a batch, computed in two parts."""
    rows = SCORES[task].rows
    return torch.cat([rows(outputs[:2], targets[:2]), rows(outputs[2:], targets[2:])])


def test_top_1_and_top_5_count_hits():
    torch.manual_seed(0)
    logits, labels = torch.randn(200, 9), torch.randint(9, (200,))
    figures = SCORES["classify"].figures(in_parts("classify", logits, labels), labels.tolist())
    order = logits.argsort(dim=1, descending=True)
    assert figures["top1"] == pytest.approx((order[:, 0] == labels).float().mean().item())
    assert figures["top5"] == pytest.approx((order[:, :5] == labels[:, None]).any(dim=1).float().mean().item())


def test_labels_are_scored_as_scikit_learn_does_and_labels_that_never_occur_are_left_out():
    torch.manual_seed(0)
    logits, targets = torch.randn(50, 4), (torch.rand(50, 4) < 0.3).float()
    targets[:, 2] = 0
    figures = SCORES["multilabel"].figures(in_parts("multilabel", logits, targets), targets.numpy())
    seen = [0, 1, 3]
    wanted, found = targets.numpy()[:, seen] > 0, logits.sigmoid().numpy()[:, seen]
    assert figures["map"] == pytest.approx(average_precision_score(wanted, found, average="macro"))
    assert figures["f1"] == pytest.approx(f1_score(wanted, found > 0.5, average="macro"))
    assert average_precisions(logits.sigmoid(), targets.numpy())[2] is None


def test_a_threshold_gives_the_highest_f1_and_lies_between_two_images():
    torch.manual_seed(1)
    probability = torch.rand(40, 1)
    targets = (probability + 0.3 * torch.randn(40, 1) > 0.6).float().numpy()
    (threshold,) = best_thresholds(probability, targets)
    best = max(f1_score(targets, probability >= t) for t in probability.flatten())
    assert f1_score(targets, probability >= threshold) == pytest.approx(best)
    assert (probability - threshold).abs().min() > 1e-6


def test_a_threshold_of_tiny_probabilities_lies_between_them():
    probability = torch.tensor([[1e-8], [1e-7], [3e-7], [4e-7]])
    (threshold,) = best_thresholds(probability, np.array([[0], [0], [1], [1]], np.float32))
    assert threshold == pytest.approx(2e-7)


def test_of_equal_logits_the_lower_class_is_predicted():
    rows = SCORES["classify"].rows(torch.zeros(50, 40), torch.zeros(50, dtype=torch.int64))
    assert rows[:, 0].tolist() == [0.0] * 50


def test_half_precision_does_not_round_the_index_of_a_class():
    logits, labels = torch.eye(1000, dtype=torch.bfloat16), torch.arange(1000)
    assert torch.equal(SCORES["classify"].rows(logits, labels)[:, 0].long(), labels)


def test_numbers_are_scored_by_r2_and_by_the_error_of_each():
    torch.manual_seed(0)
    targets = np.random.default_rng(0).normal(5, 2, (30, 2)).astype(np.float32)
    found = torch.from_numpy(targets) + 0.5 * torch.randn(30, 2)
    figures = number_figures(found, targets)
    assert figures["r2"] == pytest.approx(r2_score(targets, found.numpy()), abs=1e-6)
    assert figures["mae_1"] == pytest.approx(np.abs(found.numpy() - targets)[:, 1].mean(), abs=1e-6)


def test_r2_does_not_depend_on_the_unit():
    targets = np.array([[1], [2], [3]], np.float32)
    found = torch.tensor([[1.0], [2.0], [4.0]])
    for unit in (1.0, 1e-7, 1e9):
        assert number_figures(found * unit, targets * np.float32(unit))["r2"] == pytest.approx(0.5, rel=1e-5)


def test_numbers_that_are_the_same_for_all_images_have_no_r2():
    constant = np.full((7, 1), 0.1, np.float32)
    varied = np.arange(7, dtype=np.float32)[:, None]
    found = torch.from_numpy(np.concatenate([constant + 1, varied], axis=1))
    both = number_figures(found, np.concatenate([constant, varied], axis=1))
    assert both == {"r2": 1.0, "mae_0": pytest.approx(1), "mae_1": 0.0}
    assert number_figures(found[:, :1], constant) == {"mae": pytest.approx(1)}
    assert number_figures(found[:1], varied[:1, [0, 0]]).keys() == {"mae_0", "mae_1"}  # a single image


def one_hot(mask, classes):
    return torch.nn.functional.one_hot(mask, classes).movedim(-1, 1).float()


def test_iou_counts_pixels_of_all_images_and_leaves_ignored_ones_out():
    predicted = torch.tensor([[[0, 0, 1, 1]], [[1, 1, 1, 0]]])
    masks = torch.tensor([[[0, 1, 1, 255]], [[1, 1, 0, 255]]])
    rows = in_parts("segment", one_hot(predicted, 3), masks)
    assert class_ious(rows) == [pytest.approx(1 / 3), pytest.approx(3 / 5), None]
    assert mask_figures(rows)["miou"] == pytest.approx((1 / 3 + 3 / 5) / 2)
    assert mask_figures(rows)["pixel_accuracy"] == pytest.approx(4 / 6)


def test_a_boundary_lies_between_two_classes_and_not_beside_ignored_pixels():
    masks = torch.tensor([[[0, 0, 1, 255, 0]]])
    assert boundary(masks, masks != 255).tolist() == [[[False, True, False, False, False]]]


@pytest.mark.parametrize(("shift", "expected"), [(0, 1.0), (2, 1.0), (3, 0.0)])
def test_a_boundary_may_be_off_by_less_than_a_hundredth_of_the_diagonal(shift, expected):
    """200 × 200 pixels have a diagonal of 283: 2 pixels are near, 3 are not."""
    masks = torch.zeros(1, 200, 200, dtype=torch.int64)
    masks[:, :, 100:] = 1
    rows = mask_rows(one_hot(masks.roll(shift, dims=2).index_fill(2, torch.arange(shift), 0), 2), masks)
    assert mask_figures(rows)["boundary_f"] == pytest.approx(expected)


@pytest.mark.parametrize("ignored", [False, True])
def test_without_a_boundary_there_is_no_figure_of_it(ignored):
    masks = torch.zeros(1, 8, 8, dtype=torch.int64)
    predicted = masks.clone()
    if ignored:  # a border between two classes that does not count, but for one pixel
        masks[:, :, 4:], masks[:, 1:, 3:5] = 1, 255
        predicted[:, :, 4:] = 1
    assert "boundary_f" not in mask_figures(mask_rows(one_hot(predicted, 2), masks))


@pytest.mark.parametrize(("task", "shape"), [("classify", ()), ("multilabel", (3,)), ("segment", (4, 4))])
def test_an_empty_batch_has_no_rows(task, shape):
    outputs = torch.zeros(0, 3, *shape) if task == "segment" else torch.zeros(0, 3)
    targets = torch.zeros(0, *shape, dtype=torch.float if task == "multilabel" else torch.int64)
    assert len(SCORES[task].rows(outputs, targets)) == 0


def test_counts_of_pixels_are_those_of_one_hot_classes():
    torch.manual_seed(0)
    logits, masks = torch.randn(5, 7, 9, 11), torch.randint(0, 7, (5, 9, 11))
    masks[torch.rand(masks.shape) < 0.3] = 255
    masks[2] = 255
    valid = masks != 255
    shown = torch.nn.functional.one_hot(logits.argmax(dim=1), 7).bool() & valid[..., None]
    wanted = torch.nn.functional.one_hot(masks.where(valid, 0), 7).bool() & valid[..., None]
    counts = [each.sum(dim=(1, 2)) for each in (shown & wanted, shown, wanted)]
    assert torch.equal(mask_rows(logits, masks)[:, :21], torch.cat(counts, dim=1).float())


def test_a_class_that_there_is_none_of_is_an_error():
    with pytest.raises(ValueError, match="a mask has the value 3: expected 3 classes and 255 for none"):
        mask_rows(torch.randn(1, 3, 2, 2), torch.tensor([[[0, 1], [3, 255]]]))
