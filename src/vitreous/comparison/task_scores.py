"""How models of a comparison that learn labels, numbers or masks are scored: words, classes, images, exchanged answers.

What is compared is the task's own score over all images: mAP, R² or mean IoU. `exchanger` computes how the difference
between two models changes if they exchange their answers to some images, for the test over images
(`statistics.exchange_test`). It is the score itself that is tested, not a mean over images that stands for it.

Shapes:  s seeds · n images · m numbers of a row · k classes, labels or numbers · r choices of images
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from vitreous.predict.mask_scores import split_counts
from vitreous.predict.scores import EACH, SCORES, variances
from vitreous.runtime.wording import FIGURES, accuracy, figure

Floats = NDArray[np.float32] | NDArray[np.float64]
Differences = Callable[[NDArray[np.bool_]], NDArray[np.float64]]
EACH_FIGURE = {"multilabel": "average_precision", "regress": "r2", "segment": "iou"}
"""Task → the figure of each label, number or class by which two models are compared."""
SHARES = ("miou", "iou", "pixel_accuracy")
"""Figures that are written in percent; their differences are points."""


def spell_figure(name: str, value: float) -> str:
    """Write a score of labels, numbers or masks in a comparison: a share in percent, as accuracies are.

    >>> spell_figure("miou", 0.95321), spell_figure("r2", 0.9)
    ('95.32 %', '0.900')
    """
    return accuracy(value) if name in SHARES else figure(name, value)


def spell_gap(task: str, size: float) -> str:
    """Write by how much two models' task scores differ, with the unit that labels, numbers or masks have.

    >>> spell_gap("segment", 0.0125), spell_gap("regress", 0.0125)
    ('1.25 points of mean IoU', '0.013 of R²')
    """
    name = SCORES[task].main
    return f"{100 * size:.2f} points of {FIGURES[name][0]}" if name in SHARES else f"{size:.3f} of {FIGURES[name][0]}"


def figures_of(task: str, rows: Floats, targets: NDArray[np.float32]) -> list[dict[str, float]]:
    """Compute each seed's scores of labels, numbers or masks from rows `[s n m]`: the one that counts first."""
    return [SCORES[task].figures(torch.from_numpy(own), targets) for own in rows]


def each_of(task: str, rows: Floats, targets: NDArray[np.float32]) -> list[float | None]:
    """Compute the score of each label, number or pixel class in a comparison, the mean over seeds; None without any."""
    name = EACH_FIGURE[task]
    seeds = [EACH[task](torch.from_numpy(own), targets) for own in rows]
    columns = zip(*seeds, strict=True)
    known = ([own[name] for own in column if own is not None and name in own] for column in columns)
    return [float(np.mean(found)) if found else None for found in known]


def image_scores(task: str, rows: Floats, targets: NDArray[np.float32]) -> NDArray[np.float64]:
    """Score how well the task of each image is answered with each seed, to choose images: `[s n]`.

    Of labels it is the mean probability of what is true of each; of numbers less the squared error, in units of their
    variance; of masks the mean IoU of the classes in the image, nan if none of its pixels counts.
    """
    found = rows.astype(np.float64)  # [s n m]
    if task == "multilabel":
        return np.asarray(1 - np.abs(found - targets).mean(axis=2))
    if task == "regress":
        return np.asarray(-_squared_errors(found, targets).mean(axis=2))
    ious = _ious(found)  # [s n k]
    return np.where(np.isnan(ious).all(axis=2), np.nan, _nanmean(ious))


def exchanger(
    task: str, one: Floats, other: Floats, targets: NDArray[np.float32], pixels: tuple[int, int] = (1, 1)
) -> Differences:
    """Return the function that computes two models' difference in a task's score, answers exchanged: `[r n]` → `[r]`.

    Rows of scores are `[s n m]`. An image is exchanged in all seeds, and the difference is the mean over seeds.
    `pixels` are those of an image as each model sees it: counts of pixels are exchanged as shares of them.
    """
    if task == "segment":
        # not divided by its own pixels but multiplied by the other's, which is the same for IoUs and exact
        common = math.gcd(*pixels)
        return _exchange_masks(one.astype(float) * (pixels[1] // common), other.astype(float) * (pixels[0] // common))
    if task == "regress":
        errors = [_squared_errors(rows, targets).mean(axis=(0, 2)) for rows in (one, other)]  # [n] each
        gains = errors[1] - errors[0]  # R² is 1 less the mean of these errors
        return lambda exchanged: np.where(exchanged, -gains, gains).mean(axis=1)
    wanted = targets > 0.5
    labels = [i for i in range(wanted.shape[1]) if wanted[:, i].any()]
    parts = [
        _exchange_label(own[:, i], others[:, i], wanted[:, i])
        for own, others in zip(one, other, strict=True)
        for i in labels
    ]
    return lambda exchanged: np.mean([part(exchanged) for part in parts], axis=0)


def _exchange_masks(one: NDArray[np.float64], other: NDArray[np.float64]) -> Differences:
    """Return two models' difference in the segment task's score by the images they exchange: rows `[s n m]` each."""
    change = other - one
    whole = one.sum(axis=1)[:, None], other.sum(axis=1)[:, None]  # [s 1 m] each

    def differences(exchanged: NDArray[np.bool_]) -> NDArray[np.float64]:
        moved = exchanged.astype(float) @ change  # [s r m]
        means = _nanmean(_ious(whole[0] + moved)) - _nanmean(_ious(whole[1] - moved))
        return np.asarray(means.mean(axis=0))

    return differences


def _exchange_label(one: Floats, other: Floats, wanted: NDArray[np.bool_]) -> Differences:
    """Return two models' difference in one label's score, for the multilabel task, by the images they exchange.

    `one` and `other` are their probabilities `[n]`; they exchange the ranks of images among those of both.

    Average precision depends on the order of images alone, so that ranks stand for probabilities: a model that gives
    higher ones to all images would else push its images to the front.
    """
    from scipy.stats import rankdata

    ranks = -np.concatenate([rankdata(one), rankdata(other)])  # [2n], the most probable first
    order = np.argsort(ranks, kind="stable")
    image, is_other = order % len(one), order >= len(one)
    positive = np.flatnonzero(wanted[image])  # positions in that order of images that have the label
    last = np.searchsorted(ranks[order], ranks[order][positive], side="right") - 1  # equal ranks come together
    hits_to = np.searchsorted(positive, last, side="right")  # positives of both models up to there

    def differences(exchanged: NDArray[np.bool_]) -> NDArray[np.float64]:
        taken = exchanged[:, image] == is_other  # [r 2n], by the first model; the others are the second's
        own = taken[:, positive]
        hits = own.cumsum(axis=1)[:, hits_to - 1]
        seen = taken.cumsum(axis=1, dtype=np.int32)[:, last]
        first = (own * hits / np.maximum(seen, 1)).sum(axis=1)
        second = (~own * (hits_to - hits) / np.maximum(last + 1 - seen, 1)).sum(axis=1)
        return np.asarray((first - second) / wanted.sum())

    return differences


def _ious(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Score masks in a comparison by the IoU of each class, from rows `[… m]`: `[… k]`, nan without any pixel."""
    correct, shown, wanted, _ = split_counts(rows)
    union = shown + wanted - correct
    return np.where(union > 0, correct / np.maximum(union, 1), np.nan)


def _nanmean(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Average task scores, the classes' IoUs by which a comparison ranks models, over the last axis without nan.

    The mean of nothing but nan is 0.
    """
    return np.asarray(np.nansum(values, axis=-1) / np.maximum((~np.isnan(values)).sum(axis=-1), 1))


def _squared_errors(rows: Floats, targets: NDArray[np.float32]) -> NDArray[np.float64]:
    """Score numbers of a comparison by squared errors in units of their variance, as R² does, without constant ones."""
    spread = variances(targets)  # [k]
    return np.asarray((rows.astype(np.float64) - targets)[..., spread > 0] ** 2 / spread[spread > 0])
