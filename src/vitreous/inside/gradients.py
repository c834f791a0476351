"""Gradients of a class's logit: which class is meant, its score, and inputs that gradients start from."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

Target = int | Sequence[int] | Tensor | None
"""Class to explain: one for all images, one for each, or None for each image's predicted class."""


@contextmanager
def differentiable(x: Tensor) -> Iterator[Tensor]:
    """Yield a copy of `x` with gradients enabled, also inside `no_grad` and `inference_mode`.

    Gradients start at the image, so that they exist even if all parameters are frozen.
    """
    with torch.inference_mode(False), torch.enable_grad():
        yield x.detach().clone().requires_grad_()


def chosen_classes(logits: Tensor, target: Target = None) -> Tensor:
    """Choose the class whose gradient is taken for each image: logits `[b classes]` → `[b]`.

    >>> chosen_classes(torch.eye(3)), chosen_classes(torch.eye(3), 1)
    (tensor([0, 1, 2]), tensor([1, 1, 1]))
    """
    if target is None:
        return logits.argmax(dim=-1)
    b, count = logits.shape
    chosen = torch.as_tensor(target, device=logits.device).long().clone()  # autograd keeps no tensor of inference mode
    if chosen.shape not in ((), (1,), (b,)):
        raise ValueError(f"target should be one class, or one for each of {b} images, got {tuple(chosen.shape)}")
    if chosen.min() < 0 or chosen.max() >= count:
        raise ValueError(f"target should be a class from 0 to {count - 1}, got {target}")
    return chosen.expand(b)


def class_score(logits: Tensor, target: Target = None) -> Tensor:
    """Sum the chosen classes' logits, for their gradients: images do not interact, so each gets its own."""
    return logits.gather(1, chosen_classes(logits, target)[:, None]).sum()
