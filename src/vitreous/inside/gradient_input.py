"""Gradient × input: each pixel's part in a logit, by one gradient (Shrikumar et al., 2016)."""

import torch
from torch import Tensor, nn

from vitreous.inside.gradients import Target, class_score, differentiable


def gradient_input(model: nn.Module, x: Tensor, target: Target = None) -> Tensor:
    """Compute the gradient of a class's logit times the input: images `[b c H W]` → `[b c H W]`.

    For a linear model these are the parts that add up to the logit. `integrated_gradients.to_patches` adds them up over
    patches.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(12, 2, bias=False))
    >>> x = torch.randn(1, 3, 2, 2)
    >>> torch.allclose(gradient_input(model, x, target=1).sum(), model(x)[0, 1], atol=1e-6)
    True
    """
    with differentiable(x) as x:
        (gradient,) = torch.autograd.grad(class_score(model(x), target), x)
    return x.detach() * gradient
