"""Importance of attention heads by gradient (Michel, Levy & Neubig, 2019, "Are Sixteen Heads Really Better than One?").

`intervene.ablate_heads` measures the same by switching each head off.
"""

import torch
from torch import Tensor, nn

from vitreous.inside.capture import capture
from vitreous.inside.glossary import full_name
from vitreous.inside.gradients import Target, class_score, differentiable


def head_importance(model: nn.Module, x: Tensor, target: Target = None) -> Tensor:
    """Estimate each head's effect on a class's logit: images `[b c H W]` → `[layers heads]`, never negative.

    |Σ mixed · ∂logit/∂mixed|, the derivative of the logit with respect to a factor on the head, averaged over images.
    One backward pass covers all heads.

    >>> from vitreous.models.variants import variant
    >>> from vitreous.models.vit import ViT
    >>> head_importance(ViT(variant("vit_femto_patch4_32")), torch.randn(2, 3, 32, 32)).shape
    torch.Size([4, 8])
    """
    with differentiable(x) as x, capture(model, "mixed", gradients=True) as internals:
        score = class_score(model(x), target)
        mixed = [internals[full_name("mixed", layer)] for layer in internals.layers]  # [b h t k] each
        gradients = torch.autograd.grad(score, mixed, materialize_grads=True)
    slopes = [(value.detach() * slope).sum(dim=(2, 3)) for value, slope in zip(mixed, gradients, strict=True)]
    return torch.stack(slopes).abs().mean(dim=1)  # [l b h] → [l h]
