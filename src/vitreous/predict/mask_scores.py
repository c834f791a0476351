"""Scores of masks: intersection over union, accuracy of pixels, and how near boundaries lie, from counts of pixels.

Shapes:  b images of a batch · k classes · H W pixels
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitreous.data.masks import IGNORE

BOUNDARY = 0.0075  # of the image's diagonal: how far two boundaries may lie apart to count as one (Csurka et al., 2013)
BOUNDARY_COUNTS = 5  # the last numbers of a row of masks
Counts = TypeVar("Counts", Tensor, NDArray[Any])


def mask_rows(logits: Tensor, masks: Tensor) -> Tensor:
    """Count how each image's pixels fit their targets, as a row for scores; ignored ones are left out: `[b 3k+5]`.

    Correct, predicted and labelled pixels of each class; then boundary pixels of the prediction near the label's, all
    of the prediction's, of the label near the prediction's, all of the label's, and those hidden by ignored pixels.
    """
    classes = logits.shape[1]
    check_masks(masks, classes)
    predicted, valid = logits.argmax(dim=1), masks != IGNORE  # [b H W]
    first = (classes + 1) * torch.arange(len(masks), device=masks.device)[:, None, None]  # the last bin is not counted

    def count(values: Tensor, counted: Tensor) -> Tensor:
        bins = torch.bincount((first + values.where(counted, classes)).flatten(), minlength=len(masks) * (classes + 1))
        return bins.view(len(masks), classes + 1)[:, :classes]

    pairs = ((masks, valid & (predicted == masks)), (predicted, valid), (masks, valid))
    counts = torch.stack([count(values, counted) for values, counted in pairs], dim=1)  # [b 3 k]
    reach = max(1, round(BOUNDARY * float(np.hypot(*masks.shape[1:]))))
    edges = [boundary(mask, valid).float() for mask in (predicted, masks)]  # [b H W] each
    near = [F.max_pool2d(edge[:, None], 2 * reach + 1, 1, reach)[:, 0] for edge in edges]
    everywhere = boundary(masks, torch.ones_like(valid)).float()
    sums = [edges[0] * near[1], edges[0], edges[1] * near[0], edges[1], everywhere - edges[1]]
    return torch.cat([counts.flatten(1).float(), torch.stack([x.sum(dim=(1, 2)) for x in sums], dim=1)], dim=1)


def check_masks(masks: Tensor, classes: int) -> None:
    """Check the targets of pixels before they are scored: raise if a class is not among the model's."""
    if (highest := masks.where(masks != IGNORE, 0)).numel() and highest.max() >= classes:
        raise ValueError(f"a mask has the value {highest.max()}: expected {classes} classes and {IGNORE} for none")


def split_counts(rows: Counts) -> tuple[Counts, Counts, Counts, Counts]:
    """Split the rows that masks are scored by, `[… 3k+5]`, into counts of each class `[… k]` and of boundaries `[… 5]`.

    The counts of each class are its correct, predicted and labelled pixels.

    >>> split_counts(np.arange(11))
    (array([0, 1]), array([2, 3]), array([4, 5]), array([ 6,  7,  8,  9, 10]))
    """
    k = (rows.shape[-1] - BOUNDARY_COUNTS) // 3
    return rows[..., :k], rows[..., k : 2 * k], rows[..., 2 * k : 3 * k], rows[..., 3 * k :]


def boundary(mask: Tensor, valid: Tensor) -> Tensor:
    """Mark to score masks the pixels whose right or lower neighbour has another class: `[b H W]` → bool `[b H W]`."""
    edge = torch.zeros_like(valid)
    edge[:, :, :-1] |= (mask[:, :, :-1] != mask[:, :, 1:]) & valid[:, :, :-1] & valid[:, :, 1:]
    edge[:, :-1] |= (mask[:, :-1] != mask[:, 1:]) & valid[:, :-1] & valid[:, 1:]
    return edge


def mask_figures(rows: Tensor, targets: NDArray[np.float32] | Sequence[int] | None = None) -> dict[str, float]:
    """Compute scores from counts of pixels: mean IoU, accuracy, and boundary F where most labelled boundaries count.

    >>> logits = torch.tensor([[[[2.0, 2.0], [2.0, 0.0]], [[1.0, 1.0], [1.0, 1.0]]]])  # [1 2 2 2]
    >>> mask_figures(mask_rows(logits, torch.tensor([[[0, 0], [1, 1]]])))
    {'miou': 0.5833333333333333, 'pixel_accuracy': 0.75, 'boundary_f': 1.0}
    """
    correct, _, wanted, edge_counts = split_counts(rows.double().sum(dim=0))
    ious = class_ious(rows)
    found = {
        "miou": float(np.mean([iou for iou in ious if iou is not None])),
        "pixel_accuracy": (correct.sum() / wanted.sum().clamp(min=1)).item(),
    }
    near_label, edges, near_prediction, label_edges, hidden = edge_counts.tolist()
    if label_edges > hidden:  # else the edges of objects are ignored, and the rest says nothing about them
        precision, recall = near_label / max(edges, 1), near_prediction / label_edges
        found["boundary_f"] = 2 * precision * recall / max(precision + recall, 1e-12)
    return found


def class_ious(rows: Tensor) -> list[float | None]:
    """Score masks: each class's intersection over union, over all pixels of all images; None where it never occurs."""
    correct, shown, wanted, _ = split_counts(rows.double().sum(dim=0))
    union = (shown + wanted - correct).tolist()
    return [c / u if u else None for c, u in zip(correct.tolist(), union, strict=True)]


def mask_each(rows: Tensor, targets: NDArray[np.float32] | None = None) -> list[dict[str, float] | None]:
    """Score masks: each class's intersection over union by name; None where it never occurs."""
    return [None if iou is None else {"iou": iou} for iou in class_ious(rows)]
