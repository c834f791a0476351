"""`SCORES`: how well outputs fit their targets, for each task: numbers for each image, and the figures they make.

Each task has two functions. `rows` turns a batch of outputs and targets into one row of numbers for each image, so that
batches, ranks and parts of a dataset can be put together in any order; `figures` computes the figures of all rows.

Shapes:  b images of a batch · n images in all · k classes, labels or numbers · m numbers of a row · H W pixels
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.predict.mask_scores import mask_each, mask_figures, mask_rows


@dataclass(frozen=True)
class Scores:
    """How a task is scored."""

    rows: Callable[[Tensor, Tensor], Tensor]
    """Outputs and targets of a batch → a row of numbers for each image, `[b m]`."""
    figures: Callable[[Tensor, NDArray[np.float32] | Sequence[int] | None], dict[str, float]]
    """All rows `[n m]` and the dataset's labels or targets → figures by name, the one that counts first."""
    main: str
    """The figure that counts; higher is better."""
    title: str
    """What that figure is called in a sentence."""

    def format(self, value: float) -> str:
        """Format a value of the score by which outputs of a task are measured first."""
        return f"{value:.3f}" if self.main in ("map", "r2") else f"{value:.2%}"


# --- classify ---------------------------------------------------------------------------------------------------------


def class_rows(logits: Tensor, labels: Tensor) -> Tensor:
    """Score classes: predicted class, its probability, the label's probability, label among the first five: `[b 4]`."""
    logits = logits.float()  # bf16 would round the indices of classes above 256
    best, first = logits.topk(min(5, logits.shape[-1]), dim=-1).indices, logits.argmax(dim=-1)  # [b 5], [b]
    probability = logits.softmax(dim=-1)
    own = probability.gather(1, labels[:, None])[:, 0]
    hit = (best == labels[:, None]).any(dim=-1) | (first == labels)  # of equal logits, topk may leave out the first
    return torch.stack([first, probability.amax(dim=-1), own, hit], dim=-1)


def class_figures(rows: Tensor, labels: NDArray[np.float32] | Sequence[int] | None) -> dict[str, float]:
    """Compute top-1 and top-5 accuracy of rows `[n 4]`.

    >>> class_figures(class_rows(torch.eye(6), torch.tensor([0, 1, 2, 3, 4, 0])), [0, 1, 2, 3, 4, 0])
    {'top1': 0.8333333333333334, 'top5': 1.0}
    """
    correct = rows[:, 0].long() == torch.as_tensor(labels)
    return {"top1": correct.double().mean().item(), "top5": rows[:, 3].double().mean().item()}


# --- several labels ---------------------------------------------------------------------------------------------------


def label_rows(logits: Tensor, targets: Tensor) -> Tensor:
    """Score labels: keep the probability of each, `[b k]`."""
    return logits.sigmoid()


def label_figures(rows: Tensor, targets: NDArray[np.float32] | Sequence[int] | None) -> dict[str, float]:
    """Compute mean average precision, and F1 at a probability of 0.5, means over labels that occur.

    >>> label_figures(torch.tensor([[0.9, 0.2], [0.4, 0.7]]), np.array([[1, 0], [0, 1]], np.float32))
    {'map': 1.0, 'f1': 1.0}
    """
    wanted = np.asarray(targets, np.float32)  # [n k]
    figures = {"map": average_precisions(rows, wanted), "f1": f1_scores(rows, wanted)}
    return {name: float(np.mean([each for each in found if each is not None])) for name, found in figures.items()}


def average_precisions(rows: Tensor, targets: NDArray[np.float32]) -> list[float | None]:
    """Compute the average precision of each label, the area below its curve of precision; None if no image has it."""
    from sklearn.metrics import average_precision_score

    wanted, found = targets > 0.5, rows.numpy()
    each = range(wanted.shape[1])
    return [float(average_precision_score(wanted[:, i], found[:, i])) if wanted[:, i].any() else None for i in each]


def f1_scores(
    rows: Tensor, targets: NDArray[np.float32], thresholds: float | Sequence[float] = 0.5
) -> list[float | None]:
    """Compute the F1 of each label, present from a threshold on, one for all or one for each; None if no image has it.

    >>> f1_scores(torch.tensor([[0.6, 0.3], [0.7, 0.1]]), np.array([[1, 1], [0, 0]], np.float32), [0.5, 0.2])
    [0.6666666666666666, 1.0]
    """
    wanted = targets > 0.5  # [n k]
    shown = rows.double().numpy() >= np.asarray(thresholds)
    counts = zip((wanted & shown).sum(axis=0), shown.sum(axis=0), wanted.sum(axis=0), strict=True)
    return [float(2 * correct / (found + images)) if images else None for correct, found, images in counts]


def label_each(rows: Tensor, targets: NDArray[np.float32]) -> list[dict[str, float] | None]:
    """Compute average precision and F1 at 0.5 of each label; None if no image has it."""
    pairs = zip(average_precisions(rows, targets), f1_scores(rows, targets), strict=True)
    return [None if ap is None or f1 is None else {"average_precision": ap, "f1": f1} for ap, f1 in pairs]


def best_thresholds(rows: Tensor, targets: NDArray[np.float32]) -> tuple[float, ...]:
    """Find for each label the probability from which on calling it present gives the highest F1; 0.5 if none has it.

    >>> best_thresholds(torch.tensor([[0.125], [0.25], [0.5]]), np.array([[0], [1], [1]], np.float32))
    (0.1875,)
    """
    from sklearn.metrics import precision_recall_curve

    thresholds = []
    for found, wanted in zip(rows.double().numpy().T, (targets > 0.5).T, strict=True):
        if not wanted.any():
            thresholds.append(0.5)
            continue
        precision, recall, values = precision_recall_curve(wanted, found)
        f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-12)
        best = int(f1[: len(values)].argmax())
        below = found[found < values[best]]
        thresholds.append(float(values[best] + below.max() if len(below) else values[best]) / 2)
    return tuple(thresholds)


# --- numbers ----------------------------------------------------------------------------------------------------------


def number_rows(numbers: Tensor, targets: Tensor) -> Tensor:
    """Score numbers: keep what was predicted, in its own units, `[b k]`."""
    return numbers


def number_figures(rows: Tensor, targets: NDArray[np.float32] | Sequence[int] | None) -> dict[str, float]:
    """Compute R², the mean over numbers that differ among images, and the mean absolute error of each, in its own unit.

    If none differs, as with a single image, R² is not defined and is left out.

    >>> number_figures(torch.tensor([[1.0], [2.0], [4.0]]), np.array([[1], [2], [3]], np.float32))
    {'r2': 0.5, 'mae': 0.3333333333333333}
    """
    each = number_each(rows, np.asarray(targets, np.float32))
    errors = [own["mae"] for own in each]
    named = {"mae": errors[0]} if len(errors) == 1 else {f"mae_{i}": error for i, error in enumerate(errors)}
    known = [own["r2"] for own in each if "r2" in own]
    return ({"r2": float(np.mean(known))} if known else {}) | named


def number_each(rows: Tensor, targets: NDArray[np.float32]) -> list[dict[str, float]]:
    """Compute R² of each number if it differs among images, and its mean absolute and root mean square errors.

    >>> number_each(torch.tensor([[1.0], [2.0], [4.0]]), np.array([[1], [2], [3]], np.float32))
    [{'r2': 0.5, 'mae': 0.3333333333333333, 'rmse': 0.5773502691896257}]
    """
    found, wanted = rows.double().numpy(), np.asarray(targets, np.float64)  # [n k]
    errors, squares = np.abs(found - wanted).mean(axis=0), ((found - wanted) ** 2).mean(axis=0)
    known = [{"r2": float(1 - s / v)} if v else {} for s, v in zip(squares, variances(wanted), strict=True)]
    columns = zip(known, errors, np.sqrt(squares), strict=True)
    return [{**r2, "mae": float(mae), "rmse": float(rmse)} for r2, mae, rmse in columns]


def variances(targets: NDArray[Any]) -> NDArray[np.float64]:
    """Compute for the scores of numbers the variance of each, exactly 0 if images do not differ: `[n k]` → `[k]`."""
    wanted = targets.astype(np.float64)
    return np.where(np.ptp(wanted, axis=0) > 0, wanted.var(axis=0), 0.0)  # the mean of equal numbers is rounded


# --- all tasks --------------------------------------------------------------------------------------------------------

SCORES: dict[str, Scores] = {
    "classify": Scores(class_rows, class_figures, "top1", "accuracy"),
    "multilabel": Scores(label_rows, label_figures, "map", "mean average precision"),
    "regress": Scores(number_rows, number_figures, "r2", "R²"),
    "segment": Scores(mask_rows, mask_figures, "miou", "mean IoU"),
}
"""Task → how it is scored."""

EACH: dict[str, Callable[[Tensor, NDArray[np.float32]], Sequence[dict[str, float] | None]]] = {
    "multilabel": label_each,
    "regress": number_each,
    "segment": mask_each,
}
"""Task → the figures of each label, number or class, from all rows and the dataset's targets."""


def balanced_accuracy(labels: Sequence[int], predicted: Sequence[int]) -> float:
    """Score predictions by balanced accuracy: the mean over classes of the share of their images that is recognised.

    >>> balanced_accuracy([0, 0, 0, 1], [0, 0, 0, 0])
    0.5
    """
    shares = class_accuracies(labels, predicted)
    return sum(correct / count for correct, count in shares.values()) / len(shares)


def class_accuracies(labels: Sequence[int], predicted: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Score classes: count for each that occurs how many of its images are recognised, and how many there are.

    >>> class_accuracies([0, 0, 2], [0, 1, 2])
    {0: (1, 2), 2: (1, 1)}
    """
    counts = Counter(labels)
    correct = Counter(label for label, guess in zip(labels, predicted, strict=True) if label == guess)
    return {label: (correct[label], counts[label]) for label in sorted(counts)}
